"""Checks of the facts of all hosts: each yields findings about the hosts that do not pass."""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ddlrun.hosts import fold
from ddlrun.preflight.facts import FactsRequest, FileDigest, HostFacts, LeftoverProcess
from ddlrun.preflight.findings import FindingCode, PreflightFinding
from ddlrun.preflight.identity import CHECK as IDENTITY
from ddlrun.preflight.identity import check_identity
from ddlrun.preflight.name_resolution import check_names
from ddlrun.report.machines import differences
from ddlrun.units import render_memory

SHM = "/dev/shm"  # noqa: S108 - a name
# In KiB: Docker gives a container 64 MiB, in which MPI and DataLoader workers fail.
LEAST_SHM = 64 << 10
LEAST_DISK = 100 << 10
LEAST_FILES = 1024
LEAST_MEMLOCK = 64 << 10
LEAST_AGENT_PYTHON = (3, 8)
MOST_CLOCK = 1.0
MOST_SHOWN = 60
T = TypeVar("T", bound=Hashable)


class PreflightFacts(NamedTuple):
    """The facts of all hosts and of this machine, the request, and the time of the probe.

    `here_name` is this machine's name, `interval` the times at which the hosts were queried and the last one had
    replied, by this machine's clock.
    """

    hosts: Mapping[str, HostFacts]
    here: HostFacts
    here_name: str
    request: FactsRequest
    interval: tuple[float, float]

    def without(self, names: Container[str]) -> "PreflightFacts":
        """Return the facts without some hosts."""
        return self._replace(hosts={host: own for host, own in self.hosts.items() if host not in names})


Check = Callable[[PreflightFacts], Iterator[PreflightFinding]]


def check_aliases(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts that are listed under two names."""
    return check_identity(facts.hosts, FindingCode.SAME_HOST)


def check_shell(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find shells that print something in sessions that are not interactive."""
    for host, host_facts in facts.hosts.items():
        if host_facts.noise:
            values = {"text": repr(host_facts.noise[0][:MOST_SHOWN])}
            yield PreflightFinding(host, "shell", FindingCode.SHELL_PRINTS, values)


def check_resolution(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts that do not resolve the name of another host, or their own, to its address."""
    return check_names(facts.hosts, facts.here_name, facts.here, facts.request.names)


def check_mpi(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the process manager, in the same version at the same path."""
    path = facts.request.manager
    values = {"path": path, "folder": path.rpartition("/")[0], "daemon": facts.request.daemon}
    for host, host_facts in facts.hosts.items():
        if not host_facts.daemon:
            yield PreflightFinding(host, "mpi", FindingCode.NO_DAEMON, values)
        elif host_facts.manager is None:
            yield PreflightFinding(host, "mpi", FindingCode.NO_MANAGER, values)
        elif host_facts.manager != facts.here.manager:
            versions = {"version": repr(host_facts.manager), "expected": repr(facts.here.manager)}
            yield PreflightFinding(host, "mpi", FindingCode.OTHER_MANAGER, {**values, **versions})
        libraries = host_facts.mpi_libraries
        if facts.request.library and libraries and facts.request.library not in libraries:
            names = {"python": facts.request.python, "library": " or ".join(libraries)}
            yield PreflightFinding(host, "mpi", FindingCode.OTHER_MPI4PY, names)


def check_python(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the same Python at the same path, or with other packages."""
    python = facts.request.python
    for host, host_facts in facts.hosts.items():
        if host_facts.python is None:
            yield PreflightFinding(host, "python", FindingCode.NO_PYTHON, {"python": python})
        elif facts.here.python and _minor(host_facts.python) != _minor(facts.here.python):
            values = {"python": python, "version": host_facts.python, "expected": facts.here.python}
            yield PreflightFinding(host, "python", FindingCode.OTHER_PYTHON, values)
        elif facts.request.encryption and not host_facts.encryption:
            values = {"python": python, "folder": facts.request.encryption}
            yield PreflightFinding(host, "python", FindingCode.NO_ENCRYPTION, values)
    with_python = {host: host_facts for host, host_facts in facts.hosts.items() if host_facts.python}
    for name in sorted({name for host_facts in facts.hosts.values() for name in host_facts.packages}):
        versions = {
            host: host_facts.packages.get(name, "").partition(" ")[0] for host, host_facts in with_python.items()
        }
        for host, version, expected, others in _deviations(versions):
            values = {"python": python, "package": name, "version": version, "expected": expected, "others": others}
            yield PreflightFinding(host, "python", _package_code(version, expected), values)


def check_agent(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without a Python for ddlrun's agent."""
    if not facts.request.agents:
        return
    for host, host_facts in facts.hosts.items():
        values = {"python": facts.request.python, "version": host_facts.agent_python}
        if not host_facts.agent_python:
            yield PreflightFinding(host, "agent", FindingCode.NO_AGENT_PYTHON, values)
        elif tuple(map(int, _minor(host_facts.agent_python))) < LEAST_AGENT_PYTHON:
            yield PreflightFinding(host, "agent", FindingCode.OLD_AGENT_PYTHON, values)


def check_container(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the runtime or the image of the container."""
    container = facts.request.container
    if container is None:
        return
    values = {"runtime": container.program, "image": container.image, "remedy": container.remedy}
    for host, host_facts in facts.hosts.items():
        if not host_facts.container:
            yield PreflightFinding(host, "container", FindingCode.NO_RUNTIME, values)
        elif host_facts.container != "image":
            yield PreflightFinding(host, "container", FindingCode.NO_IMAGE, values)


def _package_code(version: str, expected: str) -> FindingCode:
    if not expected:
        return FindingCode.ODD_PACKAGE
    return FindingCode.OTHER_PACKAGE if version else FindingCode.NO_PACKAGE


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def check_files(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without the working folder, or without the same script."""
    request, here = facts.request, facts.here.program
    values = {"program": request.program, "folder": request.folder}
    for host, host_facts in facts.hosts.items():
        program = host_facts.program
        if not host_facts.folder:
            yield PreflightFinding(host, "files", FindingCode.NO_FOLDER, values)
        elif request.program and program is None and here is not None:
            yield PreflightFinding(host, "files", FindingCode.NO_PROGRAM, values)
        elif isinstance(here, FileDigest) and isinstance(program, FileDigest) and program != here:
            if program.size == here.size:
                code, difference = FindingCode.OTHER_CONTENT, {"checksum": program.checksum}
            else:
                code, difference = FindingCode.OTHER_SIZE, {"size": program.size, "expected": here.size}
            yield PreflightFinding(host, "files", code, {**values, **difference})


def check_machine(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts with other cores, GPUs or drivers than most."""
    machines = {host: host_facts.machine for host, host_facts in facts.hosts.items() if host_facts.machine}
    for host in facts.hosts:
        if host not in machines:
            yield PreflightFinding(host, "machine", FindingCode.NO_CORES)
    for host, machine, usual, others in _deviations(machines):
        values = {"differences": "; ".join(differences(machine, usual)), "others": others}
        yield PreflightFinding(host, "machine", FindingCode.OTHER_MACHINE, values)
    for host, version, expected, others in _deviations({host: own.driver for host, own in facts.hosts.items()}):
        values = {"version": version or "is missing", "expected": expected or "none", "others": others}
        yield PreflightFinding(host, "machine", FindingCode.OTHER_DRIVER, values)


def check_limits(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts with too little shared memory, lockable memory for RDMA, or open files."""
    for host, host_facts in facts.hosts.items():
        if host_facts.shm is not None and host_facts.shm < LEAST_SHM:
            values = {
                "folder": SHM,
                "free": render_memory(host_facts.shm << 10),
                "needed": render_memory(LEAST_SHM << 10),
            }
            yield PreflightFinding(host, "limits", FindingCode.LITTLE_SHM, values)
        rdma = host_facts.machine.rdma_devices if host_facts.machine else None
        if rdma and host_facts.memlock.isdigit() and int(host_facts.memlock) < LEAST_MEMLOCK:
            values = {"limit": render_memory(int(host_facts.memlock) << 10), "device": rdma[0]}
            yield PreflightFinding(host, "limits", FindingCode.LOCKED_MEMORY, values)
        if host_facts.files.isdigit() and int(host_facts.files) < LEAST_FILES:
            yield PreflightFinding(host, "limits", FindingCode.OPEN_FILES, {"limit": host_facts.files})


def check_clock(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find clocks that differ from this machine's by more than the round trip explains."""
    begin, end = facts.interval
    for host, host_facts in facts.hosts.items():
        clock = host_facts.clock
        if clock is not None and begin - clock > MOST_CLOCK:
            yield PreflightFinding(host, "clock", FindingCode.CLOCK_BEHIND, {"seconds": round(begin - clock)})
        elif clock is not None and clock - end > MOST_CLOCK:
            yield PreflightFinding(host, "clock", FindingCode.CLOCK_AHEAD, {"seconds": round(clock - end)})


def check_leftovers(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find processes of earlier runs; a run that still has its keepers is not over."""
    for host, host_facts in facts.hosts.items():
        running = {process.run for process in host_facts.leftovers if process.is_keeper}
        runs: dict[str, list[LeftoverProcess]] = {}
        for process in host_facts.leftovers:
            if process.run not in running:
                runs.setdefault(process.run, []).append(process)
        for run, processes in runs.items():
            listed = ", ".join(f"{process.pid} ({process.command[:40].strip()})" for process in processes[:2])
            more = f" and {len(processes) - 2} more" if len(processes) > 2 else ""
            yield PreflightFinding(host, "leftovers", FindingCode.LEFTOVERS, {"run": run, "processes": listed + more})


def check_disk(facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Find hosts without a folder, or with too little space, for temporary files, and this machine's space for logs."""
    for host, host_facts in facts.hosts.items():
        if host_facts.unwritable is not None:
            values = {"folder": host_facts.unwritable}
            yield PreflightFinding(host, "disk", FindingCode.NO_TEMPORARY_FILES, values)
            continue
        folder, free = host_facts.temporary
        if free is not None and free < LEAST_DISK:
            values = {"folder": folder, "free": render_memory(free << 10), "needed": render_memory(LEAST_DISK << 10)}
            yield PreflightFinding(host, "disk", FindingCode.LITTLE_DISK, values)
    logs = facts.here.logs
    if logs is not None and logs < LEAST_DISK:
        values = {"folder": facts.request.logs or "", "free": render_memory(logs << 10)}
        yield PreflightFinding(facts.here_name, "disk", FindingCode.LITTLE_DISK_FOR_RUN, values)


def _deviations(values: Mapping[str, T]) -> Iterator[tuple[str, T, T, str]]:
    """Yield each host whose value is not the most common: (host, value, common value, "h[1,3] have")."""
    if not values:
        return
    usual = Counter(values.values()).most_common(1)[0][0]
    odd = [host for host, value in values.items() if value != usual]
    if odd:
        others = [host for host, value in values.items() if value == usual]
        clause = f"{fold(others)} {'has' if len(others) == 1 else 'have'}"
        yield from ((host, values[host], usual, clause) for host in odd)


# The checks of facts in the order of the table; those of ssh, the network and TCP are made in run.py.
CHECKS: dict[str, Check] = {
    IDENTITY: check_aliases, "shell": check_shell, "names": check_resolution, "mpi": check_mpi, "python": check_python,
    "agent": check_agent, "container": check_container, "files": check_files, "machine": check_machine,
    "limits": check_limits, "clock": check_clock, "leftovers": check_leftovers, "disk": check_disk,
}  # fmt: skip
NAMES = ("ssh", *CHECKS, "network", "tcp")


def judge(facts: PreflightFacts, only: frozenset[str] = frozenset(NAMES)) -> list[PreflightFinding]:
    """Return the findings of the checks in `only`, with one that passed for each host without problems.

    A host under a superfluous name gets no other finding than that.
    """
    findings: list[PreflightFinding] = []
    for name, check in CHECKS.items():
        if name in only:
            problems = list(check(facts))
            hosts_with_problems = {finding.host for finding in problems}
            findings += problems
            findings += (
                PreflightFinding(host, name, FindingCode.PASSED)
                for host in facts.hosts
                if host not in hosts_with_problems
            )
            if name == IDENTITY:
                facts = facts.without(hosts_with_problems)
    return findings
