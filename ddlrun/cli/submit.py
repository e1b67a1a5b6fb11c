"""ddlrun submit: the same job through a scheduler's queue."""

import os
import re
import shlex
import sys
from typing import Any

import click

from ddlrun import __version__
from ddlrun.cli.argv import SplitArgv, split_words
from ddlrun.cli.compatible_options import translate
from ddlrun.cli.inputs import configs_folder, read_text
from ddlrun.cli.job_options import read_program, read_settings
from ddlrun.cli.launch import command as launch
from ddlrun.cli.options import COUNT, Option, Sections, all_of, option
from ddlrun.cli.scheduler import ask_when_free, choose, has_gpus, submit
from ddlrun.errors import InputError
from ddlrun.mapping.topology_request import check_wish
from ddlrun.schedulers.submit import BatchJob, Scheduler
from ddlrun.schedulers.submit.registry import SCHEDULERS
from ddlrun.schedulers.submit.render import render
from ddlrun.schedulers.submit.units import parse_memory, parse_time
from ddlrun.topology import Topology, parse_topology

# Launch's --scheduler asks whose job it runs in; ours says whose it will be.
LAUNCH = tuple(param for param in launch.params if isinstance(param, Option) and param.name != "scheduler")
WORDS = "ddlrun.words"
# Options of launch (by parameter) that have no sense here, and why.
REFUSED = {
    "hosts": "the hosts come from the scheduler; leave it out",
    "hostfile": "the hosts come from the scheduler; leave it out",
    "load": "it names hosts, which come from the scheduler; say what they are: --machine",
    "rankfile": "it names hosts, which come from the scheduler; leave it out",
    "topology": "the topology is submit's first word; leave it out",
    "spare_hosts": "the job has the hosts of its topology, and no more; leave it out",
    "dry_run": "submit shows its script with --print; leave it out",
    "as_json": "submit has no plan to show; leave it out",
}


class Submit(Sections):
    """Takes launch's options besides its own: they are read to find mistakes now, and go through as they stand."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters and launch's options."""
        return [*super().get_params(ctx), *LAUNCH]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the topology first."""
        return ["TOPOLOGY", "[OPTIONS]", "SCRIPT", "[ARGS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its own options; launch's are in launch's help."""
        own = click.Command(self.name, params=super().get_params(ctx), add_help_option=False)
        Sections.format_options(own, ctx, formatter)  # type: ignore[arg-type]  # it asks for get_params alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the topology apart, which stands before options, and keep every word as it was typed."""
        first = 1 if args and not args[0].startswith("-") else 0
        args = [*args[:first], *translate(args[first:], self.get_params(ctx))]
        words = split_words(args, self.get_params(ctx))
        ctx.meta[WORDS] = words
        options = [word for _, own in words.options for word in own]
        if words.topology is None:
            if not {"-h", "--help"} & {*options} and not words.rest:
                raise click.UsageError("Missing argument 'TOPOLOGY' (XxYxZ, as in 4x2x3)", ctx)
            return super().parse_args(ctx, [*options, *words.rest])
        if "topology" in {param.name for param, _ in words.options}:
            raise InputError(f"--topology: {REFUSED['topology']}")
        if not words.topology[:1].isdigit():
            raise click.UsageError(f"Missing argument 'TOPOLOGY' (XxYxZ, as in 4x2x3) before {words.topology!r}", ctx)
        parse_topology(words.topology)
        return super().parse_args(ctx, ["--topology", words.topology, *options, *words.rest])


own_options = all_of(
    option("Scheduler", "--scheduler", "queued_by", type=click.Choice(["auto", *SCHEDULERS]), default="auto",
           show_default=True, help="Whose job it is; auto: whose commands are on PATH, in this order."),
    option("Scheduler", "--print", "show_script", is_flag=True, help="Print the script; submit nothing."),
    option("Scheduler", "--when-free", is_flag=True,
           help="Ask the scheduler when the job would start; submit nothing."),
    option("Scheduler", "--wait", is_flag=True,
           help="Stay until the job has ended: its states, its log; end with its exit code."),
    option("Scheduler", "--template", metavar="FILE", help="Your own Jinja2 template; ours are in configs/jobs."),
    option("Scheduler", "--scheduler-args", "directives", metavar="ARGS",
           help="More of the scheduler's own options, as they are."),
    option("Job", "--time", metavar="TIME", help="Time limit: 1:30:00, 90m, 2h, or minutes."),
    option("Job", "--partition", "--queue", "queue", metavar="NAME", help="Partition or queue."),
    option("Job", "--account", metavar="NAME", help="Account, project or bank."),
    option("Job", "--job-name", metavar="NAME", help="Default: the script's."),
    option("Job", "--log", metavar="PATH",
           help="File for all output, with the scheduler's own patterns; default: ddlrun-ID.out, where you are."),
    option("Job", "--warn", type=COUNT, metavar="SECONDS", help="USR1 comes so long before the time limit."),
    option("Job", "--requeue", is_flag=True, help="The scheduler may start the job again after a host failed."),
    option("Resources", "--gpus", type=click.IntRange(min=0), metavar="N",
           help="GPUs of each host; default: X, where the scheduler has any; 0: none."),
    option("Resources", "--cores", type=COUNT, metavar="N", help="Cores of each rank; default: --cores-per-rank."),
    option("Resources", "--mem", "memory", metavar="SIZE", help="Memory of each host, as in 64G."),
    option("Resources", "--exclusive", is_flag=True, help="Share the hosts with no other job."),
    option("Resources", "--parallel-environment", metavar="NAME", help="Grid Engine's; default: mpi."),
    option("Software", "--module", "modules", multiple=True, metavar="NAME", help="Load this module; may repeat."),
    option("Software", "--container", metavar="WORDS",
           help="What starts ddlrun in a container, as in 'apptainer exec --nv train.sif'."),
    option("Software", "--image", metavar="NAME", help="Image of the pods (Kubernetes)."),
)  # fmt: skip


@click.command(
    "submit", cls=Submit, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@own_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str, args: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's own
    """Submit a job that launches SCRIPT as TOPOLOGY (XxYxZ), with the scheduler's own command.

    Prints the job's id. All options of ddlrun launch are taken too: they go through into the job's
    script as they stand. Status and cancelling are the scheduler's own.
    """
    words: SplitArgv = ctx.meta[WORDS]
    topology = _check(ctx, words, script, args, options)
    scheduler = choose(options["queued_by"])
    batch = _batch(scheduler, topology, words, script, options)
    template, where = _template(scheduler, options["template"])
    text = render(batch, scheduler, template, where, __version__)
    if options["show_script"]:
        click.echo(text, nl=False)
        return 0
    if options["when_free"]:
        return ask_when_free(scheduler, text)
    if not batch.cores and not batch.exclusive and scheduler.name in ("slurm", "pbs"):
        click.echo("ddlrun: note: a rank gets one core where jobs are confined: --cores N, or --exclusive", err=True)
    return submit(scheduler, batch, text, wait=options["wait"])


def _check(
    ctx: click.Context, words: SplitArgv, script: str, args: tuple[str, ...], options: dict[str, Any]
) -> Topology:
    """Find now what launch would find after hours in the queue; return the topology."""
    given = {param.name: own[0] for param, own in words.options}
    problems = [
        f"{given.get(name, 'config file: ' + name)}: {why}" for name, why in REFUSED.items()
        if (name in given if name == "topology" else options[name])
    ]  # fmt: skip
    if problems:
        raise InputError(*problems)
    folder = os.path.dirname(options["log"] or "")
    if folder and "%" not in folder and "$" not in folder and not os.path.isdir(folder):
        raise InputError(f"--log {options['log']}: the folder {folder} is not there, and no scheduler makes it")
    elsewhere = options["container"] or options["image"]  # the script may be in there alone
    program = (script, *args) if elsewhere else read_program(script, args, is_module=options["is_module"])
    topology = parse_topology(options["topology"])
    options |= {
        "scheduler": "none",
        "launcher": "auto",
        "hosts": f"host[1-{topology.hosts}]",
    }  # as the job will see it, with other names
    settings = read_settings(ctx, options, program)
    check_wish(settings.wish, settings.hosts)
    if options["min_topology"]:
        parse_topology(options["min_topology"], "--min-topology")
    return topology


def _batch(
    scheduler: Scheduler, topology: Topology, words: SplitArgv, script: str, options: dict[str, Any]
) -> BatchJob:
    try:
        container = tuple(shlex.split(options["container"] or ""))
    except ValueError as error:
        raise InputError(f"--container {options['container']!r}: {error}; quote it as for a shell") from error
    own = [word for param, these in words.options if param in LAUNCH for word in these]
    plain = options["container"] is not None or scheduler.name == "kubernetes"
    batch = BatchJob(
        topology=topology,
        command=(*_ddlrun(plain=plain), "launch", "--topology", str(words.topology), *own, *words.rest),
        folder=os.getcwd(),
        name=_name(scheduler, options["job_name"], script),
        log=options["log"] or scheduler.log,
        seconds=parse_time(options["time"]) if options["time"] else None,
        memory=parse_memory(options["memory"]) if options["memory"] else None,
        cores=options["cores"] or options["cores_per_rank"],
        container=container,
        **{
            name: options[name]
            for name in (
                "queue", "account", "exclusive", "modules", "image", "warn", "requeue", "parallel_environment",
                "directives",
            )
        },
    )  # fmt: skip
    return batch._replace(gpus=_gpus(scheduler, topology, options))


def _ddlrun(*, plain: bool) -> tuple[str, ...]:
    """Return what starts ddlrun in the job: this very one, or the one in the container."""
    if plain:
        return ("ddlrun",)
    script = f"{os.path.dirname(sys.executable)}/ddlrun"
    return (script,) if os.access(script, os.X_OK) else (sys.executable, "-m", "ddlrun")


def _name(scheduler: Scheduler, name: str | None, script: str) -> str:
    if name is None:
        stem = os.path.basename(script.rstrip("/")).removesuffix(".py")
        name = f"ddlrun-{re.sub(r'[^A-Za-z0-9]+', '-', stem).strip('-') or 'job'}"[:40].rstrip("-")
        name = name.lower() if scheduler.name == "kubernetes" else name
    if scheduler.name != "kubernetes":
        return name
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise InputError(f"--job-name {name!r}: Kubernetes takes up to 40 of a-z, 0-9 and -, beginning with a letter")
    return f"{name}-{os.urandom(3).hex()}"  # there can be no second job of a name


def _gpus(scheduler: Scheduler, topology: Topology, options: dict[str, Any]) -> int:
    """Return how many GPUs a host must have: X, unless the scheduler knows of none."""
    if options["gpus"] is not None:
        return int(options["gpus"])
    return topology.accelerators if has_gpus(scheduler, options["queue"]) else 0


def _template(scheduler: Scheduler, path: str | None) -> tuple[str, str]:
    if path:
        return read_text(path, "--template"), path
    folder = f"{configs_folder()}/jobs"
    return read_text(f"{folder}/{scheduler.template}", "template"), scheduler.template
