"""What a job is, as launch and show take it: options, the config file, and what they become."""

import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from ddlrun.cli.inputs import find_job, load_hosts, read_hosts, read_rankfile, read_text, read_way
from ddlrun.cli.options import (
    COUNT,
    option,
    option_group,
    placement_options,
    read_policy,
    scheduler_options,
    ssh_options,
)
from ddlrun.cli.profile_store import read_profiles
from ddlrun.environment.exports import (
    HOROVOD,
    HorovodSetting,
    check_name,
    horovod_variables,
    lms_variables,
    parse_assignment,
)
from ddlrun.environment.frameworks import FRAMEWORKS, parse_frameworks
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.rack_layout import RackLayout, RackNoteCode, arrange
from ddlrun.mapping.spare_hosts import HostAssignment
from ddlrun.mapping.topology_request import UNITS, TopologyRequest
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import Settings, parse_config
from ddlrun.plan.supervision import OutputStyle, SupervisionOptions
from ddlrun.plan.tuning_profile import Profiles
from ddlrun.remote.agent import apply_job_names
from ddlrun.runs.store import default_run_dir
from ddlrun.schedulers import Allocation
from ddlrun.topology import parse_topology

CONFIG_ENV = "ddlrun.config_env"


class SecondsType(click.FloatRange):
    """A number of seconds."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return a number from 0 on, with an end."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e9:
            self.fail(f"{value!r} is no number of seconds, such as 90 or 0.5", param, ctx)
        return number


SECONDS = SecondsType()
# These end the job, or cannot be caught.
UNFORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
# Options of mpirun that would contradict the rank file.
PLANNED = frozenset(
    "-n --n -np --np -c -H --host -host --hostfile -hostfile --machinefile -machinefile --rankfile -rankfile -rf --rf "
    "--map-by -map-by --rank-by -rank-by --bind-to -bind-to --npernode -npernode --oversubscribe -oversubscribe".split()
)


def horovod_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare one option a Horovod setting; on/off ones have three states: on, off, left alone."""
    for knob in reversed(HOROVOD):
        function = option("Horovod", _spelled(knob), knob.parameter, type=_kind(knob), default=None, help=knob.help)(
            function
        )
    return function


def _kind(knob: HorovodSetting) -> Any:  # noqa: ANN401 - what click takes as a type
    """Return what values a setting takes: no negative numbers, as horovodrun."""
    if knob.option == "log-level":
        return click.Choice(["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"], case_sensitive=False)
    if knob.option == "autotune-gaussian-process-noise":
        return click.FloatRange(0, 1)
    return {int: click.IntRange(min=0), float: click.FloatRange(min=0)}.get(knob.kind, knob.kind)


def _spelled(knob: HorovodSetting) -> str:
    return f"--{knob.option}/--no-{knob.option}" if knob.kind is bool else f"--{knob.option}"


class AcceleratorsType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
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


job_options = option_group(
    option("Hosts", "-H", "--host", "--hosts", "hosts", metavar="LIST", help="Hosts: n1,n2 or n[01-04]:2 (2 slots)."),
    option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line."),
    option(
        "Hosts", "--machine", metavar="PRESET|FILE",
        help="What each host is made of: a preset, YAML, lstopo XML, a saved host's folder, or 'local'; default: ask.",
    ),
    option("Hosts", "--load", metavar="DIR", help="Take the machines that ddlrun probe --save wrote, and its hosts."),
    ssh_options,
    scheduler_options,
    option("Shape", "--topology", metavar="XxYxZ", help="X ranks per host, Y hosts per rack, Z racks (and A aisles)."),
    option(
        "Shape",
        "--accelerators",
        type=AcceleratorsType(),
        metavar="N|gpu|package|numa|core",
        help="X: a number, or one rank a GPU, package, NUMA node or core.",
    ),
    option("Shape", "--nodes", type=COUNT, help="Y: hosts per rack."),
    option("Shape", "--racks", type=COUNT, help="Z: racks."),
    option("Shape", "--aisles", type=COUNT, help="A: aisles."),
    option(
        "Shape", "-np", "-n", "--num-proc", "processes", type=COUNT,
        help="Ranks in all; the same number on each host.",
    ),
    option("Shape", "--nnodes", type=COUNT, hidden=True),  # torchrun's: must agree with the hosts

    option(
        "Shape", "--rank-order", type=click.Choice(["auto", "host", "ddl"]), default="auto", show_default=True,
        help="host: contiguous on each host; ddl: round robin over hosts; auto: ddl with --mode, else host.",
    ),
    option(
        "Shape", "--framework", "frameworks", default="auto", show_default=True, metavar="NAME,NAME",
        help=f"How ranks are to find each other: {', '.join(FRAMEWORKS)}; auto: all of these at once.",
    ),
    option(
        "Shape", "--mode", type=click.Choice(list("bnrmcp")),
        help="DDL's algorithm: sets DDL_OPTIONS and the ddl order.",
    ),
    option(
        "Shape", "--profile", default="auto", show_default=True, metavar="auto|none|FILE",
        help="Take what ddlrun tune found best: auto: on these hosts, if it was run on them.",
    ),
    option(
        "Large models", "--lms", type=click.IntRange(min=0), metavar="SIZE_KB",
        help="ddlrun.ddl.lms moves tensors of at least SIZE_KB to the host (DDLRUN_LMS); 0: none.",
    ),
    option(
        "Large models", "--lms-frac", type=click.FloatRange(0, 1), metavar="F",
        help="Only once this share of the device is taken, 0 to 1 (DDLRUN_LMS_FRAC).",
    ),
    option("MPI", "--mpirun", metavar="PATH", help="Use this mpirun; default: beside this Python, else on PATH."),
    option("MPI", "--mpi-args", metavar="ARGS", help="More arguments for mpirun, quoted as for a shell."),
    option("MPI", "--mpiarg", multiple=True, metavar="ARG", help="One more argument for mpirun; may repeat."),
    option("MPI", "--allow-run-as-root", is_flag=True, help="Start as root, too; in a container that is usual."),
    option("Environment", "--env", "assignments", multiple=True, metavar="K=V", help="Set K; may repeat."),
    option("Environment", "-x", "named", multiple=True, metavar="NAME", help="Pass NAME on to the ranks; may repeat."),
    option("Placement", "--rankfile", metavar="FILE", help="Place ranks as this rank file says; it is checked first."),
    placement_options,
    option("Placement", "--share-gpus", is_flag=True, help="More ranks than GPUs may share them, each in turn."),
    option(
        "Placement", "--visible-gpus", type=click.Choice(["all", "own", "unchanged"]),
        help="GPUs that a rank sees: all, its own at the index of its local rank (default); its own (default with "
        "--framework tensorflow, but for one rank a host); or as you set it.",
    ),
    option(
        "Placement", "--bind-threads/--no-bind-threads", default=None,
        help="Bind OpenMP threads to cores too (OMP_PROC_BIND); what a rank forks then stays on one core.",
    ),
    option("Placement", "--strict-binding", is_flag=True, help="End the job where a rank is not bound as planned."),
    option(
        "Run", "--config-file", metavar="FILE", is_eager=True, expose_value=False, callback=load_config,
        help="YAML with hosts, shape, env and Horovod's own settings; the command line wins.",
    ),
    option("Output", "--tag-output/--no-tag-output", "tag", default=None,
           help="Put [rank@host] before each line; default: with more than one rank."),
    option("Output", "--timestamp-output", is_flag=True, help="Put the time before each line."),
    option("Output", "--ranks", "shown_ranks", metavar="0,3-5", help="Show the output of these ranks; files have all."),
    option("Output", "--output-filename", metavar="DIR", help="Write DIR/rank.N/stdout and stderr for each rank."),
    option("Ending", "--grace", type=SECONDS, default=10.0, show_default=True,
           help="Seconds between TERM and KILL, for all ranks at once."),
    option("Ending", "--timeout", type=SECONDS, default=0.0, help="End the job after so many seconds, with 124."),
    option("Ending", "--heartbeat", type=SECONDS, default=30.0, show_default=True,
           help="Seconds without a sign of life after which a host, or ddlrun, counts as lost; 0: never."),
    option("Ending", "--stall-timeout", type=SECONDS, default=0.0,
           help="Report ranks that print nothing for so many seconds, and where they are."),
    option("Ending", "--forward-signals", default="USR1,USR2", show_default=True, metavar="NAME,...",
           help="Signals that are passed on to the ranks' programs."),
    horovod_options,
    option("Run", "-m", "is_module", is_flag=True, help="SCRIPT is a Python module, as in python -m."),
)  # fmt: skip


def read_settings(ctx: click.Context, options: dict[str, Any], program: tuple[str, ...]) -> Settings:
    """Turn options into Settings. Raises InputError for each that is wrong."""
    options["config_env"] = ctx.meta.get(CONFIG_ENV, [])
    _prefer_command_line(ctx, options)
    variables, named = _variables(options)
    if options["rankfile"] == "-":
        raise InputError("--rankfile -: standard input belongs to rank 0; write the rank file to a file")
    job = find_job(options["scheduler"], named=bool(options["hosts"] or options["hostfile"]))
    arranged = _arranged(options, job)
    return Settings(
        wish=arranged.request,
        hosts=arranged.hosts,
        rank_order=options["rank_order"],
        mode=options["mode"],
        program=program,
        run_dir=_run_dir(options, job),
        mpirun=options["mpirun"],
        mpi_args=_mpi_args(options["mpi_args"] or "", options["mpiarg"]),
        way=read_way(options, job, arranged.hosts),
        job=job,
        asked_shape=" ".join(f"--{name} {options[name]}" for name in ("nodes", "racks", "aisles") if options[name]),
        left_out=arranged.left_out,
        notes=(*(job.notes if job is not None else ()), *map(str, arranged.notes)),
        variables=variables,
        named=named,
        policy=read_policy(options)._replace(share_gpus=options["share_gpus"]),
        frameworks=parse_frameworks(options["frameworks"]),
        knobs={knob.parameter: options[knob.parameter] for knob in HOROVOD},
        visible_gpus=options["visible_gpus"],
        bind_threads=options["bind_threads"],
        strict_binding=options["strict_binding"],
        rankfile=(options["rankfile"], read_rankfile(options["rankfile"])) if options["rankfile"] else None,
        watch=read_watch(options, job),
        profiles=_profiles(options, arranged.hosts.names),
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{os.urandom(4).hex()}",
        tcp=options.get("tcp", False),
        as_root=options["allow_run_as_root"],
    )


def _variables(options: dict[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that ranks get, and the names of those that they get as they are here (-x NAME)."""
    passed = [word for word in options["named"] if "=" in word]
    named = [word for word in options["named"] if "=" not in word]
    for name in named:
        check_name(name, "-x")
    assigned = map(parse_assignment, (*options["config_env"], *passed, *options["assignments"]))
    return {**horovod_variables(options), **lms_variables(options), **dict(assigned)}, tuple(named)


def _arranged(options: dict[str, Any], job: Allocation | None) -> RackLayout:
    """Return the hosts in the order of their racks, and the shape that these give."""
    wish = TopologyRequest(
        parse_topology(options["topology"], "--topology") if options["topology"] else None,
        options["processes"], options["accelerators"], options["nodes"], options["racks"], options["aisles"],
        gpus=job.gpus if job is not None else None,
    )  # fmt: skip
    hosts = apply_job_names(job_hosts(options, job), job)
    if options["nnodes"] not in (None, len(hosts)):
        raise InputError(f"--nnodes {options['nnodes']}, but {hosts.source} has {len(hosts)}; name them: -H HOST,HOST")
    spare = options.get("spare_hosts") == "extra"
    if spare and wish.topology is None:
        raise InputError("--spare-hosts extra: give the --topology, which says how many hosts it needs")
    layout = arrange(wish, hosts, choose=spare or (job is not None and hosts is job.hosts))
    if spare:  # the hosts that are left out are the spare ones
        notes = tuple(note for note in layout.notes if note.code is not RackNoteCode.LEFT_OUT)
        return layout._replace(notes=notes)
    return layout


def _profiles(options: dict[str, Any], hosts: Sequence[str]) -> Profiles:
    """Return the profiles that are asked for; who says the shape in any way keeps it."""
    found = read_profiles(options["profile"], hosts)
    words = (*options["config_env"], *options["named"], *options["assignments"])
    stated = "DDL_OPTIONS" in os.environ or any(word.startswith("DDL_OPTIONS=") for word in words)
    asked = any(options[name] for name in ("topology", "nodes", "racks", "aisles", "rankfile"))
    return found._replace(free=not (stated or asked))


def _run_dir(options: dict[str, Any], job: Allocation | None) -> RunDir:
    """Return the run's folder; a job that its scheduler has started again has one of its own in the named one."""
    if not options.get("run_dir"):
        return default_run_dir(os.environ)
    return RunDir(_again(os.path.abspath(options["run_dir"]), job))


def _again(folder: str, job: Allocation | None) -> str:
    return f"{folder}/requeue-{job.restarts}" if job is not None and job.restarts else folder


def read_crew(settings: Settings, spare: str | None) -> HostAssignment:
    """Return the hosts of the job and those that stand by. Raises InputError where they overlap."""
    hosts = list(settings.hosts)
    topology = settings.wish.topology
    more = list(read_hosts(spare, None, "--spare-hosts")) if spare and spare != "extra" else []
    if spare == "extra":
        more = list(settings.left_out)
    both = {host.name for host in hosts} & {host.name for host in more}
    if both:
        raise InputError(f"--spare-hosts: {min(both)} is one of the job's own hosts")
    racks = len(hosts) // (topology.dims[1] if topology else settings.wish.nodes or len(hosts))
    return HostAssignment(settings.hosts, tuple(more), max(1, racks))


def read_watch(options: dict[str, Any], job: Allocation | None = None) -> SupervisionOptions:
    """Return how the job is watched. Raises InputError on ranks or signals that are none."""
    folder = options["output_filename"]
    style = OutputStyle(
        tag=options["tag"], timestamp=options["timestamp_output"],
        folder=_again(os.path.abspath(folder), job) if folder else None,
        ranks=read_ranks(options["shown_ranks"]) if options["shown_ranks"] else None,
    )  # fmt: skip
    colour = os.isatty(1) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return SupervisionOptions(
        0, start=options.get("start_timeout") or 0.0, grace=options["grace"],
        heartbeat=options["heartbeat"], timeout=options["timeout"],
        stall=options["stall_timeout"], forward=read_signals(options["forward_signals"]), style=style, colour=colour,
        status_line=os.isatty(2) and not options.get("quiet") and os.environ.get("TERM") != "dumb",
    )  # fmt: skip


def read_ranks(text: str) -> frozenset[int]:
    """Return the ranks of a list such as 0,3-5. Raises InputError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"--ranks {text!r}: {part!r} is no rank; write a list such as 0,3-5")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def read_signals(text: str) -> tuple[int, ...]:
    """Return the numbers of signals, named as kill does. Raises InputError."""
    numbers = []
    for word in filter(None, (word.strip().upper().removeprefix("SIG") for word in text.split(","))):
        number = getattr(signal, f"SIG{word}", None) if not word.isdigit() else int(word)
        if not isinstance(number, int) or not 0 < number < signal.NSIG or number in UNFORWARDED:
            raise InputError(f"--forward-signals {text!r}: {word!r} cannot be passed on; write names such as USR1,USR2")
        numbers.append(int(number))
    return tuple(dict.fromkeys(numbers))


def _prefer_command_line(ctx: click.Context, options: dict[str, Any]) -> None:
    """Hosts, or a shape, on the command line leave those of the config file out, however each is spelled."""
    shape = ("topology", "accelerators", "nodes", "racks", "aisles", "processes")
    for names in (("hosts", "hostfile"), shape):
        sources = {name: ctx.get_parameter_source(name) for name in names}
        if ParameterSource.COMMANDLINE in sources.values():
            options |= {name: None for name, source in sources.items() if source is ParameterSource.DEFAULT_MAP}


def job_hosts(options: dict[str, Any], job: Allocation | None = None) -> HostList:
    """Return the hosts that are named, or --rankfile's, or all that --load has saved, or the job's, or this machine."""
    if options["rankfile"] and not options["hosts"] and not options["hostfile"]:
        from ddlrun.mapping.rankfile_entries import parse_host_names  # noqa: PLC0415 - for the user's own rank file alone

        text = read_rankfile(options["rankfile"])
        return HostList(tuple(map(Host, parse_host_names(text))), f"rank file {options['rankfile']}")
    if options["load"] and not options["hosts"] and not options["hostfile"]:
        return HostList(tuple(map(Host, load_hosts(options["load"]))), f"--load {options['load']}")
    return read_hosts(options["hosts"], options["hostfile"], "-H", job)


def read_program(script: str, args: tuple[str, ...], *, is_module: bool) -> tuple[str, ...]:
    """Return what each rank runs. Raises InputError where a .py file is not there."""
    if is_module:
        return (sys.executable, "-m", script, *args)
    if not script.endswith(".py"):
        if os.path.isdir(script) and "/" in script:
            raise InputError(f"{script!r} is a folder; name the script or program in it")
        if re.search(r",|\[\d", script) and shutil.which(script) is None:
            raise InputError(f"there is no program {script!r}; name hosts with -H: -H {script} SCRIPT")
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
