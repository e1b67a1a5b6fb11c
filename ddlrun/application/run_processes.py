"""Processes and files of runs on hosts: listed, ended and removed, as for ddlrun runs, kill and clean."""

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ddlrun.application.inputs import open_links, reach, read_hosts, ssh_launcher
from ddlrun.application.reporter import Reporter
from ddlrun.errors import InputError, UnreachableError
from ddlrun.hosts import fold
from ddlrun.plan.run_dir import RunDir
from ddlrun.remote.links import HostLinks
from ddlrun.remote.probe import ProbeTarget, describe_failure, is_local, render_failures
from ddlrun.remote.processes import FinishedProcess
from ddlrun.runs.history import attempt_names, find_folder, may_run
from ddlrun.runs.leftovers import remove_leftovers
from ddlrun.runs.names import LAST, choose_name
from ddlrun.runs.orphans import OrphanProcess, end_runs, find_processes, orphans
from ddlrun.runs.registry import Run, forget_run, read_runs
from ddlrun.runs.retention import empty_trash, remove_old_runs
from ddlrun.runs.run_table import COMMAND_WIDTH
from ddlrun.runs.state_folders import find_path, newest_first
from ddlrun.runs.store import state_folder

CLEAN_GRACE_SECONDS = 2.0
# The time in which a host removes shipped files.
REMOVAL_SECONDS = 600.0
# Beyond the grace, which a run's ddlrun gives its ranks.
EXTRA_SECONDS = 10.0
POLL_SECONDS = 0.05
Options = Mapping[str, Any]
Processes = dict[str, list[OrphanProcess]]
Failures = Mapping[str, FinishedProcess]
Show = Callable[[str], object]


def list_processes(hosts: str | None, runs: Sequence[Run], options: Options) -> tuple[Processes, Failures]:
    """Return the processes of all runs on each host, and the replies of hosts that failed."""
    with _open_links(options) as links:
        return _list_processes(_choose_hosts(hosts, runs, options), reach(links, options["timeout"]))


def _list_processes(hosts: Sequence[str], target: ProbeTarget) -> tuple[Processes, Failures]:
    state = state_folder(os.environ)
    names = [name for folder in newest_first(state).values() for name in attempt_names(folder)]
    return find_processes(hosts, target, names)


def raise_failures(failed: Failures, options: Options) -> None:
    """Raise UnreachableError if hosts failed."""
    if failed:
        reasons = {name: describe_failure(reply) for name, reply in failed.items()}
        raise UnreachableError(*render_failures(reasons, shlex.join(ssh_launcher(options).shown)))


def _choose_hosts(hosts: str | None, runs: Sequence[Run], options: Options) -> Sequence[str]:
    """Return the named hosts, else this one and those of runs that were started here."""
    if hosts or options["hostfile"]:
        return read_hosts(hosts, options["hostfile"]).names
    run_hosts = dict.fromkeys(name for run in runs for name in run.hosts)
    return ("localhost", *(name for name in run_hosts if not is_local(name)))


def _open_links(options: Options) -> closing[HostLinks]:
    return closing(open_links(ssh_launcher(options)))


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """Runs that were ended."""

    names: Sequence[str]
    leftovers: Mapping[str, int]
    """Host -> processes that ddlrun had left there."""
    failed: Failures


def end_named_runs(texts: Sequence[str], options: Options) -> EndedRuns:
    """End runs: the ddlrun of each, then the processes that remain on its hosts. Raises InputError."""
    folder, grace = state_folder(os.environ), options["grace"]
    is_named = bool(options["hosts"] or options["hostfile"])
    hosts = read_hosts(options["hosts"], options["hostfile"], "-H").names if is_named else ()
    registered = {run.run: run for run in sorted(read_runs(folder), key=lambda run: run.started)}
    past = list(newest_first(folder))
    names = list(dict.fromkeys(_choose_active(text, registered, past, hosts) for text in texts))
    selected = [registered[name] for name in names if name in registered]
    for run in selected:
        _end_ddlrun(run, grace)
    runs_by_host: dict[str, list[str]] = {}
    for name in names:
        for host in registered[name].hosts if name in registered else hosts:
            runs_by_host.setdefault(host, []).append(name)
    with _open_links(options) as links:
        ended, failed = end_runs(runs_by_host, grace, reach(links, options["timeout"] + grace))
    unsearched = {name for host in failed for name in runs_by_host[host]}
    for run in selected:
        if run.run not in unsearched:
            forget_run(folder, run.run)
    return EndedRuns([name for name in names if name not in unsearched], ended, failed)


def _choose_active(text: str, registered: Mapping[str, Run], past: Sequence[str], hosts: Sequence[str]) -> str:
    """Return the name of the run to end, among runs in the order of their starts; on other hosts, it is given whole.

    A beginning that also means a run that has ended is ambiguous, as it is for the other commands. Raises InputError
    where there is no such run, or there are several.
    """
    if text == LAST and registered:
        going = [name for name, run in registered.items() if run.alive() is not False]
        return (going or list(registered))[-1]
    ended = [name for name in past if not any(run == name or run.startswith(f"{name}-") for run in registered)]
    name = choose_name(text, [*registered, *ended])
    if name not in registered and not hosts:
        raise InputError(_explain_inactive(text, name))
    return name or text


def _explain_inactive(text: str, name: str | None) -> str:
    """Return the reason why there is no run to end; `name` is that of a run that is not registered."""
    folder = None if name is None else find_folder(name, state_folder(os.environ))
    if folder is not None and not may_run(folder):
        return f"run {name}: it has ended; ddlrun clean ends processes that it left"
    return (
        f"run {text!r}: no run {'' if text == LAST else 'of this name '}that was started here is running; ddlrun runs "
        "lists those of this computer, ddlrun runs -H HOSTS those on HOSTS, and ddlrun kill -H HOSTS ends one of these"
    )


def _end_ddlrun(run: Run, grace: float) -> None:
    """Send SIGTERM to a run's ddlrun on this host, which then ends its ranks, and wait for its end."""
    if not run.alive():
        return
    os.kill(run.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace + EXTRA_SECONDS
    while run.alive() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def clean(hosts: str | None, options: Options, show: Show, reporter: Reporter) -> Failures:
    """End processes and remove files that earlier runs left; show each. Return the replies of hosts that failed."""
    names = _choose_hosts(hosts, read_runs(state_folder(os.environ)), options)
    with _open_links(options) as links:
        failed = _clean(names, options, reach(links, options["timeout"] + CLEAN_GRACE_SECONDS), show)
        if not options["dry_run"] and (options["shipped_days"] is not None or options["shipped_size"] is not None):
            from ddlrun.application.shipping import remove_shipped  # noqa: PLC0415 - 20 ms, for these options alone

            for line in remove_shipped(names, options, reach(links, options["timeout"] + REMOVAL_SECONDS), reporter):
                show(line)
    return failed


def _clean(hosts: Sequence[str], options: Options, target: ProbeTarget, show: Show) -> Failures:
    folder, dry_run = state_folder(os.environ), options["dry_run"]
    runs = read_runs(folder)
    processes, failed = _list_processes(hosts, target)
    over = _find_ended(folder, processes)
    by_host = {host: orphans(on_host, over) for host, on_host in processes.items()}
    leftovers = {host: by_run for host, by_run in by_host.items() if by_run}
    for host, by_run in leftovers.items():
        for process in (process for of_run in by_run.values() for process in of_run):
            show(f"{host}: process {process.pid} of {process.run}: {process.command[:COMMAND_WIDTH]}")
    if not dry_run:
        failed = {**failed, **_end_leftovers(leftovers, runs, options, target, show)}
    files, unlisted = remove_leftovers(processes, target, only_list=dry_run)
    for host, paths in files.items():
        for path in paths:
            show(f"{host}: {'left by a job' if dry_run else 'removed'}: {path}")
    if dry_run and processes and not (leftovers or files):
        show(f"nothing to end or remove on {fold(processes)}")
    return {**failed, **unlisted}


def _find_ended(folder: str, processes: Processes) -> set[str]:
    """Return the runs of processes that were started here and have an outcome."""
    names = {process.run for on_host in processes.values() for process in on_host}
    folders = {name: find_folder(name, folder) for name in names}
    return {
        name for name, path in folders.items() if path is not None and os.path.exists(find_path(RunDir(path).outcome))
    }


def _end_leftovers(
    leftovers: Mapping[str, Iterable[str]], runs: Sequence[Run], options: Options, target: ProbeTarget, show: Show
) -> Failures:
    """End leftovers, remove the records of ended runs and old folders; return the replies of hosts that failed."""
    folder = state_folder(os.environ)
    ended, failed = end_runs(leftovers, CLEAN_GRACE_SECONDS, target)
    over = [run for run in runs if run.alive() is False]
    for run in over:
        forget_run(folder, run.run)
    removed = remove_old_runs(folder, options["keep_runs"])
    empty_trash(folder).join()
    processes = f"ended processes: {sum(ended.values())}"
    show(f"{processes}; removed records of ended runs: {len(over)}; removed folders of runs: {removed}")
    return failed
