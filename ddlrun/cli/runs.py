"""ddlrun ps, kill, clean: runs, and what they left, on all hosts."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ddlrun.cli.inputs import DEFAULT_PROBE_SECONDS, reach, read_hosts, ssh_way
from ddlrun.cli.options import Sections, all_of, option, ssh_options
from ddlrun.errors import InputError, UnreachableError
from ddlrun.hosts import fold
from ddlrun.remote.probe import ProbeTarget, failures, is_local, why_silent
from ddlrun.remote.processes import FinishedProcess
from ddlrun.runs.orphans import OrphanProcess, end_runs, find_processes, orphans
from ddlrun.runs.registry import Run, forget, known_runs
from ddlrun.runs.store import state_folder

CONTEXT = {"help_option_names": ["-h", "--help"]}
shared_options = all_of(
    option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line."),
    ssh_options,
    option("Hosts", "--timeout", type=click.FloatRange(min=0.1), default=DEFAULT_PROBE_SECONDS, show_default=True,
           help="Seconds until hosts that have not answered are given up."),
)  # fmt: skip
Options = dict[str, Any]


@click.command("ps", cls=Sections, context_settings=CONTEXT)
@click.argument("hosts", required=False)
@shared_options
@option("Answers", "--json", "as_json", is_flag=True, help="Print JSON: every process.")
def ps(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """List your runs and their processes on HOSTS; default: the hosts of runs that were started here."""
    runs = known_runs(state_folder(os.environ))
    there, failed = _processes(hosts, runs, options)
    shown = _as_json(runs, there) if options["as_json"] else _table(runs, there)
    click.echo(shown, nl=False)
    _complain(failed, options)
    return 0


@click.command("kill", cls=Sections, context_settings=CONTEXT)
@click.argument("runs", nargs=-1, required=True)
@shared_options
@option("Ending", "--grace", type=click.FloatRange(min=0), default=10.0, show_default=True,
        help="Seconds between TERM and KILL.")  # fmt: skip
def kill(runs: Sequence[str], **options: Any) -> int:  # noqa: ANN401 - click's own
    """End RUNS (as ddlrun ps names them, or the beginning): their ddlrun first, then what is left on their hosts."""
    folder = state_folder(os.environ)
    known = {run.run: run for run in known_runs(folder)}
    runs = [next((full for full in known if full.startswith(name)), name) for name in runs]
    missing = [run for run in runs if run not in known and not options["hostfile"]]
    if missing:
        raise InputError(
            f"run {missing[0]!r}: it is over, or was started elsewhere; ddlrun ps HOSTS shows all on hosts"
        )
    for run in (known[name] for name in runs if name in known):
        _end_ddlrun(run, options["grace"])
    where: dict[str, list[str]] = {}
    for name in runs:
        hosts = known[name].hosts if name in known else read_hosts(None, options["hostfile"]).names
        for host in hosts:
            where.setdefault(host, []).append(name)
    ended, failed = end_runs(where, options["grace"], _reach(options, options["grace"]))
    for name in runs:
        if name in known:
            forget(folder, known[name])
    click.echo(f"ended: {', '.join(runs)}" + _counted(ended))
    _complain(failed, options)
    return 0


@click.command("clean", cls=Sections, context_settings=CONTEXT)
@click.argument("hosts", required=False)
@shared_options
@option("Ending", "--dry-run", is_flag=True, help="Show what would be ended; end nothing.")
@option("Ending", "--older-than", type=click.FloatRange(min=0), metavar="DAYS",
        help="Remove run folders (logs, plans) that are older, too.")  # fmt: skip
def clean(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """End what earlier runs left on HOSTS: processes with a run's id whose keeper and ddlrun are gone.

    Default: this host and those of runs that were started here.
    """
    folder = state_folder(os.environ)
    runs = known_runs(folder)
    there, failed = _processes(hosts, runs, options)
    left = {host: found for host, found in ((host, orphans(found)) for host, found in there.items()) if found}
    for host, found in left.items():
        for name, processes in found.items():
            for process in processes:
                click.echo(f"{host}: process {process.pid} of {name}: {process.command[:100]}")
    if not options["dry_run"]:
        ended, more = end_runs(left, 2.0, _reach(options, 2.0)) if left else ({}, {})
        failed = {**failed, **more}
        gone = [run for run in runs if run.alive() is False]
        for run in gone:
            forget(folder, run)
        removed = _remove_sessions() + _remove_old(f"{folder}/runs", options["older_than"])
        click.echo(f"ended processes: {sum(ended.values())}; forgot runs: {len(gone)}; removed folders: {removed}")
    elif not left:
        click.echo("nothing to end")
    _complain(failed, options)
    return 0


def _processes(
    hosts: str | None, runs: Sequence[Run], options: Options
) -> tuple[dict[str, list[OrphanProcess]], dict[str, FinishedProcess]]:
    if hosts or options["hostfile"]:
        names: Sequence[str] = read_hosts(hosts, options["hostfile"]).names
    else:
        own = os.uname().nodename
        noted = dict.fromkeys(name for run in runs for name in run.hosts)
        names = ("localhost", *(name for name in noted if not is_local(name, own)))
    return find_processes(names, _reach(options))


def _reach(options: Options, more: float = 0.0) -> ProbeTarget:
    return reach(ssh_way(options), options["timeout"] + more)


def _complain(failed: Mapping[str, FinishedProcess], options: Options) -> None:
    if failed:
        raise UnreachableError(*failures({name: why_silent(one) for name, one in failed.items()}, _reach(options).ssh))


def _counted(ended: Mapping[str, int]) -> str:
    found = [f"{host} {count}" for host, count in ended.items() if count]
    return f"; processes that were left: {', '.join(found)}" if found else ""


def _table(runs: Sequence[Run], there: Mapping[str, Sequence[OrphanProcess]]) -> str:
    known = {run.run: run for run in runs}
    names = [*known, *sorted({p.run for found in there.values() for p in found} - set(known))]
    over = [name for name in names if name in known and known[name].alive() is False]
    over = [name for name in over if not any(p.run == name for found in there.values() for p in found)]
    names = [name for name in names if name not in over]
    lines = []
    for name in names:
        on = {host: [p for p in found if p.run == name] for host, found in there.items()}
        on = {host: found for host, found in on.items() if found}
        ranks = {process.rank for found in on.values() for process in found if process.rank is not None}
        run = known.get(name)
        lines.append(f"{name}: {_state(run, on)}" + (f", since {_clock(run.started)}" if run else ""))
        if run:
            lines.append(f"  {' '.join(run.program)[:100]}")
            lines.append(f"  ranks seen: {len(ranks)} of {run.ranks}; logs: {run.run_dir}")
        for host, found in on.items():
            numbers = sorted({process.rank for process in found if process.rank is not None})
            lines.append(f"  {host}: {len(found)} processes, ranks {','.join(map(str, numbers)) or 'none'}")
    if over:
        lines.append(f"{len(over)} that are over, nothing of which is left here: ddlrun clean forgets them")
    return "".join(f"{line}\n" for line in lines or ["no runs"])


def _state(run: Run | None, on: Mapping[str, Sequence[OrphanProcess]]) -> str:
    alive = run.alive() if run else None
    if alive:
        return f"runs, ddlrun is process {run.pid if run else '?'} on {run.host if run else '?'}"
    if alive is None and any(process.keeper for found in on.values() for process in found):
        return f"runs, started on {run.host}" if run else "runs, started elsewhere"
    return f"over, but {fold(on)} has leftovers: ddlrun clean {fold(on)}" if on else "over: ddlrun clean forgets it"


def _as_json(runs: Sequence[Run], there: Mapping[str, Sequence[OrphanProcess]]) -> str:
    processes = {host: [{**p._asdict(), "keeper": p.keeper} for p in found] for host, found in there.items()}
    told = [{**run._asdict(), "alive": run.alive()} for run in runs]
    return json.dumps({"runs": told, "processes": processes}, indent=2) + "\n"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _end_ddlrun(run: Run, grace: float) -> None:
    """Ask a run's ddlrun on this host to end, as Ctrl-C does; it ends its ranks."""
    if not run.alive():
        return
    os.kill(run.pid, signal.SIGTERM)
    _wait(lambda: not run.alive(), grace + 10)


def _wait(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.05)


def _remove_sessions() -> int:
    """Remove session folders of ddlruns on this host that are gone."""
    above = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    removed = 0
    for name in os.listdir(above):
        words = name.split("-")
        if len(words) == 3 and words[0] == "ddlrun" and words[1].isdigit() and not os.path.exists(f"/proc/{words[1]}"):
            path = f"{above}/{name}"
            if os.lstat(path).st_uid == os.geteuid() and os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    return removed


def _remove_old(folder: str, days: float | None) -> int:
    """Remove run folders of ended runs that are older than so many days."""
    if days is None or not os.path.isdir(folder):
        return 0
    old = [
        path
        for path in (f"{folder}/{name}" for name in os.listdir(folder))
        if os.path.isfile(f"{path}/outcome.json") and time.time() - os.path.getmtime(path) > days * 86400
    ]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return len(old)
