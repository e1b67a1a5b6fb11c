"""The transfer of files to all hosts of a job: the checks that must pass before, and the order of the hosts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddlrun.errors import PreflightError, UnreachableError
from ddlrun.hosts import fold
from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.archive import Archive
from ddlrun.ship.environment import Interpreter
from ddlrun.ship.host.main import HostState, glibc
from ddlrun.ship.host.relay import has_zstd
from ddlrun.ship.request import ShipRequest
from ddlrun.ship.server import LONGEST_SECONDS, ArchiveServer, Chain, read, run_ship_tasks
from ddlrun.units import render_memory
from ddlrun.wire.frames import FrameError
from ddlrun.wording import printable

LEAST_COMPRESSED = 1 << 20


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The archives of a run, and the hosts in the order in which they pass them on."""

    request: ShipRequest
    archives: Sequence[Archive]
    hosts: Sequence[str]
    addresses: Sequence[str]
    """ddlrun's own addresses."""
    seconds: float
    """The time in which hosts have to report their states."""
    run_id: str = ""
    interpreter: Interpreter | None = None
    """The interpreter that an environment needs on each host; None: it needs none, or no environment travels."""
    racks: Mapping[str, object] = field(default_factory=dict)
    first: str | None = None
    """The host on which ddlrun runs, if it is one of them."""
    only_check: bool = False
    """Whether nothing is transferred."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What a transfer has found and done."""

    states: Mapping[str, HostState]
    """Host -> its state before the transfer."""
    chains: Sequence[Chain]
    """The chain of each archive."""

    @property
    def unread(self) -> bool:
        """Whether a host lacks an archive whose files were not looked at, so that nothing was sent."""
        return any(chain.hosts and chain.archive.entries is None for chain in self.chains)


def transfer(plan: TransferPlan, within: Callable[[float], ProbeTarget]) -> TransferResult:
    """Put the archives on all hosts that do not have them, and make the folder of the run there.

    `within` returns the way to hosts for tasks of some seconds.

    Raises:
        PreflightError: A host lacks space or the interpreter, or a file has changed meanwhile.
        UnreachableError: A host could not be reached, or failed.
    """
    task = {
        "folder": plan.request.folder,
        "run": plan.run_id,
        "working_folder": plan.request.working_folder,
        "fetched": plan.request.fetched,
        "only_check": plan.only_check,
        "interpreter": "" if plan.interpreter is None else plan.interpreter.path,
        "sources": [
            {
                "digest": archive.digest, "path": archive.source.path, "whole": archive.source.whole,
                "space": archive.space,
            }
            for archive in plan.archives
        ],
    }  # fmt: skip
    tasks = {host: {**task, "action": "examine"} for host in plan.hosts}
    reports = run_ship_tasks(tasks, within(plan.seconds))
    _raise_failures(reports)
    states = {host: _read_state(host, report) for host, report in reports.items()}
    problems = judge(states, plan)
    if problems:
        raise PreflightError(*problems)
    result = TransferResult(states, [_plan_chain(archive, states, plan) for archive in plan.archives])
    hosts = [host for host in plan.hosts if states[host].missing]
    if hosts and not (result.unread or plan.only_check):
        server = ArchiveServer(plan.addresses, plan.hosts, result.chains)
        reports = server.run({**task, "action": "receive"}, hosts, within(LONGEST_SECONDS))
        if server.error is not None:
            raise server.error
        _raise_failures(reports)
    return result


def _read_state(host: str, report: Mapping[str, object]) -> HostState:
    try:
        return read(report.get("state"), HostState)
    except FrameError as error:
        raise UnreachableError(f"host {host}: `--ship`: {error}") from error


def _raise_failures(reports: Mapping[str, Mapping[str, object]]) -> None:
    """Raise UnreachableError with the hosts that failed."""
    alike: dict[str, list[str]] = {}
    for host, report in reports.items():
        if "error" in report:
            alike.setdefault(str(report["error"]), []).append(host)
    if alike:
        raise UnreachableError(*(f"host {fold(hosts)}: `--ship`: {reason}" for reason, hosts in alike.items()))


def judge(states: Mapping[str, HostState], plan: TransferPlan) -> list[str]:
    """Return the problems of hosts for which nothing is transferred: too little space, or no suitable interpreter."""
    problems: list[str] = []
    for host, state in states.items():
        if state.error:
            problems.append(f"host {host}: `--ship`: {printable(state.error)}")
            continue
        needed = sum(archive.space for archive in plan.archives if archive.digest in state.missing)
        if needed > state.free:
            problems.append(
                f"host {host}: {plan.request.folder} has {render_memory(state.free)} free, and the files need "
                f"{render_memory(needed)}; name another folder: `--ship-dir`, or remove files: ddlrun clean "
                "--shipped-days"
            )
        if plan.request.environment is not None:
            problems += _judge_python(host, state, plan.interpreter)
    return problems


def _judge_python(host: str, state: HostState, interpreter: Interpreter | None) -> list[str]:
    """Return the problem of a host on which the environment would not work."""
    here = glibc()
    if interpreter is not None and not state.version:
        problem = f"no {interpreter.path}, on which the environment is based"
        remedy = "install it there, or make the environment with a Python that all hosts have"
    elif interpreter is not None and interpreter.version and state.version != interpreter.version:
        problem = f"{interpreter.path} is Python {_render(state.version)}, here {_render(interpreter.version)}"
        remedy = "make the environment with the same version"
    elif here and state.glibc and state.glibc < here:
        problem = f"glibc {_render(state.glibc)} is older than {_render(here)} here"
        remedy = "compiled packages may not load there; make the environment on that host"
    else:
        return []
    return [f"host {host}: `--ship` env: {problem}; {remedy}"]


def _render(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _plan_chain(archive: Archive, states: Mapping[str, HostState], plan: TransferPlan) -> Chain:
    """Return the chain of an archive, which is compressed if it is large, and goes over links to hosts with zstd."""
    hosts = chain_order([host for host in plan.hosts if archive.digest in states[host].missing], plan.racks, plan.first)
    remote = any(host != plan.first for host in hosts)
    compressed = archive.size >= LEAST_COMPRESSED and remote and has_zstd() and all(states[host].zstd for host in hosts)
    return Chain(archive, hosts, compressed)


def chain_order(hosts: Sequence[str], racks: Mapping[str, object], first: str | None) -> list[str]:
    """Return hosts in the order of the chain along which an archive travels; first that of ddlrun, if any.

    The hosts of a rack come one after the other, so that each uplink carries the archive once.

    >>> chain_order(["a", "b", "c", "d"], {"a": 0, "b": 1, "c": 0, "d": 1}, "d")
    ['d', 'b', 'a', 'c']
    """
    by_rack: dict[object, list[str]] = {}
    for host in sorted(hosts, key=lambda host: host != first):
        by_rack.setdefault(racks.get(host), []).append(host)
    return [host for rack in by_rack.values() for host in rack]
