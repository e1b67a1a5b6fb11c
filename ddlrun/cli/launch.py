"""ddlrun launch: place every rank, write the rank file, run mpirun."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from ddlrun.cli.inputs import machines_of, probe_hosts, read_hosts, read_preset, read_text
from ddlrun.environment import HOROVOD, Knob, check_name, horovod_variables, parse_assignment
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.launch import Settings, check, default_run_dir, make_plan, run, shown_command, write_run_dir
from ddlrun.machine import Machine
from ddlrun.plan import RunDir
from ddlrun.report.plan import render_plan
from ddlrun.settings import parse_config
from ddlrun.shape import UNITS, Wish
from ddlrun.topology import parse_topology

CONFIG_ENV = "ddlrun.config_env"
# Options of mpirun that would contradict the rank file.
PLANNED = frozenset(
    "-n --n -np --np -c -H --host -host --hostfile -hostfile --machinefile -machinefile --rankfile -rankfile -rf --rf "
    "--map-by -map-by --rank-by -rank-by --bind-to -bind-to --npernode -npernode --oversubscribe -oversubscribe".split()
)
COUNT = click.IntRange(min=1)


class Sections(click.Command):
    """A command whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class Option(click.Option):
    """An option that knows its heading."""

    def __init__(self, *args: Any, section: str = "Other", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.section = section


def option(section: str, *names: str, **kwargs: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - click's own
    """Declare an option under a heading."""
    return click.option(*names, cls=Option, section=section, **kwargs)


def horovod_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare one option a Horovod setting; on/off ones have three states: on, off, left alone."""
    for knob in reversed(HOROVOD):
        function = option("Horovod", _spelled(knob), knob.parameter, type=knob.kind, default=None, help=knob.help)(
            function
        )
    return function


def _spelled(knob: Knob) -> str:
    return f"--{knob.option}/--no-{knob.option}" if knob.kind is bool else f"--{knob.option}"


class Accelerators(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A number, or what one rank stands for."""

    name = "N|gpu|package|numa|core"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ANN401
        """Return a positive int or one of the words."""
        if value in UNITS:
            return str(value)
        if str(value).isascii() and str(value).isdigit() and int(value):
            return int(value)
        return self.fail(f"{value!r} is neither a positive number nor one of {', '.join(UNITS)}", param, ctx)


def load_config(ctx: click.Context, _param: click.Parameter, path: str | None) -> str | None:
    """Take defaults from a YAML file; the command line wins."""
    if path is not None:
        found = parse_config(read_text(path, "config file"), f"config file {path}")
        ctx.meta[CONFIG_ENV] = found.pop("assignments", [])
        ctx.default_map = found
    return path


@click.command(
    "launch", cls=Sections, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)
@option("Hosts", "-H", "--host", "--hosts", "hosts", metavar="LIST", help="Hosts: n1,n2 or n[01-04]:2 (2 slots each).")
@option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line.")
@option("Hosts", "--machine", metavar="PRESET|FILE", help="What each host is made of; default: ddlrun asks each host.")
@option("Hosts", "-p", "--ssh-port", type=click.IntRange(1, 65535), help="Port of ssh on the hosts.")
@option("Hosts", "-i", "--ssh-identity-file", metavar="FILE", help="Key for ssh to the hosts.")
@option("Shape", "--topology", metavar="XxYxZ", help="X ranks per host, Y hosts per rack, Z racks (and A aisles).")
@option(
    "Shape",
    "--accelerators",
    type=Accelerators(),
    metavar="N|gpu|package|numa|core",
    help="X: a number, or one rank a GPU, package, NUMA node or core.",
)
@option("Shape", "--nodes", type=COUNT, help="Y: hosts per rack.")
@option("Shape", "--racks", type=COUNT, help="Z: racks.")
@option("Shape", "--aisles", type=COUNT, help="A: aisles.")
@option("Shape", "-np", "--num-proc", "processes", type=COUNT, help="Ranks in all; the same number on each host.")
@option(
    "Shape", "--rank-order", type=click.Choice(["auto", "host", "ddl"]), default="auto", show_default=True,
    help="host: contiguous on each host; ddl: round robin over hosts; auto: ddl with --mode, else host.",
)  # fmt: skip
@option(
    "Shape", "--mode", type=click.Choice(list("bnrmcp")), help="DDL's algorithm: sets DDL_OPTIONS and the ddl order."
)
@option("MPI", "--mpirun", metavar="PATH", help="Use this mpirun; default: beside this Python, else on PATH.")
@option("MPI", "--mpi-args", metavar="ARGS", help="More arguments for mpirun, quoted as for a shell.")
@option("MPI", "--mpiarg", multiple=True, metavar="ARG", help="One more argument for mpirun; may be repeated.")
@option("Environment", "--env", "assignments", multiple=True, metavar="K=V", help="Set K for the ranks; repeatable.")
@option("Environment", "-x", "named", multiple=True, metavar="NAME", help="Pass NAME on to the ranks; repeatable.")
@option("Run", "--run-dir", metavar="DIR", help="Folder for rank file, plan and logs; default: ~/.local/state/ddlrun.")
@option("Run", "--dry-run", is_flag=True, help="Print the plan and the command; start nothing.")
@option("Run", "--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@option("Run", "--verbose", is_flag=True, help="Print the reasons and the command too.")
@option("Run", "--quiet", is_flag=True, help="Print nothing but what the job prints, and errors.")
@option(
    "Run", "--config-file", metavar="FILE", is_eager=True, expose_value=False, callback=load_config,
    help="YAML with hosts, shape, env and Horovod's own settings; the command line wins.",
)  # fmt: skip
@horovod_options
@option("Run", "-m", "is_module", is_flag=True, help="SCRIPT is a Python module, as in python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, script: str, args: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's own
    """Launch SCRIPT on every accelerator of the hosts, each rank where it belongs.

    A .py file runs under this Python; -m takes a module; anything else is a program. Options come
    before SCRIPT; what follows it is the script's own.
    """
    options["config_env"] = ctx.meta.get(CONFIG_ENV, [])
    _prefer_command_line(ctx, options)
    settings = read_settings(options, _program(script, args, is_module=options["is_module"]))
    mpirun = check(settings, os.environ)
    machines = _machines(settings.hosts, options["machine"], settings.ssh)
    plan = make_plan(settings, mpirun(), machines, os.environ)
    shown = render_plan(plan, shown_command(plan), full=options["dry_run"] or options["verbose"])
    if options["dry_run"]:
        if options["run_dir"]:
            write_run_dir(plan)
        click.echo(json.dumps(plan.as_dict(), indent=2) if options["as_json"] else shown, nl=options["as_json"])
        return 0
    write_run_dir(plan)
    if not options["quiet"]:
        click.echo(shown, nl=False, err=True)
    outcome = run(plan, os.environ)
    if outcome.exit_code and not options["quiet"]:
        seconds = f"{outcome.seconds:.1f} s"
        click.echo(f"ddlrun: exit code {outcome.exit_code} after {seconds}; logs: {plan.run_dir.path}", err=True)
    return outcome.exit_code


def _prefer_command_line(ctx: click.Context, options: dict[str, Any]) -> None:
    """Hosts, or a shape, on the command line leave those of the config file out, however each is spelled."""
    shape = ("topology", "accelerators", "nodes", "racks", "aisles", "processes")
    for names in (("hosts", "hostfile"), shape):
        sources = {name: ctx.get_parameter_source(name) for name in names}
        if ParameterSource.COMMANDLINE in sources.values():
            options |= {name: None for name, source in sources.items() if source is ParameterSource.DEFAULT_MAP}


def read_settings(options: dict[str, Any], program: tuple[str, ...]) -> Settings:
    """Turn options into Settings. Raises InputError for each that is wrong."""
    if options["as_json"] and not options["dry_run"]:
        raise InputError("--json goes with --dry-run")
    passed = [word for word in options["named"] if "=" in word]
    named = [word for word in options["named"] if "=" not in word]
    for name in named:
        check_name(name, "-x")
    run_dir = options["run_dir"]
    return Settings(
        wish=Wish(
            parse_topology(options["topology"], "--topology") if options["topology"] else None,
            *(options[name] for name in ("processes", "accelerators", "nodes", "racks", "aisles")),
        ),
        hosts=read_hosts(options["hosts"], options["hostfile"], "-H"),
        rank_order=options["rank_order"],
        mode=options["mode"],
        program=program,
        run_dir=RunDir(os.path.abspath(run_dir)) if run_dir else default_run_dir(os.environ),
        mpirun=options["mpirun"],
        mpi_args=_mpi_args(options["mpi_args"] or "", options["mpiarg"]),
        ssh=_ssh(options["ssh_port"], options["ssh_identity_file"]),
        variables={
            **horovod_variables(options),
            **dict(map(parse_assignment, (*options["config_env"], *passed, *options["assignments"]))),
        },
        named=tuple(named),
    )


def _program(script: str, args: tuple[str, ...], *, is_module: bool) -> tuple[str, ...]:
    if is_module:
        return (sys.executable, "-m", script, *args)
    if not script.endswith(".py"):
        return (script, *args)
    if not os.path.isfile(script):
        raise InputError(f"script {script!r} is not there (looked in {os.getcwd()})")
    return (sys.executable, script, *args)


def _mpi_args(text: str, more: tuple[str, ...]) -> tuple[str, ...]:
    try:
        words = (*shlex.split(text), *more)
    except ValueError as error:
        raise InputError(f"--mpi-args {text!r}: {error}; quote it as for a shell") from error
    if words and not words[0].startswith("-"):
        raise InputError(f"--mpi-args: {words[0]!r} is no option; mpirun would start it instead of the script")
    taken = [word for word in words if word in PLANNED]
    if taken:
        raise InputError(f"--mpi-args: {taken[0]} is what ddlrun plans; use ddlrun's own options instead")
    return words


def _ssh(port: int | None, identity: str | None) -> tuple[str, ...]:
    if identity and not os.path.isfile(identity):
        raise InputError(f"--ssh-identity-file {identity}: no such file")
    return (*(("-p", str(port)) if port else ()), *(("-i", identity) if identity else ()))


def _machines(hosts: HostList, machine: str | None, ssh: tuple[str, ...]) -> dict[str, Machine]:
    described = read_preset(machine) if machine else None
    return machines_of(hosts, described) if described is not None else probe_hosts(hosts, ssh)
