"""ddlrun submit: launch a job through a scheduler's queue."""

import os
import re
import shlex
import sys
from typing import Any

import click

from ddlrun import __version__
from ddlrun.application.inputs import configs_folder, read_text
from ddlrun.application.program import read_program
from ddlrun.application.programs import split_programs
from ddlrun.application.settings import read_settings
from ddlrun.cli.argv import SplitArgv, split_argv
from ddlrun.cli.configuration import find_configuration
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.launch import command as launch
from ddlrun.cli.launch_arguments import launch_options
from ddlrun.cli.option_notes import note_misplaced, note_secrets
from ddlrun.cli.options import Option, SchedulerType, Sections, argument, option, option_group
from ddlrun.cli.scheduler import has_gpus, print_start_estimate, select_scheduler, submit, write_message
from ddlrun.cli.translation import translate
from ddlrun.cli.value_types import COUNT, Time, WholeNumber
from ddlrun.errors import InputError
from ddlrun.mapping.topology_request import check_request
from ddlrun.schedulers.submit import BatchJob, Scheduler
from ddlrun.schedulers.submit.registry import GROUP, SCHEDULERS
from ddlrun.schedulers.submit.render import render
from ddlrun.topology import Topology, parse_topology
from ddlrun.units import parse_memory, parse_time_limit

# Launch's --scheduler selects the job that ddlrun runs in, submit's the scheduler that gets the job.
LAUNCH_OPTIONS = tuple(
    param for param in launch.params if isinstance(param, Option) and param.name not in ("scheduler", "help_all")
)
ARGV = "ddlrun.argv"
# Parameter of launch that submit does not take -> reason and remedy.
UNSUPPORTED = {
    "hosts": "the hosts come from the scheduler; leave the option out",
    "hostfile": "the hosts come from the scheduler; leave the option out",
    "load": "it names hosts, which come from the scheduler; describe them with --machine",
    "rankfile": "it names hosts, which come from the scheduler; leave the option out",
    "topology": "the topology is submit's first argument; leave the option out",
    "spare_hosts": "the job gets only the hosts of its topology; leave the option out",
    "dry_run": "submit prints its script with --print; leave the option out",
    "as_json": "submit has no plan to print; leave the option out",
}


class Submit(Sections):
    """A command that also takes launch's options: it checks them now, and passes them to the job unchanged."""

    borrowed = LAUNCH_OPTIONS

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the words of the usage line: the topology comes first."""
        return ["TOPOLOGY", "[OPTIONS]", "SCRIPT", "[ARGS]..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the topology, which may stand before the options, and keep every word as the user typed it."""
        leading = 1 if args and not args[0].startswith("-") else 0
        translated = translate(args[leading:], self.get_params(ctx))
        translated.print_notes()
        args = [*args[:leading], *translated.words]
        argv = split_argv(args, self.get_params(ctx))
        ctx.meta[ARGV] = argv
        options = [word for _, words in argv.options for word in words]
        if argv.topology is None:
            if not {"-h", "--help"} & {*options} and not argv.rest and not ctx.resilient_parsing:
                raise click.UsageError("TOPOLOGY (XxYxZ, such as 4x2x3) is missing", ctx)
            return super().parse_args(ctx, [*options, *argv.rest])
        if "topology" in {param.name for param, _ in argv.options}:
            raise InputError(f"--topology: {UNSUPPORTED['topology']}")
        if not argv.topology[:1].isdigit():
            raise click.UsageError(f"TOPOLOGY (XxYxZ, such as 4x2x3) is missing before {argv.topology!r}", ctx)
        parse_topology(argv.topology)
        return super().parse_args(ctx, ["--topology", argv.topology, *options, *argv.rest])


own_options = option_group(
    option("Scheduler", "--scheduler", "queued_by", type=SchedulerType(["auto", *SCHEDULERS], GROUP), default="auto",
           show_default=True,
           help="Scheduler that gets the job; auto: the first one with its commands on PATH, in this order."),
    option("Scheduler", "--print", "show_script", is_flag=True, help="Print the job script, and submit nothing."),
    option("Scheduler", "--when-free", is_flag=True,
           help="Print when the scheduler would start the job, and submit nothing."),
    option("Scheduler", "--wait", is_flag=True,
           help="Wait for the job to end: print its states and log, and exit with its exit code."),
    option("Scheduler", "--template", metavar="FILE",
           show_default="the scheduler's in configs/jobs", help="Jinja2 template of the job script."),
    option("Scheduler", "--scheduler-args", "directives", metavar="ARGS",
           help="Additional options of the scheduler, copied into the job script."),
    option("Job", "--time", metavar="TIME", help="Time limit, such as 1:30:00, 90m, 2h or a number of minutes."),
    option("Job", "--partition", "--queue", "queue", metavar="NAME", help="Partition or queue."),
    option("Job", "--account", metavar="NAME", help="Account, project or bank."),
    option("Job", "--job-name", metavar="NAME", show_default="ddlrun-SCRIPT", help="Name of the job."),
    option("Job", "--log", metavar="FILE", show_default="./ddlrun-ID.out",
           help="File for all output; the scheduler's patterns are allowed."),
    option("Job", "--warn", type=Time(1), metavar="TIME", help="Send USR1 this long before the time limit."),
    option("Job", "--requeue", is_flag=True, help="Requeue the job if a host fails."),
    option("Resources", "--gpus", type=WholeNumber(min=0), metavar="N",
           show_default="X if the scheduler manages GPUs", help="GPUs per host; 0: none."),
    option("Resources", "--cores", type=COUNT, metavar="N", show_default="as --cores-per-rank",
           help="Cores per rank."),
    option("Resources", "--mem", "memory", metavar="SIZE", help="Memory per host, such as 64G."),
    option("Resources", "--exclusive", is_flag=True, help="Do not share the hosts with other jobs."),
    option("Resources", "--parallel-environment", metavar="NAME", show_default="mpi",
           help="Name of Grid Engine's parallel environment."),
    option("Software", "--module", "modules", multiple=True, metavar="NAME",
           help="Load this module; may be repeated."),
    option("Software", "--container-command", metavar="COMMAND",
           help="Command that runs ddlrun in a container, such as 'apptainer exec --nv train.sif'."),
    option("Software", "--image", metavar="NAME", help="Image of the pods (Kubernetes)."),
)  # fmt: skip


@click.command(
    "submit", cls=Submit, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@own_options
@argument("script")
@argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str, args: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's own
    """Submit a batch job that launches SCRIPT.

    Prints the job's id. TOPOLOGY is XxYxZ[xA]: X ranks per host, Y hosts per rack, Z racks, A aisles.

    The options of ddlrun launch (ddlrun launch --help-all) are accepted, except for those that name hosts, and copied
    into the job script. Use the scheduler's own commands to query or cancel the job.
    """
    note_misplaced(script, split_programs(args)[0], ctx.command.get_params(ctx))
    argv: SplitArgv = ctx.meta[ARGV]
    topology = _check(ctx, argv, (script, *args), options)
    scheduler = select_scheduler(options["queued_by"])
    batch = _make_batch(scheduler, topology, argv, script, options)
    note_secrets(options, "the job script")
    template, where = _read_template(scheduler, options["template"])
    text = render(batch, scheduler, template, where, __version__)
    if options["show_script"]:
        click.echo(text, nl=False)
        return 0
    if options["when_free"]:
        return print_start_estimate(scheduler, text)
    if not batch.cores and not batch.exclusive and scheduler.name in ("slurm", "pbs"):
        write_message("note: where jobs are confined, a rank gets one core: give --cores N, or --exclusive")
    return submit(scheduler, batch, text, wait=options["wait"])


def _check(ctx: click.Context, argv: SplitArgv, program: tuple[str, ...], options: dict[str, Any]) -> Topology:
    """Find the errors that launch would find after hours in the queue; return the topology."""
    _check_unsupported(ctx, argv, options)
    folder = os.path.dirname(options["log"] or "")
    if folder and "%" not in folder and "$" not in folder and not os.path.isdir(folder):
        raise InputError(f"--log {options['log']}: no folder {folder}; create it, as schedulers do not")
    if not options["container_command"] and not options["image"]:  # the script may exist only in there
        in_image = bool(options["container"])
        program = read_program(program[0], program[1:], is_module=options["is_module"], in_image=in_image)
    topology = parse_topology(options["topology"])
    in_job = {"scheduler": "none", "launcher": "auto", "hosts": f"host[1-{topology.hosts}]"}
    settings = read_settings(launch_options(ctx, options | in_job), program, ConsoleReporter())
    check_request(settings.job.topology, settings.hosts.hosts)
    return topology


def _check_unsupported(ctx: click.Context, argv: SplitArgv, options: dict[str, Any]) -> None:
    """Raise InputError for options that submit does not take, wherever they come from."""
    typed = {str(param.name): words[0] for param, words in argv.options}
    places = {name: value.place for name, value in find_configuration(ctx).values.items()} | typed
    problems = [
        f"{places.get(name, name)}: {reason}" for name, reason in UNSUPPORTED.items()
        if (name in typed if name == "topology" else options[name])
    ]  # fmt: skip
    if problems:
        raise InputError(*problems)


def _make_batch(
    scheduler: Scheduler, topology: Topology, argv: SplitArgv, script: str, options: dict[str, Any]
) -> BatchJob:
    in_container = options["container_command"] is not None or scheduler.name == "kubernetes"
    launch_words = [word for param, words in argv.options if param in LAUNCH_OPTIONS for word in words]
    return BatchJob(
        topology=topology,
        command=(
            *_ddlrun_command(in_container=in_container),
            "launch", "--topology", str(argv.topology), *launch_words, *argv.rest,
        ),
        folder=os.getcwd(),
        name=_job_name(scheduler, options["job_name"], script),
        log=options["log"] or scheduler.log,
        seconds=parse_time_limit(options["time"]) if options["time"] else None,
        queue=options["queue"],
        account=options["account"],
        exclusive=options["exclusive"],
        cores=options["cores"] or options["cores_per_rank"],
        memory=parse_memory(options["memory"]) if options["memory"] else None,
        modules=options["modules"],
        container=_split_container(options["container_command"]),
        image=options["image"],
        warn=int(options["warn"]) if options["warn"] else None,
        requeue=options["requeue"],
        parallel_environment=options["parallel_environment"],
        directives=options["directives"],
        gpus=_gpus_per_host(scheduler, topology, options),  # last: it may query the scheduler
    )  # fmt: skip


def _split_container(command: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command or ""))
    except ValueError as error:
        raise InputError(f"--container-command {command!r}: {error}; quote it as for a shell") from error


def _ddlrun_command(*, in_container: bool) -> tuple[str, ...]:
    """Return the command that starts ddlrun in the job: this installation, or the one in the container."""
    if in_container:
        return ("ddlrun",)
    script = f"{os.path.dirname(sys.executable)}/ddlrun"
    return (script,) if os.access(script, os.X_OK) else (sys.executable, "-m", "ddlrun")


def _job_name(scheduler: Scheduler, name: str | None, script: str) -> str:
    """Return --job-name, or a name from the script's. Raises InputError where Kubernetes does not accept it."""
    if name is None:
        stem = os.path.basename(script.rstrip("/")).removesuffix(".py")
        name = f"ddlrun-{re.sub(r'[^A-Za-z0-9]+', '-', stem).strip('-') or 'job'}"[:40].rstrip("-")
        name = name.lower() if scheduler.name == "kubernetes" else name
    if scheduler.name != "kubernetes":
        return name
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise InputError(
            f"--job-name {name!r}: Kubernetes accepts up to 40 of a-z, 0-9 and -, beginning with a letter; rename it"
        )
    return f"{name}-{os.urandom(3).hex()}"  # names are unique in Kubernetes


def _gpus_per_host(scheduler: Scheduler, topology: Topology, options: dict[str, Any]) -> int:
    """Return the GPUs that a host must have: --gpus, else X unless the scheduler has none."""
    if options["gpus"] is not None:
        return int(options["gpus"])
    return topology.accelerators if has_gpus(scheduler, options["queue"]) else 0


def _read_template(scheduler: Scheduler, path: str | None) -> tuple[str, str]:
    """Return the text of the template and its name for errors."""
    if path:
        return read_text(path, "--template"), path
    path = os.path.join(configs_folder(), "jobs", scheduler.template)  # that of a plug-in is absolute
    return read_text(path, "template"), scheduler.template
