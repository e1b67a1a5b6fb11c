"""Facts of all hosts -> findings: what is wrong where, and what mends it."""

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ddlrun.hosts import fold
from ddlrun.preflight.facts import FactsRequest, FileDigest, HostFacts
from ddlrun.report.machines import differences

SHM = "/dev/shm"  # noqa: S108 - a name
LEAST_SHM = 64 << 10  # KiB: the 64 MiB that Docker gives a container, in which Open MPI and DataLoader workers die
LEAST_DISK = 100 << 10
LEAST_FILES = 1024
LEAST_MEMLOCK = 64 << 10
MOST_CLOCK = 1.0
T = TypeVar("T", bound=Hashable)
OK, WARNING, FAILURE = "ok", "warning", "failure"


class PreflightFinding(NamedTuple):
    """What one check says of one host; `level` is ok, warning or failure."""

    host: str
    check: str
    level: str
    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """What is wrong and what mends it."""
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class PreflightFacts(NamedTuple):
    """All that is judged: each host's facts, this machine's own, what was asked, and between which times."""

    hosts: Mapping[str, HostFacts]
    here: HostFacts
    here_name: str
    wanted: FactsRequest
    daemon: str
    asked: tuple[float, float]
    """When the hosts were asked and when the last had answered, by this machine's clock."""


Check = Callable[[PreflightFacts], Iterator[PreflightFinding]]


def noise(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find shells that print something when nobody sits before them."""
    for host, facts in seen.hosts.items():
        if facts.noise:
            remedy = "guard it in its ~/.bashrc: case $- in *i*) ... ;; esac"
            yield PreflightFinding(
                host,
                "shell",
                WARNING,
                f"its shell prints {facts.noise[0][:60]!r}, also into every job's output",
                remedy,
            )


def names(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts that do not find another by its name, or themselves."""
    known = {**seen.hosts, seen.here_name: seen.here}
    owners = _owners(known)
    place = {name: number for number, name in enumerate(seen.wanted.names)}
    for host, facts in seen.hosts.items():
        for name in sorted(filter(place.__contains__, facts.names), key=place.__getitem__):
            if name not in known or name in ("localhost", host):
                continue  # what cannot be reached at all is told already
            found = facts.names[name]
            fix = f"correct its /etc/hosts or DNS: getent hosts {name}"
            if not found:
                yield PreflightFinding(host, "names", FAILURE, f"does not resolve {name}", fix)
            elif wrong := _not_its(found, known[name], owners, seen.here.names.get(name, ())):
                yield PreflightFinding(host, "names", FAILURE, f"resolves {name} to {found[0]}, {wrong}", fix)
        yield from _own_name(host, facts)


def _own_name(host: str, facts: HostFacts) -> Iterator[PreflightFinding]:
    found = facts.names.get(facts.hostname)
    if found is None or not facts.addresses:
        return
    fix = f"give {facts.hostname} its own address in its /etc/hosts"
    if not found:
        yield PreflightFinding(host, "names", WARNING, f"does not resolve its own name {facts.hostname}", fix)
    elif all(_loopback(ip) for ip in found):
        what = f"resolves its own name {facts.hostname} to {found[0]}: Gloo and others then listen to nobody else"
        yield PreflightFinding(host, "names", WARNING, what, f"{fix} instead of {found[0]}")
    elif not {*found} & {one.ip for one in facts.addresses} and not any(map(_loopback, found)):
        yield PreflightFinding(
            host, "names", FAILURE, f"resolves its own name to {found[0]}, which is not its own", fix
        )


def _owners(known: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return whose each address is: the first one's that has it."""
    found: dict[str, str] = {}
    for host, facts in known.items():
        for one in facts.addresses:
            found.setdefault(one.ip, host)
    return found


def _not_its(found: tuple[str, ...], its: HostFacts, owners: Mapping[str, str], here: Sequence[str]) -> str | None:
    """Say whose the addresses are that a name should not have; None: they are its own, or what is found `here`."""
    own = {one.ip for one in its.addresses if not _loopback(one.ip)}
    if not own or own & {*found} or {*found} & {*here} - {*filter(_loopback, found)}:
        return None
    if _loopback(found[0]):
        return "which is itself"
    owner = owners.get(found[0])
    return f"which is {owner}" if owner else f"which is none of its addresses ({', '.join(sorted(own))})"


def _loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback


def mpi(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the same Open MPI at the same path."""
    folder = seen.wanted.mpirun.rpartition("/")[0]
    for host, facts in seen.hosts.items():
        if not facts.daemon:
            what = f"{folder}/{seen.daemon} is not there: mpirun starts it by this path"
            yield PreflightFinding(
                host, "mpi", FAILURE, what, "install the same Open MPI at the same path, or name one: --mpirun"
            )
        elif facts.mpirun is None:
            what = f"{seen.wanted.mpirun} is not there or cannot be run"
            yield PreflightFinding(
                host, "mpi", FAILURE, what, "install the same Open MPI at the same path, or name one: --mpirun"
            )
        elif facts.mpirun != seen.here.mpirun:
            what = f"{seen.wanted.mpirun} is {facts.mpirun!r}, here it is {seen.here.mpirun!r}"
            yield PreflightFinding(
                host, "mpi", FAILURE, what, "install the same version, or name one that all have: --mpirun"
            )


def python(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the same Python at the same path, or with other packages."""
    for host, facts in seen.hosts.items():
        if facts.python is None:
            what = f"{seen.wanted.python} is not there or cannot be run"
            yield PreflightFinding(
                host, "python", FAILURE, what, "install it there, or put it on a file system that all share"
            )
        elif seen.here.python and _minor(facts.python) != _minor(seen.here.python):
            what = f"Python {facts.python} at {seen.wanted.python}, here it is {seen.here.python}"
            yield PreflightFinding(host, "python", FAILURE, what, "install the same version there")
    for name in sorted({name for facts in seen.hosts.values() for name in facts.packages}):
        versions = {
            host: facts.packages.get(name, "").partition(" ")[0] or None
            for host, facts in seen.hosts.items() if facts.python
        }  # fmt: skip
        for host, version, usual, most in _odd(versions):
            what = f"{name} {version or 'is missing'}, {most} {usual or 'none'}"
            fix = f"{seen.wanted.python} -m pip install {name}=={usual}" if usual else f"remove {name} there"
            yield PreflightFinding(host, "python", FAILURE, what, fix)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def files(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the working folder, or without the same script."""
    wanted, here = seen.wanted, seen.here.program
    share = "copy it there, or put it on a file system that all hosts share"
    for host, facts in seen.hosts.items():
        if not facts.folder:
            yield PreflightFinding(host, "files", FAILURE, f"working folder {wanted.folder} is not there", share)
        elif wanted.program and facts.program is None and here is not None:
            yield PreflightFinding(host, "files", FAILURE, f"{wanted.program} is not there", share)
        elif isinstance(here, FileDigest) and isinstance(facts.program, FileDigest) and facts.program != here:
            what = f"{wanted.program} is another file: {facts.program.size} bytes, here it has {here.size}"
            if facts.program.size == here.size:
                what = f"{wanted.program} has another content than here (checksum {facts.program.checksum})"
            yield PreflightFinding(
                host, "files", FAILURE, what, f"copy it there: scp {wanted.program} {host}:{wanted.folder}/"
            )


def machine(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts with other cores, GPUs or drivers than most."""
    for host, facts in seen.hosts.items():
        if facts.machine is None:
            yield PreflightFinding(
                host, "machine", WARNING, "its cores could not be read", "describe the hosts: --machine"
            )
    for host, found, usual, most in _odd({host: facts.machine for host, facts in seen.hosts.items() if facts.machine}):
        if found and usual:
            what = f"{'; '.join(differences(found, usual))}, as {most}"
            yield PreflightFinding(host, "machine", WARNING, what, "leave the host out, or see: ddlrun show placement")
    for host, driver, other, most in _odd({host: facts.driver for host, facts in seen.hosts.items()}):
        what = f"NVIDIA driver {driver or 'is missing'}, {most} {other or 'none'}"
        yield PreflightFinding(host, "machine", FAILURE, what, "install the same driver on all hosts")


def limits(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without room for shared memory, locked memory where RDMA wants it, or open files."""
    for host, facts in seen.hosts.items():
        if facts.shm is not None and facts.shm < LEAST_SHM:
            what = f"{SHM} has {_size(facts.shm)} free, {_size(LEAST_SHM)} are needed"
            fix = "empty it, mount -o remount,size=50% /dev/shm, or in a container: --shm-size=8g (--ipc=host)"
            yield PreflightFinding(host, "limits", FAILURE, what, fix)
        rdma = facts.machine.rdma_devices if facts.machine else None
        if rdma and facts.memlock.isdigit() and int(facts.memlock) < LEAST_MEMLOCK:
            what = f"only {_size(int(facts.memlock))} may be locked (ulimit -l), and {rdma[0]} is RDMA"
            fix = "'* - memlock unlimited' in /etc/security/limits.conf, and LimitMEMLOCK=infinity for sshd or slurmd"
            yield PreflightFinding(host, "limits", FAILURE, what, fix)
        if facts.files.isdigit() and int(facts.files) < LEAST_FILES:
            what = f"only {facts.files} files may be open (ulimit -n)"
            yield PreflightFinding(host, "limits", FAILURE, what, "'* - nofile 65536' in /etc/security/limits.conf")


def clock(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find clocks that differ from this machine's, as far as the round trip lets one tell."""
    begin, end = seen.asked
    for host, facts in seen.hosts.items():
        off = 0.0 if facts.clock is None else max(begin - facts.clock, facts.clock - end, 0.0)
        if facts.clock is not None and off > MOST_CLOCK:
            what = f"its clock is {off:.0f} s {'behind' if facts.clock < begin else 'ahead'}"
            yield PreflightFinding(
                host, "clock", FAILURE, what, "start chrony or systemd-timesyncd there: timedatectl set-ntp true"
            )


def leftovers(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find what is left of earlier runs."""
    for host, facts in seen.hosts.items():
        runs: dict[str, list[str]] = {}
        watched = {one.run for one in facts.leftovers if "/ddlrun/rank/start.py" in one.command}  # keepers: it runs
        for one in (one for one in facts.leftovers if one.run not in watched):
            runs.setdefault(one.run, []).append(f"{one.pid} ({one.command[:40].strip()})")
        for run, found in runs.items():
            more = f" and {len(found) - 2} more" if len(found) > 2 else ""
            what = f"run {run} left process {', '.join(found[:2])}{more}"
            yield PreflightFinding(
                host, "leftovers", WARNING, what, f"if it is not another job of yours: ddlrun clean {host}"
            )


def disk(seen: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without room for temporary files, or this one for logs."""
    for host, facts in seen.hosts.items():
        folder, free = facts.temporary
        if free is not None and free < LEAST_DISK:
            what = f"{folder} has {_size(free)} free, {_size(LEAST_DISK)} are needed"
            yield PreflightFinding(host, "disk", FAILURE, what, "empty it, or name another folder there: TMPDIR")
    if seen.here.logs is not None and seen.here.logs < LEAST_DISK:
        what = f"this machine has {_size(seen.here.logs)} free for the run folder {seen.wanted.logs}"
        yield PreflightFinding(seen.here_name, "disk", WARNING, what, "empty it, or name another with --run-dir")


def _have(hosts: list[str]) -> str:
    return f"{fold(hosts)} ha{'s' if len(hosts) == 1 else 've'}"


def _size(kib: int) -> str:
    return f"{kib} KiB" if kib < 1024 else (f"{kib >> 10} MiB" if kib < 1 << 20 else f"{kib >> 20} GiB")


def _odd(values: Mapping[str, T]) -> Iterator[tuple[str, T, T, str]]:
    """Yield each host that has another value than most, with its own, theirs, and who they are, as "HOSTS have"."""
    if not values:
        return
    usual = Counter(values.values()).most_common(1)[0][0]
    odd = [host for host, value in values.items() if value != usual]
    most = _have([host for host, value in values.items() if value == usual]) if odd else ""
    yield from ((host, values[host], usual, most) for host in odd)


# Name -> check, in the order of the table; ssh and tcp come from the edge.
CHECKS: dict[str, Check] = {
    "shell": noise, "names": names, "mpi": mpi, "python": python, "files": files, "machine": machine,
    "limits": limits, "clock": clock, "leftovers": leftovers, "disk": disk,
}  # fmt: skip
NAMES = ("ssh", *CHECKS, "network", "tcp")


def judge(seen: PreflightFacts, only: frozenset[str] = frozenset(NAMES)) -> list[PreflightFinding]:
    """Return what every check says of every host: its findings, or that all is well."""
    found: list[PreflightFinding] = []
    for name, check in CHECKS.items():
        if name in only:
            said = list(check(seen))
            bad = {one.host for one in said}
            found += said
            found += [PreflightFinding(host, name, OK, "ok") for host in seen.hosts if host not in bad]
    return found
