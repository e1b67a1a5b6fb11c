"""The runs that `ddlrun runs` lists, with their processes on hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlrun.runs.history import PastRun, PastRunState, find_folder, read_history, read_past_run
from ddlrun.runs.orphans import OrphanProcess
from ddlrun.runs.registry import Run, read_runs

ProcessesByHost = Mapping[str, Sequence[OrphanProcess]]


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run with its processes; `past` is None where it was started elsewhere."""

    name: str
    past: PastRun | None
    processes: ProcessesByHost
    """Host -> processes, without hosts that have none."""

    @property
    def state(self) -> PastRunState:
        """The state: that of its record, unless its processes tell more."""
        known = PastRunState.UNKNOWN if self.past is None else self.past.state
        if known is not PastRunState.UNKNOWN or not self.processes:
            return known
        members = [process for on_host in self.processes.values() for process in on_host]
        return PastRunState.RUNNING if any(process.supervised for process in members) else PastRunState.LOST

    @property
    def ranks_seen(self) -> set[int]:
        """The ranks of its processes."""
        members = (process for on_host in self.processes.values() for process in on_host)
        return {process.rank for process in members if process.rank is not None}


def list_runs(state: str, most: int | None, processes: ProcessesByHost) -> list[ListedRun]:
    """Return up to `most` runs of a state folder, and all that have processes: first those that run or have any."""
    past = {run.run.run: run for run in read_history(state, most)}
    members = {process.run for on_host in processes.values() for process in on_host}
    registered = {run.run: _as_past(run) for run in read_runs(state) if run.run in members or run.alive()}
    others = {name: _read(name, state) or registered.get(name) for name in (members | registered.keys()) - past.keys()}
    known = {**past, **others}
    listed = [ListedRun(name, run, _select(name, processes)) for name, run in known.items()]
    return sorted(listed, key=_order, reverse=True)


def _read(name: str, state: str) -> PastRun | None:
    folder = find_folder(name, state)
    past = None if folder is None else read_past_run(folder)
    return past if past and past.run.run == name else None


def _as_past(run: Run) -> PastRun:
    """Return a run of which there is no more than its record, as after a full disk."""
    return PastRun(run, run.run_dir, (), "", exit_code=None, seconds=None, requested=False)


def _select(name: str, processes: ProcessesByHost) -> ProcessesByHost:
    selected = {host: [process for process in on_host if process.run == name] for host, on_host in processes.items()}
    return {host: on_host for host, on_host in selected.items() if on_host}


def _order(run: ListedRun) -> tuple[bool, bool, float, str]:
    started = 0.0 if run.past is None else run.past.run.started
    return run.state is PastRunState.RUNNING, bool(run.processes), started, run.name
