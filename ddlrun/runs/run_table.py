"""Tables and JSON of ddlrun ps: runs and their processes."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.hosts import fold
from ddlrun.runs.orphans import OrphanProcess
from ddlrun.runs.registry import Run

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.runs.records import RunsRecord

COMMAND_WIDTH = 100


class RunProcesses(NamedTuple):
    """A run and its processes on the hosts that have any; `run` is None where it was started elsewhere."""

    run_id: str
    run: Run | None
    processes: Mapping[str, Sequence[OrphanProcess]]

    @property
    def is_over(self) -> bool:
        """Return True if the run has ended and left no process."""
        return self.run is not None and self.run.alive() is False and not self.processes


def render_runs(runs: Sequence[Run], processes: Mapping[str, Sequence[OrphanProcess]]) -> str:
    """Render the runs, each with its state and its processes per host."""
    grouped = _group(runs, processes)
    lines = [line for group in grouped if not group.is_over for line in _lines(group)]
    over = len([group for group in grouped if group.is_over])
    if over:
        lines.append(f"ended runs without processes: {over}; ddlrun clean removes them from the list")
    return "".join(f"{line}\n" for line in lines or ["no runs"])


def render_runs_json(runs: Sequence[Run], processes: Mapping[str, Sequence[OrphanProcess]]) -> str:
    """Render the runs and all processes as JSON."""
    records: RunsRecord = {
        "schema": "urn:ddlrun:ps:1",
        "runs": [{**run._asdict(), "alive": run.alive()} for run in runs],
        "processes": {
            host: [{**process._asdict(), "keeper": process.keeper} for process in on_host]
            for host, on_host in processes.items()
        },
    }
    return json.dumps(records, indent=2) + "\n"


def _group(runs: Sequence[Run], processes: Mapping[str, Sequence[OrphanProcess]]) -> list[RunProcesses]:
    """Group processes by run: first the runs of the registry, then the others by their ids."""
    registered = {run.run: run for run in runs}
    others = {process.run for on_host in processes.values() for process in on_host} - set(registered)
    return [
        RunProcesses(run_id, registered.get(run_id), _select(run_id, processes))
        for run_id in (*registered, *sorted(others))
    ]


def _select(run_id: str, processes: Mapping[str, Sequence[OrphanProcess]]) -> dict[str, list[OrphanProcess]]:
    """Return the processes of a run by host, without hosts that have none."""
    selected = {host: [process for process in on_host if process.run == run_id] for host, on_host in processes.items()}
    return {host: on_host for host, on_host in selected.items() if on_host}


def _lines(group: RunProcesses) -> list[str]:
    run = group.run
    since = f", since {_format_time(run.started)}" if run else ""
    lines = [f"{group.run_id}: {_describe_state(group)}{since}"]
    if run:
        ranks = {rank for on_host in group.processes.values() for rank in _ranks(on_host)}
        lines.append(f"  {' '.join(run.program)[:COMMAND_WIDTH]}")
        lines.append(f"  ranks seen: {len(ranks)} of {run.ranks}; logs: {run.run_dir}")
    for host, on_host in group.processes.items():
        noun = "process" if len(on_host) == 1 else "processes"
        lines.append(f"  {host}: {len(on_host)} {noun}, ranks {','.join(map(str, _ranks(on_host))) or 'none'}")
    return lines


def _ranks(processes: Sequence[OrphanProcess]) -> list[int]:
    return sorted({process.rank for process in processes if process.rank is not None})


def _describe_state(group: RunProcesses) -> str:
    run = group.run
    alive = run.alive() if run else None
    if run and alive:
        return f"running, ddlrun is process {run.pid} on {run.host}"
    if alive is None and any(process.supervised for on_host in group.processes.values() for process in on_host):
        return f"running, started on {run.host}" if run else "running, started elsewhere"
    if group.processes:
        return f"ended, but left processes on {fold(group.processes)}: ddlrun clean {fold(group.processes)}"
    return f"no processes found, started on {run.host}" if run else "no processes found"


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
