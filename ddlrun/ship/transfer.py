"""The transfer of a job's files to all its hosts, and the checks that must pass before."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddlrun.errors import PreflightError, UnreachableError
from ddlrun.hosts import fold
from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.environment import Interpreter
from ddlrun.ship.host.main import glibc
from ddlrun.ship.host.protocol import HostState
from ddlrun.ship.request import ShipRequest
from ddlrun.ship.server import Problems, TransferPlan, TransferServer
from ddlrun.units import render_memory
from ddlrun.wording import printable


@dataclass(frozen=True, slots=True)
class ShippedRun:
    """The run whose files travel."""

    request: ShipRequest
    run_id: str
    python: str
    """The Python under which hosts receive files, where they have it."""
    interpreter: Interpreter | None
    """The interpreter that an environment needs on each host; None: it needs none, or no environment travels."""
    seconds: float
    """The time in which hosts must answer."""


def transfer(plan: TransferPlan, run: ShippedRun, reach: ProbeTarget) -> TransferServer:
    """Put the archives on all hosts that do not have them, and make the folder of the run there; return the server.

    Raises:
        PreflightError: A host lacks space or the interpreter, or a file has changed meanwhile.
        UnreachableError: A host could not be reached, or failed.
    """
    sources = [
        {
            "digest": archive.digest, "path": archive.source.path, "whole": archive.source.whole,
            "space": archive.space,
        }
        for archive in plan.archives
    ]  # fmt: skip
    task = {
        "action": "receive",
        "folder": run.request.folder,
        "run": run.run_id,
        "working_folder": run.request.working_folder,
        "fetched": run.request.fetched,
        "seconds": run.seconds,
        "only_check": plan.only_check,
        "sources": sources,
    }
    server = TransferServer(plan, lambda states: judge(states, plan, run), run.seconds)
    reports = server.run(task, run.python, reach)
    if server.problems:
        raise PreflightError(*server.problems)
    if server.error is not None:
        raise server.error
    _raise_failures({host: str(report["error"]) for host, report in reports.items() if "error" in report}, server)
    return server


def judge(states: Mapping[str, HostState], plan: TransferPlan, run: ShippedRun) -> Problems:
    """Return the problems of hosts for which nothing is transferred: too little space, or no suitable interpreter."""
    problems = []
    for host, state in states.items():
        if state.error:
            problems.append(f"host {host}: `--ship`: {printable(state.error)}")
            continue
        needed = sum(archive.space for archive in plan.archives if archive.digest in state.missing)
        if needed > state.free:
            problems.append(
                f"host {host}: {run.request.folder} has {render_memory(state.free)} free, and the files need "
                f"{render_memory(needed)}; name another folder: `--ship-dir`, or remove files: ddlrun clean "
                "--shipped-days"
            )
        if run.request.environment is not None:
            problems += _judge_python(host, state, run.interpreter)
    return problems


def _judge_python(host: str, state: HostState, interpreter: Interpreter | None) -> list[str]:
    """Return the problem of a host on which the environment would not work."""
    here = glibc()
    if interpreter is not None and state.python != interpreter.path:
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


def _raise_failures(failures: Mapping[str, str], server: TransferServer) -> None:
    """Raise UnreachableError with the hosts that failed; where some have not even greeted, with these alone."""
    silent = {host: reason for host, reason in failures.items() if host not in server.states}
    alike: dict[str, list[str]] = {}
    for host, reason in (silent or failures).items():
        alike.setdefault(reason, []).append(host)
    if alike:
        raise UnreachableError(*(f"host {fold(hosts)}: `--ship`: {reason}" for reason, hosts in alike.items()))
