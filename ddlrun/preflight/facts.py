"""Facts of a host for the checks: their records, and the parser of the probe's output."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddlrun.environment.rendezvous_ports import parse_ports
from ddlrun.errors import HostError
from ddlrun.machine import Machine
from ddlrun.machine.announced_cpus import SCRIPT as MACHINE
from ddlrun.machine.announced_cpus import parse_announced_cpus
from ddlrun.machine.sysfs import machine_kind, parse_sysfs
from ddlrun.network.addresses import Address, parse_addresses
from ddlrun.plan.container import ContainerRequest

# The task that finds the facts of a host.
TASK = "ddlrun.preflight.host_facts"
# Parts of the command line of every keeper; those of ddlrun's own agents are forks of them.
KEEPERS = ("/ddlrun/keeper/start.py", "/ddlrun/agent/start.py")
# The number of a host's namespaces in its facts. That of mounts is not one of them: a login may have its own.
NAMESPACES = 4


class FactsRequest(NamedTuple):
    """The subjects of a host's facts: paths as on this host, the names that it must resolve, and the program.

    `folder` is the working folder. `path` is the PATH on which ranks look for the program; None: the host's own.
    `encryption` is the folder from which keepers import cryptography; None: they do not. `agents`: whether ddlrun's own
    agents start the ranks. `container` is that of the ranks; None: there is none.
    `manager` is the program of the process manager, `daemon` the one beside it that hosts must have, `library` the MPI
    library that belongs to it.
    """

    manager: str
    python: str
    folder: str
    names: tuple[str, ...] = ()
    program: str | None = None
    logs: str | None = None
    path: str | None = None
    encryption: str | None = None
    agents: bool = False
    container: ContainerRequest | None = None
    daemon: str = ""
    library: str = ""


class FileDigest(NamedTuple):
    """A file's size in bytes and its checksum (CRC-32)."""

    size: int
    checksum: int


class LeftoverProcess(NamedTuple):
    """A process of a run that may be over."""

    pid: int
    run: str
    command: str

    @property
    def is_keeper(self) -> bool:
        """Whether it is the keeper of a rank: the run is then not over."""
        return any(part in self.command for part in KEEPERS)


class KernelInstance(NamedTuple):
    """The running kernel of a host, and the part of it that the host is: more containers than one may share it."""

    boot_id: str
    namespaces: tuple[str, ...]
    """Those of the network, process ids, the host name and IPC, as in net:[4026531833]."""


class HostFacts(NamedTuple):
    """The facts of a host; None: it could not find out."""

    noise: tuple[str, ...]
    """The lines that its shell printed before the facts."""
    clock: float | None
    hostname: str
    addresses: tuple[Address, ...]
    names: Mapping[str, tuple[str, ...]]
    """The addresses to which it resolves each name, including its own `hostname`."""
    manager: str | None
    """The version that the process manager's program prints, at the path that it has here; None: it does not exist."""
    daemon: bool
    """Whether the process manager's daemon is in the folder of its program."""
    python: str | None
    packages: Mapping[str, str]
    """The version and folder of each package."""
    folder: bool
    program: FileDigest | str | None
    """The digest of a script, the path of any other program; None: it does not exist."""
    machine: Machine | None
    driver: str | None
    shm: int | None
    temporary: tuple[str, int | None]
    """The folder for temporary files and its free KiB; `shm` has those of /dev/shm."""
    unwritable: str | None
    """The folder for temporary files, if it is missing or this user may not write to it."""
    logs: int | None
    memlock: str
    files: str
    leftovers: tuple[LeftoverProcess, ...]
    ports: frozenset[int] = frozenset()
    """The ports in use among those of rendezvous_ports.py."""
    kernel: KernelInstance | None = None
    encryption: bool = False
    """Whether its Python can import cryptography from the folder that was requested."""
    mpi_libraries: tuple[str, ...] = ()
    """The MPI libraries for which mpi4py is built; its wheel is built for several."""
    container: str = ""
    """"image" if it has the runtime and the image of the container, "runtime" if it has the runtime alone."""
    announced_cpus: frozenset[int] = frozenset()
    """The CPUs of other users' ranks."""
    agent_python: str = ""
    """The version of the Python that would run ddlrun's agent; empty if there is none."""


def render_task(request: FactsRequest, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the argument of TASK on a host, given the variables that choose its GPUs."""
    container = request.container
    return {
        **request._replace(container=None)._asdict(),
        "runtime": container.program if container else "",
        "image": container.test if container else "",
        "machine": MACHINE,
        "variables": dict(variables),
    }


def parse_facts(
    value: object, host: str, machines: dict[str, Machine] | None = None, *, printed: str = ""
) -> HostFacts:
    r"""Parse the result of TASK on `host`, whose shell printed something before. Raises HostError if it is none.

    `machines` collects the machines of several hosts, so that equal hosts share one object.

    >>> parse_facts({"machine": "", "own": "@hostname h1"}, "h1", printed="hello\n").noise
    ('hello',)
    """
    match value:
        case {"machine": str(machine_text), "own": str(own_text)}:
            records = _records(own_text)
        case _:
            raise HostError(host, f"its reply {str(value)[:60]!r} cannot be read; try again")
    first = {key: values[0] for key, values in records.items()}
    rooms = {words[0]: words[1:] for words in map(str.split, records.get("room", ())) if len(words) > 2}
    limits = dict(value.partition(" ")[::2] for value in records.get("limit", ()))
    return HostFacts(
        noise=tuple(line for line in printed.splitlines() if line.strip()),
        clock=_float(first.get("clock", "")),
        hostname=first.get("hostname", ""),
        addresses=parse_addresses(records.get("net", ())),
        names={words[0]: tuple(sorted({*words[1:]})) for words in map(str.split, records.get("name", ())) if words},
        manager=first.get("manager"),
        daemon="daemon" in records,
        python=first.get("python"),
        agent_python=first.get("agent", ""),
        packages={value.split(" ", 1)[0]: value.partition(" ")[2] for value in records.get("package", ())},
        folder="folder" in records,
        program=_program(first),
        machine=_machine(machine_text, host, {} if machines is None else machines),
        driver=_version(first.get("driver", "")),
        shm=_free(rooms.get("shm")),
        temporary=(" ".join(rooms["temporary"][1:]) if "temporary" in rooms else "", _free(rooms.get("temporary"))),
        unwritable=first.get("unwritable"),
        logs=_free(rooms.get("logs")),
        memlock=limits.get("memlock", ""),
        files=limits.get("files", ""),
        leftovers=tuple(_leftovers(records.get("left", ()))),
        ports=parse_ports(first.get("ports", "")),
        kernel=_kernel(first.get("kernel", "").split()),
        container=first.get("container", ""),
        announced_cpus=parse_announced_cpus(machine_text),
        encryption="encryption" in records,
        mpi_libraries=tuple(first.get("libraries", "").split()),
    )


def _records(text: str) -> dict[str, list[str]]:
    """Return the values of the lines `@KEY VALUE` by key."""
    records: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key.startswith("@"):
            records.setdefault(key[1:], []).append(value.strip())
    return records


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _number(text: str) -> int | None:
    """Parse a number of up to 20 digits; None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def _program(first: Mapping[str, str]) -> FileDigest | str | None:
    words = first.get("content", "").split()
    checksum, size = map(_number, words) if len(words) == 2 else (None, None)
    if checksum is not None and size is not None:
        return FileDigest(size, checksum)
    return first.get("program")


def _kernel(words: Sequence[str]) -> KernelInstance | None:
    """Return the kernel's boot id and namespaces; None if one of them is missing."""
    if len(words) != 1 + NAMESPACES:
        return None
    return KernelInstance(words[0], tuple(words[1:]))


def _machine(text: str, host: str, machines: dict[str, Machine]) -> Machine | None:
    kind = machine_kind(text)
    try:
        return machines.get(kind) or machines.setdefault(kind, parse_sysfs(text, host))
    except HostError:
        return None


def _version(line: str) -> str | None:
    """Return the version in the first line of /proc/driver/nvidia/version.

    >>> _version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023")
    '535.129.03'
    """
    return next((word for word in line.split() if word[0].isdigit() and "." in word and ":" not in word), None)


def _free(room: Sequence[str] | None) -> int | None:
    return _number(room[0]) if room else None


def _leftovers(lines: Sequence[str]) -> Iterator[LeftoverProcess]:
    for line in lines:
        words = line.split(" ", 2)
        pid = _number(words[0])
        if len(words) == 3 and pid is not None:
            yield LeftoverProcess(pid, words[1], words[2])
