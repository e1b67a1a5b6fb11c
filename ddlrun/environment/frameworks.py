"""What each framework reads from its environment to find the other ranks: one table a framework."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.errors import InputError
from ddlrun.mapping.placement import Placement


class Framework(NamedTuple):
    """What a framework's ranks find in their environment.

    `job`: variable -> the same for all ranks, in braces what `Rendezvous` knows. `rank`: variable -> what the
    rank fills in: rank, size, local_rank, local_size, host, hosts, gpu or workers (see rank/framework_environment.py).
    """

    title: str
    job: Mapping[str, str] = {}
    rank: Mapping[str, str] = {}


FRAMEWORKS = {
    # As torchrun has them. No TORCHELASTIC_*: they promise an agent, which nobody here is.
    "torch": Framework(
        "PyTorch",
        {"MASTER_ADDR": "{address}", "MASTER_PORT": "{port}"},
        {
            "RANK": "rank", "WORLD_SIZE": "size", "LOCAL_RANK": "local_rank", "LOCAL_WORLD_SIZE": "local_size",
            "GROUP_RANK": "host", "GROUP_WORLD_SIZE": "hosts", "ROLE_RANK": "rank", "ROLE_WORLD_SIZE": "size",
        },
    ),
    "tensorflow": Framework("TensorFlow", {}, {"TF_CONFIG": "workers"}),
    # jax.distributed.initialize() of JAX 0.10 reads the address and the devices. Rank and size it takes from Open
    # MPI's variables once it sees Open MPI 4's OMPI_MCA_orte_hnp_uri, of which it needs no more than that; it asks
    # for that before it asks for Slurm's, which tell of daemons. 5.0 does not set it.
    "jax": Framework(
        "JAX",
        {"JAX_COORDINATOR_ADDRESS": "{endpoint}"},
        {
            "JAX_NUM_PROCESSES": "size", "JAX_PROCESS_ID": "rank", "JAX_LOCAL_DEVICE_IDS": "gpu",
            "OMPI_MCA_orte_hnp_uri": "uri",
        },
    ),
    # Over MPI these need nothing more.
    "horovod": Framework("Horovod"),
    "ddl": Framework("ddlrun.ddl"),
    "mpi": Framework("MPI programs"),
}  # fmt: skip
AUTO = ("torch", "tensorflow", "jax", "horovod", "ddl", "mpi")
# All that ddlrun's launch of a rank may have told it.
NAMES = frozenset(name for one in FRAMEWORKS.values() for name in (*one.job, *one.rank))
# More do not fit into one variable, however short their addresses are.
MOST_WORKERS = MOST_CHARACTERS // len('"10.0.0.1:20000",')
OWN, WORKERS, PORTS = "DDLRUN_OWN", "DDLRUN_WORKERS", "DDLRUN_PORTS"


def parse_frameworks(text: str, option: str = "--framework") -> tuple[str, ...]:
    """Parse a list of frameworks; empty: auto. Raises InputError on a name that is none.

    >>> parse_frameworks("torch, jax"), parse_frameworks("auto")
    (('torch', 'jax'), ())
    """
    names = [word.strip().lower() for word in text.split(",") if word.strip()]
    wrong = [name for name in names if name not in FRAMEWORKS and name != "auto"]
    if wrong or not names:
        raise InputError(f"{option} {text!r}: there are auto, {', '.join(FRAMEWORKS)}, and lists of them: torch,jax")
    return () if "auto" in names else tuple(dict.fromkeys(names))


class Rendezvous(NamedTuple):
    """Where ranks find each other: the address of each host, in the hosts' order, and the first free port.

    The port is rank 0's for torch, the next one JAX's; from the third on TensorFlow has one a local rank.
    """

    addresses: tuple[str, ...]
    port: int

    @property
    def words(self) -> dict[str, str]:
        """What the tables' braces stand for."""
        return {
            "address": self.addresses[0], "port": str(self.port),
            "endpoint": f"{bracketed(self.addresses[0])}:{self.port + 1}",
        }  # fmt: skip


def ports_needed(per_host: int) -> int:
    """Return how many ports in a row the ranks of a host may use."""
    return 2 + per_host


def bracketed(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def resolve(named: Sequence[str], *, horovod: bool, ddl: bool) -> tuple[tuple[str, ...], str]:
    """Return the frameworks that ranks are set up for, and why.

    Of all, TensorFlow is left out where Horovod or DDL is asked for: TF_CONFIG would make its estimators a cluster
    of their own.
    """
    if named:
        return tuple(named), f"--framework {','.join(named)}"
    if horovod or ddl:
        why = "Horovod's settings are given" if horovod else "--mode asks for DDL"
        return tuple(name for name in AUTO if name != "tensorflow"), f"auto: no TF_CONFIG, as {why}"
    return AUTO, "auto"


def framework_variables(
    chosen: Iterable[str], placement: Placement, meeting: Rendezvous, own: Iterable[str], exported: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the variables of the whole job, and notes on what is not as one may expect.

    `own` are the names that the user set for the ranks (--env, -x): they stay. So do addresses and ports that
    are merely `exported`; what differs by rank cannot come from there.
    """
    tables = [FRAMEWORKS[name] for name in chosen]
    kept, seen = {*own}, {*exported}
    variables = {
        name: text.format(**meeting.words)
        for table in tables for name, text in table.job.items()
        if name not in kept and name not in seen
    }  # fmt: skip
    said = sorted({name for table in tables for name in table.job} & (kept | seen))
    said += sorted({name for table in tables for name in table.rank} & kept)
    notes = [f"{', '.join(said)}: left as you set {'it' if len(said) == 1 else 'them'}"] if said else []
    filled = {name: what for table in tables for name, what in table.rank.items() if name not in kept}
    if "TF_CONFIG" in filled:
        workers, why = _workers(placement, meeting)
        variables |= {WORKERS: workers} if workers else {}
        notes += [why] if why else []
        filled = filled if workers else {name: what for name, what in filled.items() if name != "TF_CONFIG"}
    lost = sorted({*filled} & seen - {"OMPI_MCA_orte_hnp_uri"})
    if lost:
        notes.append(f"{', '.join(lost)}: set for each rank, whatever is exported; --env passes yours on")
    if filled:
        variables[OWN] = " ".join(f"{name}={what}" for name, what in filled.items())
        variables[PORTS] = _tested(variables, meeting)
    return variables, notes


def _tested(variables: Mapping[str, str], meeting: Rendezvous) -> str:
    """Return the ports of ours that rank 0 is to find free: NAME=PORT."""
    ports = {"MASTER_PORT": meeting.port, "JAX_COORDINATOR_ADDRESS": meeting.port + 1}
    return " ".join(f"{name}={port}" for name, port in ports.items() if name in variables)


def _workers(placement: Placement, meeting: Rendezvous) -> tuple[str, str]:
    """Return what TF_CONFIG is made of in each rank: `PORT ADDRESS,ADDRESS...`; empty, and perhaps why, without it."""
    topology = placement.topology
    if topology.size == 1:  # TensorFlow then is a cluster of one by itself
        return "", ""
    each = topology.accelerators
    one = len('"",:12345') + max(len(bracketed(address)) for address in meeting.addresses)
    if one * topology.size > MOST_CHARACTERS:
        most = MOST_CHARACTERS // one
        return "", (
            f"TF_CONFIG: left out, as {topology.size} workers do not fit into one variable (about {most} do); "
            "give MultiWorkerMirroredStrategy a cluster_resolver"
        )
    return f"{meeting.port + 2} {','.join(map(bracketed, meeting.addresses[: topology.size // each]))}", ""
