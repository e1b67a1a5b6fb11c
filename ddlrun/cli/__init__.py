"""Command line of ddlrun: one module per command."""

from __future__ import annotations

import gc

gc.disable()  # start-up creates no garbage, and collections take 4 ms of every start

import contextlib
import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from ddlrun import __version__
from ddlrun.cli.signals import EndedError, handle_signals
from ddlrun.errors import EXIT_INTERRUPTED, DdlrunError, InputError, PreflightError, spell_options
from ddlrun.remote.system_limits import explain_limit
from ddlrun.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.shell_completion import CompletionItem

    from ddlrun.application.reporter import Reporter

# The variable by which the completion script of a shell requests completions.
COMPLETION = "_DDLRUN_COMPLETE"
# The headings of the help, each with its commands and the first sentence of their helps: a list imports no command.
SECTIONS = {
    "Jobs": {
        "launch": "Launch SCRIPT with ranks placed and bound.",
        "submit": "Submit a batch job that launches SCRIPT.",
    },
    "Plans": {
        "gen-rankfile": "Write the Open MPI rank file of TOPOLOGY on HOSTS.",
        "lint": "Check RANKFILE against Open MPI 4.1 and 5.0.",
        "show": "Show part of a launch, and start nothing.",
        "plan": "Predict the step time of every topology.",
        "config": "Show the options of a launch, and where each value comes from.",
    },
    "Hosts": {
        "check": "Check that a job can run on HOSTS.",
        "probe": "Show the hardware of HOSTS.",
        "racks": "Find the racks of HOSTS by measurement.",
        "bench": "Measure links and collectives on HOSTS.",
        "tune": "Find the fastest settings for HOSTS.",
    },
    "Runs": {
        "runs": "List your runs, the latest first.",
        "top": "Show what the ranks of RUN use, and what limits them.",
        "dashboard": "Serve a web page with what the ranks of RUN use, and what limits them.",
        "metrics": "Print what the ranks of RUN use, for Prometheus, or export it to OpenTelemetry.",
        "logs": "Print the output of RUN.",
        "doctor": "Find the reason why RUN hangs.",
        "rerun": "Launch an earlier run again, with changes.",
        "report": "Write RUN as one HTML page.",
        "ps": "List your runs and their processes on HOSTS.",
        "kill": "End RUNS and their processes on all hosts.",
        "clean": "End processes and remove files that earlier runs left behind.",
    },
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)
# Command -> module and function, unless these are its own name and `command`.
PLACES = {
    "gen-rankfile": "gen_rankfile", "runs": "run_history", "ps": "runs.ps", "kill": "runs.kill", "clean": "runs.clean",
}  # fmt: skip
# Commands of other programs -> command here.
SYNONYMS = {
    "run": "launch", "exec": "launch", "start": "launch", "torchrun": "launch", "mpirun": "launch", "batch": "submit",
    "sbatch": "submit", "stop": "kill", "cancel": "kill", "status": "ps", "list": "runs", "history": "runs",
    "monitor": "top", "watch": "top", "htop": "top",
    "restart": "rerun", "rankfile": "gen-rankfile",
    "version": "--version", "-v": "--version", "-version": "--version", "-help": "--help", "-?": "--help",
    "debug": "launch --debug-rank",
    "topo": "probe", "benchmark": "bench", "cleanup": "clean", "preflight": "check",
}  # fmt: skip
# Columns of a help text on a terminal that is wide enough.
MOST_COLUMNS = 120


class LazyGroup(click.Group):
    """A group that imports a command only when it is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; `help COMMAND` is `COMMAND --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args and args[0].startswith("-") and not ctx.resilient_parsing:
            _check_option(ctx, args, self.get_params(ctx))
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word. Raises UsageError with a suggestion where there is none."""
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing:
            if os.path.isfile(name) or name.endswith(".py"):
                raise click.UsageError(f"no such command {name!r} (did you mean ddlrun launch {name}?)", ctx)
            raise click.UsageError(f"no such command {name!r}{did_you_mean(name, COMMANDS, SYNONYMS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the commands under their headings, each with the first sentence of its help."""
        for heading, summaries in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([*summaries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions of a command's name, or of an option of the group."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - 0.6 ms, for a shell's completion alone

        summaries = {name: text for names in SECTIONS.values() for name, text in names.items()}
        items = [CompletionItem(name, help=text) for name, text in summaries.items() if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands' names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module_name, _, function = PLACES.get(cmd_name, cmd_name).partition(".")
        module = importlib.import_module(f"ddlrun.cli.{module_name}")
        gc.freeze()
        gc.enable()
        command = getattr(module, function or "command")
        if not isinstance(command, click.Command):
            raise TypeError(cmd_name)
        return command


def _check_option(ctx: click.Context, args: list[str], params: list[click.Parameter]) -> None:
    """Raise UsageError where the first word is an option that only commands have, or none at all."""
    name = args[0].partition("=")[0]
    names = [option for param in params for option in param.opts]
    if name == "--" or name in names:
        return
    hint = did_you_mean(name, (known for known in names if known.startswith("--")), SYNONYMS)
    place = hint or f"; options come after a command, as in ddlrun launch {name}"
    raise click.UsageError(f"no such option {name}{place}", ctx)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MOST_COLUMNS},
)
@click.version_option(__version__, "-V", "--version", message="ddlrun %(version)s")
def group() -> None:
    """Launch distributed training, with each rank bound to cores near its GPU.

    The topology of a job is XxYxZ: X ranks per host, Y hosts per rack, Z racks. Run ddlrun help COMMAND for the options
    of a command.
    """


def print_error(error: DdlrunError) -> None:
    """Print one line per problem."""
    for problem in map(spell_options, error.problems):
        click.echo(f"ddlrun: error: {problem}", err=True)


def main(
    args: Sequence[str] | None = None,
    fail: Callable[[DdlrunError], None] = print_error,
    reporter: Reporter | None = None,
) -> NoReturn:
    """Run ddlrun with the words after its name (None: those of the command line) and exit. A bug is a traceback.

    `fail` is called with an error of the user; the reporter (None: the console) gets what a launch shows.
    """
    os.environ.setdefault("HOME", os.path.expanduser("~"))  # Open MPI 5 does not start without it,
    os.environ.setdefault("PATH", os.defpath)  # nor without this one, for which shells have a default, too
    _open_standard_streams()
    try:
        handle_signals()
        if COMPLETION in os.environ:
            from ddlrun.cli.completion import complete_line  # noqa: PLC0415 - 1 ms, for a shell's completion alone

            _exit(complete_line(group, COMPLETION))
        _exit(run_command(sys.argv[1:] if args is None else args, fail, reporter))
    except KeyboardInterrupt:  # just before the command, or after it
        os._exit(EXIT_INTERRUPTED)


def run_command(
    args: Sequence[str], fail: Callable[[DdlrunError], None] = print_error, reporter: Reporter | None = None
) -> int:
    """Run a command line and return its exit code; the arguments are those of `main`."""
    try:
        return group.main([*args] or ["--help"], prog_name="ddlrun", standalone_mode=False, obj=reporter) or 0
    except DdlrunError as error:
        problem = error
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "ddlrun"
        problem = InputError(f"{_message(error).rstrip('.')}; see {command} --help")
    except click.ClickException as error:
        problem = DdlrunError(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except EndedError as error:
        return error.exit_code
    except OSError as error:
        problem = _system_failure(error)
    fail(problem)
    return problem.exit_code


def _exit(code: int) -> NoReturn:
    """Flush the standard streams and exit at once: Python would take 8 ms more to free its modules."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed when Python started
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python reports what cannot be written
    os._exit(code)


def _open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream, whose number a socket would get otherwise."""
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)


def _message(error: click.UsageError) -> str:
    """Return the message of an error; a wrong value from a config file or a variable is reported with its place."""
    name = error.param.name if isinstance(error, click.BadParameter) and error.param else None
    if error.ctx and name and error.ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
        from ddlrun.cli.options.configuration import find_configuration  # noqa: PLC0415 - 20 ms, not for --help

        return f"{find_configuration(error.ctx).values[name].place}: {error.message}"
    return _describe(error)


def _describe(error: click.UsageError) -> str:
    """Return the message of an error, with the names of the option or argument that it is about."""
    param = error.param if isinstance(error, click.BadParameter) else None
    if isinstance(error, click.MissingParameter) and param is not None:
        return f"{param.metavar or param.human_readable_name} is missing"
    if param is not None:
        name = (
            f"`{', '.join(param.opts)}`" if isinstance(param, click.Option) else param.human_readable_name.strip("[]")
        )
        return f"{name}: {error.message}"
    if isinstance(error, click.BadOptionUsage):
        return error.format_message().replace(error.option_name, f"`{error.option_name}`")
    return error.format_message()


def _system_failure(error: OSError) -> DdlrunError:
    """Return the error of the user if a limit or a full disk is the cause; raise any other error again."""
    limit = explain_limit(error, os.environ)
    if limit is not None:
        return PreflightError(limit)
    if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is buffered cannot be written either
    return DdlrunError(f"cannot write the output: {error.strerror}")
