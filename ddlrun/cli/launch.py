"""ddlrun launch: place every rank, write the rank file, run mpirun."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from ddlrun.cli.compatible_options import translate
from ddlrun.cli.inputs import reach, read_machines, world
from ddlrun.cli.job_options import job_options, read_crew, read_program, read_settings
from ddlrun.cli.options import Sections, check_build_option, check_options, option
from ddlrun.environment.frameworks import MOST_WORKERS, NAMES
from ddlrun.environment.rendezvous_ports import is_free_here
from ddlrun.errors import DdlrunError, InputError
from ddlrun.machine import Machine
from ddlrun.mapping.spare_hosts import HostAssignment, replace_hosts
from ddlrun.network.subnet_selection import Network
from ddlrun.plan import Plan, shown_command
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.planner import check, check_root, make_plan
from ddlrun.plan.settings import Settings, adapt, again
from ddlrun.process_managers.openmpi import Mpirun
from ddlrun.remote.probe import await_names, is_local
from ddlrun.report.outcome import find_port_in_use, render_outcome
from ddlrun.report.plan import render_plan
from ddlrun.runs.store import link_last_run, make_output_folder, write_report, write_run_dir
from ddlrun.schedulers import read_job_end
from ddlrun.topology import Topology, parse_topology

TYPE_CHECKING = False  # typing's own is the same to a type checker
if TYPE_CHECKING:
    from ddlrun.preflight.run import PreflightReport


class Launch(Sections):
    """Understands what users of other launchers type."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn other launchers' options into ours."""
        return super().parse_args(ctx, translate(args, self.get_params(ctx)))


@click.command(
    "launch", cls=Launch, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@job_options
@check_options
@check_build_option
@option(
    "Going on",
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Start the job again after a failure, so many times; DDLRUN_RESTART tells the script.",
)
@option(
    "Going on",
    "--spare-hosts",
    metavar="LIST|extra",
    help="Hosts that take the place of those that fail; extra: those beyond what --topology needs.",
)
@option("Going on", "--min-topology", metavar="XxYxZ", help="Without spare hosts Y or Z may shrink to this.")
@option("Run", "--run-dir", metavar="DIR", help="Folder for rank file, plan and logs; default: ~/.local/state/ddlrun.")
@option(
    "Run",
    "--dry-run",
    is_flag=True,
    help="Print the plan and the command; start nothing. Its files are written with --run-dir.",
)
@option("Run", "--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@option("Run", "--verbose", is_flag=True, help="Print the reasons and the command too.")
@option("Run", "--quiet", is_flag=True, help="Print nothing but what the job prints, and errors.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str, args: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's own
    """Launch SCRIPT on every accelerator of the hosts, each rank where it belongs.

    A .py file runs under this Python; -m takes a module; anything else is a program. Options come
    before SCRIPT; what follows it is the script's own.
    """
    if options["as_json"] and not options["dry_run"]:
        raise InputError("--json goes with --dry-run")
    _forget_outer_job()
    settings = read_settings(ctx, options, read_program(script, args, is_module=options["is_module"]))
    least = parse_topology(options["min_topology"], "--min-topology") if options["min_topology"] else None
    crew = read_crew(settings, options["spare_hosts"])
    job = _Job(settings._replace(hosts=crew.hosts), crew, least, options)
    mpirun = check(job.settings, os.environ)
    if options["dry_run"]:
        _print_plan(job, mpirun)
        return 0
    check_root(job.settings, os.environ)
    return _run_until_done(job, mpirun)


def _print_plan(job: "_Job", mpirun: Callable[[], Mpirun]) -> None:
    _, plan, check = _prepare(job, mpirun)
    if job.options["run_dir"]:
        write_run_dir(plan, check)
    as_json = job.options["as_json"]
    click.echo(json.dumps(plan.as_dict(), indent=2) + "\n" if as_json else _shown(plan, job.options), nl=False)


def _run_until_done(job: "_Job", mpirun: Callable[[], Mpirun]) -> int:
    """Run the job, and again after a failure as often as is asked for; return its last exit code."""
    from ddlrun.supervise.launch import run  # noqa: PLC0415 - mpirun says its version meanwhile

    outcome = None
    restarts, attempt = job.options["restarts"], 0
    while True:
        try:
            if outcome is not None:
                job = _after(job, outcome, attempt, restarts)
            job, plan, check = _prepare(job, mpirun)
            write_run_dir(plan, check)
            link_last_run(plan, os.environ)
            make_output_folder(job.settings.watch)
        except DdlrunError as error:
            if outcome is None:
                raise
            for problem in error.problems:
                click.echo(f"ddlrun: no restart: {problem}", err=True)
            break
        outcome = _run(job, plan, run)
        port = find_port_in_use(outcome, plan.ports)
        if port is not None and attempt == 0:  # the ranks never met
            click.echo(f"ddlrun: another process took port {port} meanwhile; starting again with others", err=True)
            restarts += 1
        if not outcome.exit_code or outcome.wanted or attempt == restarts:
            break
        attempt += 1
    return outcome.exit_code if outcome is not None else 0


def _forget_outer_job() -> None:
    """Where a rank of another job started us, what that was told is not for our ranks."""
    if "DDLRUN_RUN" in os.environ:
        told = {"DDL_OPTIONS", *NAMES}
        for name in [name for name in os.environ if name.startswith("DDLRUN_") or name in told]:
            del os.environ[name]


class _Job(NamedTuple):
    """What is asked for, and the hosts that take part."""

    settings: Settings
    crew: HostAssignment
    least: Topology | None
    options: dict[str, Any]

    def without(self, bad: Mapping[str, str]) -> "_Job":
        """Return the job with other hosts in place of these (name -> why), and say so."""
        crew = replace_hosts(self.crew, bad, self.least)
        for line in crew.notes:
            click.echo(f"ddlrun: {line}", err=True)
        return self._replace(crew=crew, settings=adapt(self.settings, crew))


def _after(job: _Job, outcome: Outcome, attempt: int, restarts: int) -> _Job:
    """Return the job of a restart: hosts that were lost are replaced if they can be, else asked again."""
    click.echo(f"ddlrun: restart {attempt} of {restarts}", err=True)
    job = job._replace(settings=again(job.settings, attempt))
    dead = [host.name for host in job.crew.hosts if {host.name, host.name.partition(".")[0]} & {*outcome.dead}]
    return job.without(dict.fromkeys(dead, "it was lost")) if dead and (job.crew.spares or job.least) else job


def _shown(plan: Plan, options: Mapping[str, Any]) -> str:
    return render_plan(plan, shown_command(plan), full=options["dry_run"] or options["verbose"])


def _run(job: _Job, plan: Plan, run: Callable[..., Outcome]) -> Outcome:
    if not job.options["quiet"]:
        for note in () if job.options["verbose"] else (*job.settings.notes, *plan.warnings):
            click.echo(f"ddlrun: note: {note}", err=True)
        click.echo(_shown(plan, job.options), nl=False, err=True)
    allocation = job.settings.job
    outcome = run(
        plan, job.settings.watch, os.environ, lambda hosts: _sweep(hosts, job.settings),
        lambda: read_job_end(world(), allocation) if allocation is not None else None,
    )  # fmt: skip
    if outcome.exit_code:
        report = render_outcome(outcome, plan)
        write_report(plan, report)
        with contextlib.suppress(OSError):  # as after `2>&1 | head`
            click.echo(report, nl=False, err=True)
    return outcome


def _prepare(job: _Job, mpirun: Callable[[], Mpirun]) -> tuple[_Job, Plan, str | None]:
    """Ask and check the hosts and plan the job; other hosts take the place of those that fail.

    What the check found comes as JSON, None: there was none.
    """
    machines, network, report = _ask(job.settings, mpirun, job.options)
    while report is not None and report.bad_hosts:
        if not (job.crew.spares or job.least):
            report.raise_failures()
        job = job.without(report.bad_hosts)
        machines, network, report = _ask(job.settings, mpirun, job.options)
    settings = job.settings
    if report is not None and report.here[1]:
        settings = settings._replace(watch=settings.watch._replace(addresses=(report.here[1],)))
    plan = make_plan(settings, mpirun(), machines(), os.environ, network, _free_ports(report))
    return job._replace(settings=settings), plan, _checked(report, job.options)


def _checked(report: "PreflightReport | None", options: dict[str, Any]) -> str | None:
    if report is None or options["skip_checks"] or options["dry_run"]:
        return None
    from ddlrun.preflight.table import check_json  # noqa: PLC0415 - as for the check itself

    return check_json(report)


def _free_ports(report: "PreflightReport | None") -> Callable[[int], bool]:
    """Return what tells whether a port is free where ranks meet: on rank 0's host, and for TensorFlow on all."""
    if report is None:
        return is_free_here
    facts = list(report.facts.values())
    taken = frozenset[int]().union(*(one.ports for one in facts[: MOST_WORKERS if len(facts) <= MOST_WORKERS else 1]))
    return lambda port: port not in taken


def _ask(
    settings: Settings, mpirun: Callable[[], Mpirun], options: dict[str, Any]
) -> tuple[Callable[[], Mapping[str, Machine]], Network | None, "PreflightReport | None"]:
    """Return what gives each host's machine, and what the hosts talk over; hosts that ssh leads to are checked too."""
    described = options["machine"] or options["load"]
    alone = all(is_local(name, os.uname().nodename) for name in settings.hosts.names)
    if alone or (described and options["dry_run"]):
        machines = read_machines(settings.hosts, options["machine"], options["load"], settings.way)
        return lambda: machines, None, None
    if settings.job is not None and settings.job.scheduler == "kubernetes" and settings.way.launcher == "ssh":
        await_names(settings.hosts.names, options["start_timeout"])
    from ddlrun.cli.check import check_first  # noqa: PLC0415 - a job on this machine needs no network

    report = check_first(settings, mpirun(), options)
    if described:
        return lambda: read_machines(settings.hosts, options["machine"], options["load"]), report.network, report
    return report.machines, report.network, report


def _sweep(hosts: Sequence[str], settings: Settings) -> None:
    from ddlrun.runs.orphans import end_runs  # noqa: PLC0415 - where a keeper was killed

    end_runs({host: [settings.run_id] for host in hosts}, 0, reach(settings.way, settings.watch.grace + 5))
