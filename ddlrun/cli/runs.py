"""ddlrun ps, kill and clean: runs and their leftovers on all hosts."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ddlrun.application.inputs import reach, read_hosts, ssh_launcher
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import (
    GRACE_HELP,
    Sections,
    argument,
    hostfile_option,
    hosts_argument,
    note_named_file,
    option,
    option_group,
    probe_timeout_option,
    ssh_options,
)
from ddlrun.cli.value_types import COUNT, SECONDS, Number
from ddlrun.errors import InputError, UnreachableError
from ddlrun.hosts import fold
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import Retention
from ddlrun.remote.probe import ProbeTarget, describe_failure, is_local, render_failures
from ddlrun.remote.processes import FinishedProcess
from ddlrun.runs.history import attempt_names, find_folder, run_names
from ddlrun.runs.leftovers import remove_leftovers
from ddlrun.runs.names import LAST, choose_name
from ddlrun.runs.orphans import OrphanProcess, end_runs, find_processes, orphans
from ddlrun.runs.registry import Run, forget_run, read_runs
from ddlrun.runs.retention import remove_old_runs
from ddlrun.runs.run_table import COMMAND_WIDTH, render_runs, render_runs_json
from ddlrun.runs.store import state_folder

CONTEXT = {"help_option_names": ["-h", "--help"]}
CLEAN_GRACE_SECONDS = 2.0
# The time in which a host removes shipped files.
REMOVAL_SECONDS = 600.0
# Beyond --grace, which a run's ddlrun gives its ranks.
EXTRA_SECONDS = 10.0
POLL_SECONDS = 0.05
host_options = option_group(hostfile_option, ssh_options, probe_timeout_option)
Options = dict[str, Any]
Processes = dict[str, list[OrphanProcess]]
Failures = Mapping[str, FinishedProcess]


@click.command("ps", cls=Sections, context_settings=CONTEXT)
@hosts_argument
@host_options
@option("Output", "--json", "as_json", is_flag=True, help="Print all processes as JSON.")
def ps(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """List your runs and their processes on HOSTS.

    HOSTS is a list such as n[01-64]; default: this host and the hosts of runs that were started here.
    """
    runs = read_runs(state_folder(os.environ))
    processes, failed = _find_processes(hosts, runs, options)
    text = render_runs_json(runs, processes) if options["as_json"] else render_runs(runs, processes)
    click.echo(text, nl=False)
    _raise_failures(failed, options)
    return 0


@click.command("kill", cls=Sections, context_settings=CONTEXT)
@argument("runs", nargs=-1, required=True)
@option(
    "Hosts",
    "-H",
    "--host",
    "--hosts",
    "hosts",
    metavar="LIST",
    callback=note_named_file,
    help="Also end RUNS that were started on other computers, on these hosts; names must be whole.",
)
@host_options
@option("Termination", "--grace", type=SECONDS, default=10, show_default=True, metavar="TIME",
        help=GRACE_HELP)  # fmt: skip
def kill(runs: Sequence[str], **options: Any) -> int:  # noqa: ANN401 - click's own
    """End RUNS and their processes on all hosts.

    RUNS are names from ddlrun ps or their beginnings, or last. The ddlrun of a run is ended first, then the processes
    that remain on its hosts.
    """
    folder = state_folder(os.environ)
    is_named = bool(options["hosts"] or options["hostfile"])
    hosts = read_hosts(options["hosts"], options["hostfile"], "-H").names if is_named else ()
    registered = {run.run: run for run in sorted(read_runs(folder), key=lambda run: run.started)}
    past = run_names(folder)
    names = list(dict.fromkeys(_choose_active(text, registered, past, hosts) for text in runs))
    selected = [registered[name] for name in names if name in registered]
    for run in selected:
        _end_ddlrun(run, options["grace"])
    runs_by_host = _runs_by_host(names, registered, hosts)
    ended, failed = end_runs(runs_by_host, options["grace"], _target(options, options["grace"]))
    unsearched = {name for host in failed for name in runs_by_host[host]}
    for run in selected:
        if run.run not in unsearched:
            forget_run(folder, run.run)
    if done := [name for name in names if name not in unsearched]:
        click.echo(f"ended: {', '.join(done)}{_describe_leftovers(ended)}")
    _raise_failures(failed, options)
    return 0


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
        raise InputError(
            f"run {text!r}: no run of this name that was started here is running; ddlrun runs lists those of this "
            "computer, ddlrun ps HOSTS those on HOSTS, and ddlrun kill -H HOSTS ends one of these"
        )
    return name or text


def _runs_by_host(
    names: Sequence[str], registered: Mapping[str, Run], named_hosts: Sequence[str]
) -> dict[str, list[str]]:
    """Return the runs to end on each host: on a run's own hosts, or on those that the user names."""
    runs_by_host: dict[str, list[str]] = {}
    for name in names:
        hosts = registered[name].hosts if name in registered else named_hosts
        for host in hosts:
            runs_by_host.setdefault(host, []).append(name)
    return runs_by_host


@click.command("clean", cls=Sections, context_settings=CONTEXT)
@hosts_argument
@host_options
@option("Termination", "--dry-run", is_flag=True, help="Print what would be ended or removed, and change nothing.")
@option(
    "Termination",
    "--keep-days",
    type=Number(min=0),
    metavar="DAYS",
    help="Also remove the folders (plans, logs) of your ended runs that are older than DAYS.",
)
@option("Termination", "--keep-runs", type=COUNT, metavar="N",
        help="Also remove the folders of your ended runs except for the latest N.")  # fmt: skip
@option(
    "Termination",
    "--shipped-days",
    type=Number(min=0),
    metavar="DAYS",
    help="Also remove files of launch --ship on HOSTS that no run has used for DAYS.",
)
@option(
    "Termination",
    "--shipped-size",
    metavar="SIZE",
    help="Also remove files of launch --ship on HOSTS, the longest unused first, down to SIZE such as 20GB per host.",
)
@option(
    "Termination",
    "--ship-dir",
    metavar="DIR",
    show_default="/tmp/ddlrun-ship-UID",  # noqa: S108 - see default_folder
    help="Folder of the files of launch --ship.",
)
def clean(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """End processes and remove files that earlier runs left behind.

    These are your processes on HOSTS with the name of a run whose ddlrun and keepers are gone; shared memory of MPI and
    NCCL that no process uses; and the temporary folders of mpirun and ddlrun that have ended. HOSTS is a list such as
    n[01-64]; default: this host and the hosts of runs that were started here.
    """
    folder = state_folder(os.environ)
    runs = read_runs(folder)
    processes, failed = _find_processes(hosts, runs, options)
    over = _find_ended(folder, processes)
    by_host = {host: orphans(on_host, over) for host, on_host in processes.items()}
    leftovers = {host: by_run for host, by_run in by_host.items() if by_run}
    _print_leftovers(leftovers)
    dry_run = options["dry_run"]
    if not dry_run:
        failed = {**failed, **_clean(folder, leftovers, runs, options)}
    files, unlisted = remove_leftovers(processes, _target(options, CLEAN_GRACE_SECONDS), only_list=dry_run)
    for host, paths in files.items():
        for path in paths:
            click.echo(f"{host}: {'left by a job' if dry_run else 'removed'}: {path}")
    failed = {**failed, **unlisted}
    if not dry_run:
        _remove_shipped(_choose_hosts(hosts, runs, options), options)
    elif processes and not (leftovers or files):
        click.echo(f"nothing to end or remove on {fold(processes)}")
    _raise_failures(failed, options)
    return 0


def _find_ended(folder: str, processes: Processes) -> set[str]:
    """Return the runs of processes that were started here and have an outcome."""
    names = {process.run for on_host in processes.values() for process in on_host}
    folders = {name: find_folder(name, folder) for name in names}
    return {name for name, path in folders.items() if path is not None and os.path.exists(RunDir(path).outcome)}


def _remove_shipped(hosts: Sequence[str], options: Options) -> None:
    """Remove files of launch --ship on hosts, where an option asks for it."""
    if options["shipped_days"] is None and options["shipped_size"] is None:
        return
    from ddlrun.application.remove_shipped import remove_shipped  # noqa: PLC0415 - 20 ms, for these options alone

    for line in remove_shipped(hosts, options, _target(options, REMOVAL_SECONDS), ConsoleReporter()):
        click.echo(line)


def _print_leftovers(leftovers: Mapping[str, Mapping[str, Sequence[OrphanProcess]]]) -> None:
    for host, by_run in leftovers.items():
        for run_id, processes in by_run.items():
            for process in processes:
                click.echo(f"{host}: process {process.pid} of {run_id}: {process.command[:COMMAND_WIDTH]}")


def _clean(
    folder: str, leftovers: Mapping[str, Mapping[str, object]], runs: Sequence[Run], options: Options
) -> Failures:
    """End leftovers, remove the records of ended runs and old folders; return the replies of hosts that failed."""
    ended: dict[str, int] = {}
    failed: Failures = {}
    if leftovers:
        ended, failed = end_runs(leftovers, CLEAN_GRACE_SECONDS, _target(options, CLEAN_GRACE_SECONDS))
    over = [run for run in runs if run.alive() is False]
    for run in over:
        forget_run(folder, run.run)
    retention = Retention(options["keep_runs"], options["keep_days"])
    removed = remove_old_runs(folder, retention)
    processes = f"ended processes: {sum(ended.values())}"
    click.echo(f"{processes}; removed records of ended runs: {len(over)}; removed folders of runs: {removed}")
    return failed


def _find_processes(hosts: str | None, runs: Sequence[Run], options: Options) -> tuple[Processes, Failures]:
    """Return the processes of all runs on each host, and the replies of hosts that failed."""
    state = state_folder(os.environ)
    names = [name for run in run_names(state) for name in attempt_names(f"{state}/runs/{run}")]
    return find_processes(_choose_hosts(hosts, runs, options), _target(options), names)


def _choose_hosts(hosts: str | None, runs: Sequence[Run], options: Options) -> Sequence[str]:
    """Return the named hosts, else this one and those of runs that were started here."""
    if hosts or options["hostfile"]:
        return read_hosts(hosts, options["hostfile"]).names
    own_name = os.uname().nodename
    run_hosts = dict.fromkeys(name for run in runs for name in run.hosts)
    return ("localhost", *(name for name in run_hosts if not is_local(name, own_name)))


def _target(options: Options, extra_seconds: float = 0.0) -> ProbeTarget:
    return reach(ssh_launcher(options), options["timeout"] + extra_seconds)


def _raise_failures(failed: Failures, options: Options) -> None:
    if failed:
        reasons = {name: describe_failure(reply) for name, reply in failed.items()}
        raise UnreachableError(*render_failures(reasons, _target(options).ssh))


def _describe_leftovers(ended: Mapping[str, int]) -> str:
    counts = [f"{host} {count}" for host, count in ended.items() if count]
    return f"; leftover processes: {', '.join(counts)}" if counts else ""


def _end_ddlrun(run: Run, grace: float) -> None:
    """Send SIGTERM to a run's ddlrun on this host, which then ends its ranks, and wait for its end."""
    if not run.alive():
        return
    os.kill(run.pid, signal.SIGTERM)
    _wait(lambda: not run.alive(), grace + EXTRA_SECONDS)


def _wait(is_done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
