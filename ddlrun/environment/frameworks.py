"""Frameworks: the variables by which the ranks of each find the others, one table per framework."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.errors import InputError
from ddlrun.mapping.placement import Placement
from ddlrun.wording import did_you_mean

# A loopback address, perhaps with a port.
LOOPBACK = r"(localhost|127\.[0-9.]+|\[?::1\]?)(:[0-9]+)?$"


class Framework(NamedTuple):
    """The variables of a framework's ranks."""

    title: str
    job: Mapping[str, str]
    """Variable -> text, the same for all ranks; in braces a word of `Rendezvous`."""
    rank: Mapping[str, str]
    """Variable -> field that each rank fills in: rank, size, local_rank, local_size, host, hosts, gpu, uri or
    workers (see keeper/framework_environment.py)."""


FRAMEWORKS = {
    # torchrun's. By TORCHELASTIC_RUN_ID, Lightning recognises that the ranks were started by a launcher, also in a job
    # of Slurm; torch does not read it. Scripts read the restarts. The other TORCHELASTIC_* promise an elastic agent.
    "torch": Framework(
        "PyTorch",
        {
            "MASTER_ADDR": "{address}", "MASTER_PORT": "{port}", "TORCHELASTIC_RUN_ID": "{run}", "ROLE_NAME": "default",
            "TORCHELASTIC_RESTART_COUNT": "{restart}", "TORCHELASTIC_MAX_RESTARTS": "{restarts}",
        },
        {
            "RANK": "rank", "WORLD_SIZE": "size", "LOCAL_RANK": "local_rank", "LOCAL_WORLD_SIZE": "local_size",
            "GROUP_RANK": "host", "GROUP_WORLD_SIZE": "hosts", "ROLE_RANK": "rank", "ROLE_WORLD_SIZE": "size",
        },
    ),
    "tensorflow": Framework("TensorFlow", {}, {"TF_CONFIG": "workers"}),
    # jax.distributed.initialize() of JAX 0.10 reads the address and the devices. It takes rank and size from Open
    # MPI's variables where OMPI_MCA_orte_hnp_uri is set, whatever its value. It looks for that before it looks for
    # Slurm's variables, which describe the daemons here. Open MPI 5.0 does not set OMPI_MCA_orte_hnp_uri.
    "jax": Framework(
        "JAX",
        {"JAX_COORDINATOR_ADDRESS": "{endpoint}"},
        {
            "JAX_NUM_PROCESSES": "size", "JAX_PROCESS_ID": "rank", "JAX_LOCAL_DEVICE_IDS": "gpu",
            "OMPI_MCA_orte_hnp_uri": "uri",
        },
    ),
    # Over MPI these need no variables.
    "horovod": Framework("Horovod", {}, {}),
    "ddl": Framework("ddlrun.ddl", {}, {}),
    "mpi": Framework("MPI programs", {}, {}),
}  # fmt: skip
AUTO = ("torch", "tensorflow", "jax", "horovod", "ddl", "mpi")
# Every variable that ddlrun sets for frameworks.
NAMES = frozenset(name for framework in FRAMEWORKS.values() for name in (*framework.job, *framework.rank))
# More workers do not fit into one variable, however short their addresses are.
MOST_WORKERS = MOST_CHARACTERS // len('"10.0.0.1:20000",')
# Other names of frameworks.
SYNONYMS = {"pytorch": "torch", "tf": "tensorflow", "keras": "tensorflow", "hvd": "horovod", "flax": "jax"}
OWN, WORKERS, PORTS = "DDLRUN_OWN", "DDLRUN_WORKERS", "DDLRUN_PORTS"


def parse_frameworks(text: str) -> tuple[str, ...]:
    """Parse a list of frameworks; empty: auto. Raises InputError on an unknown name.

    >>> parse_frameworks("torch, jax"), parse_frameworks("auto")
    (('torch', 'jax'), ())
    """
    names = [word.strip().lower() for word in text.split(",") if word.strip()]
    wrong = [name for name in names if name not in FRAMEWORKS and name != "auto"]
    if wrong or not names:
        hint = did_you_mean(wrong[0], FRAMEWORKS, SYNONYMS) if wrong else ""
        raise InputError(
            f"`--framework` {text!r}{hint}: there are auto, {', '.join(FRAMEWORKS)}, and lists of them: torch,jax"
        )
    return () if "auto" in names else tuple(dict.fromkeys(names))


class Rendezvous(NamedTuple):
    """Where ranks meet: the address of each host, in the hosts' order, and the first of the free ports.

    The first port is rank 0's for PyTorch, the second JAX's; TensorFlow has the others, one per local rank.
    """

    addresses: tuple[str, ...]
    port: int
    run: str = "ddlrun"
    """The name of the run."""
    restart: int = 0
    """Number of restarts so far."""
    restarts: int = 0
    """Number of restarts that are allowed."""

    @property
    def words(self) -> dict[str, str]:
        """The words that stand in braces in FRAMEWORKS, with their values."""
        return {
            "address": self.addresses[0], "port": str(self.port), "run": self.run,
            "restart": str(self.restart), "restarts": str(self.restarts),
            "endpoint": f"{bracket_address(self.addresses[0])}:{self.port + 1}",
        }  # fmt: skip


def count_ports(per_host: int) -> int:
    """Return the number of consecutive ports that the ranks of a host may use."""
    return 2 + per_host


def bracket_address(address: str) -> str:
    """Return an address as it is written before a port."""
    return f"[{address}]" if ":" in address else address


def resolve(named: Sequence[str], *, horovod: bool, ddl: bool) -> tuple[tuple[str, ...], str]:
    """Return the frameworks that ranks are set up for, and why.

    Without names, TensorFlow is left out where Horovod or DDL is requested: TF_CONFIG would make its estimators a
    cluster of their own.
    """
    if named:
        return tuple(named), f"--framework {','.join(named)}"
    if horovod or ddl:
        why = "Horovod's settings are given" if horovod else "--mode asks for DDL"
        return tuple(name for name in AUTO if name != "tensorflow"), f"auto: no TF_CONFIG, as {why}"
    return AUTO, "auto"


class FrameworkVariables(NamedTuple):
    """The variables by which the ranks of frameworks find each other, and notes on those that do not apply."""

    rendezvous: dict[str, str]
    """Addresses and ports, the same for all ranks."""
    ranks: dict[str, str]
    """What each rank's keeper needs to set the variables that differ by rank."""
    notes: tuple[str, ...]


def plan_framework_variables(
    chosen: Iterable[str],
    placement: Placement,
    rendezvous: Rendezvous,
    own: Collection[str],
    inherited: Mapping[str, str],
) -> FrameworkVariables:
    """Return the variables of the whole job.

    `own` are the names that the user set for the ranks (--env, -x): they stay. So do addresses and ports that
    are merely `inherited` from ddlrun's environment, but loopback addresses in a job over several hosts; what differs
    by rank cannot come from there.
    """
    tables = [FRAMEWORKS[name] for name in chosen]
    shared = {name: text for table in tables for name, text in table.job.items()}
    by_rank = {name: field for table in tables for name, field in table.rank.items()}
    several = len(set(rendezvous.addresses)) > 1
    lost = {name for name in shared if several and name not in own and re.match(LOOPBACK, inherited.get(name, ""))}
    stays = sorted(name for name in shared if name in own or (name in inherited and name not in lost))
    stays += sorted(name for name in by_rank if name in own)
    noted = [name for name in stays if not name.startswith(("TORCHELASTIC_", "ROLE_"))]
    notes = [f"{', '.join(noted)}: left as you set {'it' if len(noted) == 1 else 'them'}"] if noted else []
    variables = {name: text.format(**rendezvous.words) for name, text in shared.items() if name not in stays}
    filled = {name: field for name, field in by_rank.items() if name not in stays}
    workers = Workers("", "")
    if "TF_CONFIG" in filled:
        workers = _workers(placement, rendezvous)
        notes += [workers.problem] if workers.problem else []
        filled = filled if workers.text else {name: field for name, field in filled.items() if name != "TF_CONFIG"}
    notes += [f"{name}={inherited[name]}: replaced, as other hosts do not reach it" for name in sorted(lost)]
    replaced = sorted(name for name in filled if name in inherited and name != "OMPI_MCA_orte_hnp_uri")
    if replaced:
        notes.append(f"{', '.join(replaced)}: set for each rank, whatever is exported; --env passes yours on")
    ranks = {WORKERS: workers.text} if workers.text else {}
    if filled:
        ranks[OWN] = " ".join(f"{name}={field}" for name, field in filled.items())
        ranks[PORTS] = _tested_ports(variables, rendezvous)
    return FrameworkVariables(variables, ranks, tuple(notes))


def _tested_ports(variables: Collection[str], rendezvous: Rendezvous) -> str:
    """Return the ports that rank 0 tests before they are used: NAME=PORT."""
    ports = {"MASTER_PORT": rendezvous.port, "JAX_COORDINATOR_ADDRESS": rendezvous.port + 1}
    return " ".join(f"{name}={port}" for name, port in ports.items() if name in variables)


class Workers(NamedTuple):
    """What each rank makes TF_CONFIG of, `PORT ADDRESS,ADDRESS...`; without it empty, perhaps with a reason."""

    text: str
    problem: str


def _workers(placement: Placement, rendezvous: Rendezvous) -> Workers:
    topology = placement.topology
    if topology.size == 1:  # TensorFlow then is a cluster of one by itself
        return Workers("", "")
    length = len('"",:12345') + max(len(bracket_address(address)) for address in rendezvous.addresses)
    if length * topology.size > MOST_CHARACTERS:
        return Workers(
            "",
            f"TF_CONFIG: left out, as {topology.size} workers do not fit into one variable (about "
            f"{MOST_CHARACTERS // length} do); give MultiWorkerMirroredStrategy a cluster_resolver",
        )
    return Workers(
        f"{rendezvous.port + 2} {','.join(map(bracket_address, rendezvous.addresses[: topology.hosts]))}", ""
    )
