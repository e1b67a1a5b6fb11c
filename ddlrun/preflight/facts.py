"""What a host says of itself in one round trip: one script's text -> Facts."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.rendezvous_ports import SCRIPT as PORTS
from ddlrun.environment.rendezvous_ports import parse_ports
from ddlrun.errors import HostError
from ddlrun.machine import Machine
from ddlrun.machine.sysfs import SCRIPT as MACHINE
from ddlrun.machine.sysfs import machine_kind, parse_sysfs
from ddlrun.network.subnet_selection import SCRIPT as NETWORK
from ddlrun.network.subnet_selection import Address, parse_addresses

PACKAGES = ("mpi4py", "torch", "horovod")
START, END = "@facts begin", "@facts end"


class FactsRequest(NamedTuple):
    """What a host is asked for: paths as this host has them, the names that it must resolve, the program.

    `path` is the PATH on which ranks look for the program; None: the host's own.
    """

    mpirun: str
    python: str
    folder: str
    names: tuple[str, ...] = ()
    program: str | None = None
    logs: str | None = None
    path: str | None = None


class FileDigest(NamedTuple):
    """A file's size in bytes and its checksum (cksum)."""

    size: int
    checksum: int


class LeftoverProcess(NamedTuple):
    """A process that an earlier run left behind."""

    pid: int
    run: str
    command: str


class HostFacts(NamedTuple):
    """What a host says of itself; None: it could not say."""

    noise: tuple[str, ...]
    """What its shell printed before the script's own first line."""
    clock: float | None
    hostname: str
    addresses: tuple[Address, ...]
    names: Mapping[str, tuple[str, ...]]
    """The addresses that it resolves each name to; its own `hostname` too."""
    mpirun: str | None
    """The version that its mpirun prints, at the path that this host's has; None: there is none."""
    daemon: bool
    """Whether Open MPI's daemon is beside it."""
    python: str | None
    packages: Mapping[str, str]
    """Package -> version and folder."""
    folder: bool
    program: FileDigest | str | None
    """A file's content; of any other program its path; None: it is not there."""
    machine: Machine | None
    driver: str | None
    shm: int | None
    temporary: tuple[str, int | None]
    """The folder for temporary files and its free KiB, as `shm` has those of /dev/shm."""
    logs: int | None
    memlock: str
    files: str
    leftovers: tuple[LeftoverProcess, ...]
    ports: frozenset[int] = frozenset()
    """Local ports in use, of those on which ranks may meet (see ports.py)."""


def facts_script(wanted: FactsRequest, daemon: str) -> str:
    """Return the POSIX sh script that says all of it; it writes nothing and needs nothing but a shell.

    `daemon` is the name of Open MPI's daemon: orted or prted. Every value goes in as a quoted literal.
    """
    values = {
        "mpirun": wanted.mpirun, "python": wanted.python, "folder": wanted.folder, "daemon": daemon,
        "program": wanted.program or "", "logs": wanted.logs or "", "packages": " ".join(PACKAGES),
        "names": " ".join(wanted.names), "path": wanted.path or "",
    }  # fmt: skip
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    # What hosts that are alike say alike comes first: ClusterShell keeps the beginnings that answers share once.
    parts = [f"echo '{START}'", f"echo @machine\n({MACHINE})\necho @own", assignments + _SCRIPT, f"({NETWORK})", PORTS]
    return "\n".join([*parts, f"echo '{END}'\n"])


_SCRIPT = r"""
LC_ALL=C; export LC_ALL
echo "@clock $(date +%s.%N)"
own=$(uname -n)
echo "@hostname $own"
limit=; ! command -v timeout >/dev/null 2>&1 || limit='timeout 8'
resolve() { echo "@name $1 $($limit getent ahosts "$1" 2>/dev/null | while read -r ip _; do echo "$ip"; done | sort -u |
  tr '\n' ' ')"; }
if command -v getent >/dev/null 2>&1; then  # all at once, as a name that nobody knows takes seconds
  for name in "$own" $names; do resolve "$name" & done
fi
if [ -f "$mpirun" ] && [ -x "$mpirun" ]; then
  echo "@mpirun $("$mpirun" --version 2>/dev/null </dev/null | while read -r line; do echo "$line"; break; done)"
fi
[ ! -f "${mpirun%/*}/$daemon" ] || [ ! -x "${mpirun%/*}/$daemon" ] || echo "@daemon"
if [ -x "$python" ]; then
  "$python" -I -c '
import importlib.metadata as m, site, sys
sys.path.append(site.getusersitepackages())
print("@python", sys.version.split()[0])
for name in sys.argv[1:]:
    try:
        found = m.distribution(name)
        print("@package", name, found.version, found.locate_file(""))
    except m.PackageNotFoundError:
        pass
' $packages </dev/null 2>/dev/null
fi
[ ! -d "$folder" ] || { echo "@folder"; cd "$folder"; }
case $program in
  '') ;;
  *.py) [ ! -r "$program" ] || echo "@content $(cksum <"$program")" ;;
  *) found=$(PATH=${path:-$PATH}; command -v "$program" 2>/dev/null) && echo "@program $found" ;;
esac
driver=/proc/driver/nvidia/version
[ ! -r $driver ] || { read -r line <$driver; echo "@driver $line"; }
room() { df -Pk "$2" 2>/dev/null | { read -r _; read -r _ _ _ free _ && echo "@room $1 $free $2"; }; }
[ ! -d /dev/shm ] || room shm /dev/shm
room temporary "${TMPDIR:-/tmp}"
while [ -n "$logs" ] && [ ! -d "$logs" ]; do logs=${logs%/*}; done
[ -z "$logs" ] || room logs "$logs"
echo "@limit memlock $(ulimit -l 2>/dev/null)"
echo "@limit files $(ulimit -n 2>/dev/null)"
here=$(readlink /proc/self/ns/net)
for environment in $(grep -lsaz '^DDLRUN_RUN=' /proc/[0-9]*/environ 2>/dev/null); do
  process=${environment%/environ}
  [ -O "$process" ] && [ "$(readlink "$process/ns/net")" = "$here" ] || continue
  run=$(tr '\0' '\n' <"$environment" | sed -n 's/^DDLRUN_RUN=//p')
  [ "$run" = "${DDLRUN_RUN-}" ] || [ -z "$run" ] ||
    echo "@left ${process##*/} ${run:--} $(tr '\0\n' '  ' <"$process/cmdline")"
done 2>/dev/null
wait
"""


def parse_facts(text: str, host: str, alike: dict[str, Machine] | None = None) -> HostFacts:
    r"""Parse what `facts_script` printed on `host`. Raises HostError where its end is missing.

    `alike` keeps the machines of hosts that say the same, which then share one object.

    >>> parse_facts("hello\n@facts begin\n@hostname h1\n@facts end", "h1").noise
    ('hello',)
    """
    before, section, own = _parts(text, host)
    said = _said(own)
    first = {key: values[0] for key, values in said.items()}
    rooms = {words[0]: words[1:] for words in map(str.split, said.get("room", ())) if len(words) > 2}
    limits = dict(value.partition(" ")[::2] for value in said.get("limit", ()))
    return HostFacts(
        noise=tuple(line for line in before.splitlines() if line.strip()),
        clock=_float(first.get("clock", "")),
        hostname=first.get("hostname", ""),
        addresses=parse_addresses(own),
        names={words[0]: tuple(words[1:]) for words in map(str.split, said.get("name", ())) if words},
        mpirun=first.get("mpirun"),
        daemon="daemon" in said,
        python=first.get("python"),
        packages={value.split(" ", 1)[0]: value.partition(" ")[2] for value in said.get("package", ())},
        folder="folder" in said,
        program=_program(first),
        machine=_machine(section, host, {} if alike is None else alike),
        driver=_version(first.get("driver", "")),
        shm=_free(rooms.get("shm")),
        temporary=(" ".join(rooms["temporary"][1:]) if "temporary" in rooms else "", _free(rooms.get("temporary"))),
        logs=_free(rooms.get("logs")),
        memlock=limits.get("memlock", ""),
        files=limits.get("files", ""),
        leftovers=tuple(_leftovers(said.get("left", ()))),
        ports=parse_ports(first.get("ports", "")),
    )


def _parts(text: str, host: str) -> tuple[str, str, str]:
    """Return what was printed before the facts, what the machine is, and the host's own facts."""
    before, begun, rest = text.rpartition(f"{START}\n")
    body, ended, _ = rest.partition(f"\n{END}")
    if not begun or not ended:
        raise HostError(host, f"its answer stops after {len(text)} characters ({text[-60:]!r}); try again")
    section, _, own = body.removeprefix("@machine\n").rpartition("@own\n")
    return before, section, own


def _said(body: str) -> dict[str, list[str]]:
    """Return what follows each `@key`, line by line."""
    said: dict[str, list[str]] = {}
    for line in body.splitlines():
        key, _, value = line.partition(" ")
        if key.startswith("@"):
            said.setdefault(key[1:], []).append(value.strip())
    return said


def _float(text: str) -> float | None:
    try:
        return float(text.replace(".N", ".0").replace(".%N", ".0"))  # a date without nanoseconds
    except ValueError:
        return None


def _program(first: Mapping[str, str]) -> FileDigest | str | None:
    words = first.get("content", "").split()
    if len(words) == 2 and all(map(str.isdigit, words)):
        return FileDigest(int(words[1]), int(words[0]))
    return first.get("program")


def _machine(section: str, host: str, alike: dict[str, Machine]) -> Machine | None:
    kind = machine_kind(section)
    try:
        return alike.get(kind) or alike.setdefault(kind, parse_sysfs(section, host))
    except HostError:
        return None


def _version(line: str) -> str | None:
    """Return the version in the first line of /proc/driver/nvidia/version.

    >>> _version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023")
    '535.129.03'
    """
    return next((word for word in line.split() if word[0].isdigit() and "." in word and ":" not in word), None)


def _free(room: Sequence[str] | None) -> int | None:
    return int(room[0]) if room and room[0].isdigit() else None


def _leftovers(lines: Sequence[str]) -> "list[LeftoverProcess]":
    found = [line.split(" ", 2) for line in lines]
    return [
        LeftoverProcess(int(pid), run, command)
        for pid, run, command in (f for f in found if len(f) == 3)
        if pid.isdigit()
    ]
