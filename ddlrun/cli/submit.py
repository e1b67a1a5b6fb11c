"""ddlrun submit: launch a job through a scheduler's queue."""

from typing import Any

import click

from ddlrun import __version__
from ddlrun.application.options.batch import check_launch, read_batch, read_template
from ddlrun.application.options.programs import split_programs
from ddlrun.application.submission import attend, estimate_start, select_scheduler, submit
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.launch import command as launch
from ddlrun.cli.options import Option, SchedulerType, Sections, argument, option, option_group
from ddlrun.cli.options.arguments import launch_options
from ddlrun.cli.options.argv import SplitArgv, split_argv
from ddlrun.cli.options.configuration import find_configuration
from ddlrun.cli.options.notes import note_misplaced, note_secrets
from ddlrun.cli.options.translation import translate
from ddlrun.cli.options.types import COUNT, Time, WholeNumber
from ddlrun.errors import InputError
from ddlrun.schedulers.submit.registry import GROUP, SCHEDULERS
from ddlrun.topology import parse_topology

# Launch's --scheduler selects the job that ddlrun runs in, submit's the scheduler that gets the job.
LAUNCH_OPTIONS = tuple(
    param for param in launch.params if isinstance(param, Option) and param.name not in ("scheduler", "help_all")
)
# Parameter of launch that submit does not take -> reason and remedy.
UNSUPPORTED = {
    "hosts": "the hosts come from the scheduler; leave the option out",
    "hostfile": "the hosts come from the scheduler; leave the option out",
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
        ctx.params["argv"] = argv
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


@click.command("submit", cls=Submit, context_settings={"allow_interspersed_args": False})
@own_options
@argument("script")
@argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, /, argv: SplitArgv, script: str, args: tuple[str, ...], **options: Any,  # noqa: ANN401 - click's
) -> int:  # fmt: skip
    """Submit a batch job that launches SCRIPT.

    Prints the job's id. TOPOLOGY is XxYxZ[xA]: X ranks per host, Y hosts per rack, Z racks, A aisles.

    The options of ddlrun launch (ddlrun launch --help-all) are accepted, except for those that name hosts, and copied
    into the job script. Use the scheduler's own commands to query or cancel the job.
    """
    from ddlrun.schedulers.submit.render import render  # noqa: PLC0415 - 20 ms of jinja2, not for --help

    note_misplaced(script, split_programs(args)[0], ctx.command.get_params(ctx))
    _check_unsupported(ctx, argv, options)
    console = ConsoleReporter()
    check_launch(launch_options(ctx, options), (script, *args), console)
    scheduler = select_scheduler(options["queued_by"], console)
    launch_words = [word for param, words in argv.options if param in LAUNCH_OPTIONS for word in words]
    words = ("launch", "--topology", str(argv.topology), *launch_words, *argv.rest)
    batch = read_batch(scheduler, options, script, words, console)
    note_secrets(options, "the job script")
    template, where = read_template(scheduler, options["template"])
    text = render(batch, scheduler, template, where, __version__)
    if options["show_script"]:
        click.echo(text, nl=False)
        return 0
    if options["when_free"]:
        click.echo(estimate_start(scheduler, text))
        return 0
    if not batch.cores and not batch.exclusive and scheduler.name in ("slurm", "pbs"):
        console.line("note: where jobs are confined, a rank gets one core: give --cores N, or --exclusive")
    job = submit(scheduler, batch, text)
    click.echo(job.job_id)
    return attend(job, console, wait=options["wait"])


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
