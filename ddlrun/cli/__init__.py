"""Command line of ddlrun: one module per command."""

from __future__ import annotations

import gc

gc.disable()  # start-up creates no garbage, and collections take 4 ms of every start

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from ddlrun import __version__
from ddlrun.cli.groups import LazyGroup
from ddlrun.cli.signals import EndedError, handle_signals
from ddlrun.errors import EXIT_INTERRUPTED, DdlrunError, InputError, PreflightError, spell_options
from ddlrun.remote.system_limits import explain_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddlrun.application.reporter import Reporter

# The variable by which the completion script of a shell requests completions.
COMPLETION = "_DDLRUN_COMPLETE"
# The headings of the help, each with its commands and the first sentence of their helps.
SECTIONS = {
    "Common commands": {
        "launch": "Launch SCRIPT with ranks placed and bound.",
        "logs": "Print the output of RUN.",
        "top": "Show what the ranks of RUN use, and what limits them.",
        "doctor": "Find out why RUN hangs.",
        "runs": "List your runs, the running ones first.",
    },
    "Runs": {
        "rerun": "Launch an earlier run again, with changes.",
        "report": "Write RUN as one HTML page.",
        "kill": "End RUNS and their processes on all hosts.",
        "clean": "End processes and remove files that earlier runs left behind.",
        "submit": "Submit a batch job that launches SCRIPT.",
    },
    "Plans": {
        "gen-rankfile": "Write the Open MPI rank file of TOPOLOGY on HOSTS.",
        "lint": "Check RANKFILE against Open MPI 4.1 and 5.0.",
        "show": "Print what a launch would do, and start nothing.",
        "config": "Show the options of a launch, and where each value comes from.",
    },
    "Hosts": {
        "check": "Check that a job can run on HOSTS.",
        "probe": "Show the hardware of HOSTS.",
        "network": "Measure the network of HOSTS, tune for it, or predict a job on it.",
    },
}
# Command -> words that people may type instead: those of other programs, and plain ones.
_TYPED = {
    "launch": "run exec start torchrun mpirun",
    "launch --debug-rank": "debug",
    "launch --wrap": "profile",
    "logs": "output",
    "logs -f": "tail attach",
    "top": "monitor watch htop",
    "top --web": "dashboard",
    "top --listen": "metrics",
    "doctor": "hang stack",
    "runs": "status list ls history jobs squeue",
    "runs --processes": "ps",
    "rerun": "restart retry resume",
    "kill": "stop cancel scancel",
    "clean": "cleanup rm delete",
    "submit": "batch sbatch",
    "gen-rankfile": "rankfile",
    "show placement": "placement",
    "show schema": "schema",
    "check": "preflight",
    "probe": "topo machines gpus",
    "network racks": "racks",
    "network bench": "bench benchmark",
    "network tune": "tune",
    "network plan": "plan predict",
    "--version": "version -v -version",
    "--help": "-help -?",
}
SYNONYMS = {word: name for name, words in _TYPED.items() for word in words.split()}
# Columns of a help text on a terminal that is wide enough.
MOST_COLUMNS = 120


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    package=__name__,
    synonyms=SYNONYMS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MOST_COLUMNS},
)
@click.version_option(__version__, "-V", "--version", message="ddlrun %(version)s")
def group() -> None:
    """Launch distributed training, with each rank bound to cores near its GPU.

    \b
    ddlrun launch train.py           on this machine, with one rank per GPU
    ddlrun launch -H n1,n2 train.py  on two hosts
    ddlrun help COMMAND              the options of a command
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with \b


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
    except KeyboardInterrupt:  # just before the command, or after it, as while its error is printed
        os._exit(EXIT_INTERRUPTED)
    except EndedError as error:  # the same
        os._exit(error.report())


def run_command(
    args: Sequence[str], fail: Callable[[DdlrunError], None] = print_error, reporter: Reporter | None = None
) -> int:
    """Run a command line and return its exit code; the arguments are those of `main`."""
    try:
        return group.main([*args], prog_name="ddlrun", standalone_mode=False, obj=reporter) or 0
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
        return error.report()
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
