"""The plan of a transfer to all hosts of a job, the checks that must pass before, and the order of the hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddlrun.ship.archive import Archive
from ddlrun.ship.environment import Interpreter
from ddlrun.ship.host.main import glibc
from ddlrun.ship.host.protocol import HostState
from ddlrun.ship.request import ShipRequest
from ddlrun.units import render_memory
from ddlrun.wording import printable


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
