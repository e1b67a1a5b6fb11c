"""The command line: one small file a command."""

from __future__ import annotations

import gc

gc.disable()  # what starts is no garbage; looking for some is 4 ms of every start

import contextlib
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from ddlrun import __version__
from ddlrun.errors import DdlrunError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

# Command -> module, and its name there if that is not `command`; imported when it is used, or for --help.
COMMANDS = {
    "check": "check",
    "gen-rankfile": "gen_rankfile",
    "launch": "launch",
    "submit": "submit",
    "lint": "lint",
    "probe": "probe",
    "show": "show",
    "plan": "plan",
    "report": "report",
    "racks": "racks",
    "bench": "bench",
    "tune": "tune",
    "ps": "runs.ps",
    "kill": "runs.kill",
    "clean": "runs.clean",
}


class LazyGroup(click.Group):
    """Imports a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module_name, _, name = COMMANDS[cmd_name].partition(".")
        module = importlib.import_module(f"ddlrun.cli.{module_name}")
        gc.freeze()
        gc.enable()
        command = getattr(module, name or "command")
        if not isinstance(command, click.Command):
            raise TypeError(cmd_name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="ddlrun %(version)s")
def group() -> None:
    """Launch distributed training on MPI clusters, every rank where it belongs.

    Describe the cluster as XxYxZ: X accelerators per host, Y hosts per rack, Z racks.
    """


def main() -> NoReturn:
    """Run ddlrun and exit: a user's mistake is shown as one line a problem, a bug as a traceback."""
    os.environ.setdefault("HOME", os.path.expanduser("~"))  # Open MPI 5 does not start without it
    for fd in (0, 1, 2):  # one that is closed would become somebody's socket
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    sys.unraisablehook = _raise_again
    try:
        code = group.main(sys.argv[1:] or ["--help"], prog_name="ddlrun", standalone_mode=False)
    except DdlrunError as error:
        code = _fail(error.exit_code, *error.problems)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "ddlrun"
        code = _fail(2, f"{_from_config(error)}{error.format_message().rstrip('.')}; see {where} --help")
    except click.ClickException as error:
        code = _fail(error.exit_code, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except _EndedError as error:
        code = 128 + error.number
    sys.exit(code or 0)


class _EndedError(BaseException):
    """A signal that asks to end: what has been started is ended on the way out."""

    def __init__(self, number: int) -> None:
        self.number = number


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise _EndedError(number)


def _raise_again(lost: UnraisableHookArgs) -> None:
    """Raise a signal's exception once more, a moment later: Python drops those that come in a callback of os.fork."""
    error = lost.exc_value
    if not isinstance(error, (KeyboardInterrupt, _EndedError)):
        sys.__unraisablehook__(lost)
        return

    def again(_number: int, _frame: FrameType | None) -> NoReturn:
        raise error

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def _from_config(error: click.UsageError) -> str:
    """Say it where a wrong value was not typed, but stands in the config file."""
    name = error.param.name if isinstance(error, click.BadParameter) and error.param else None
    if error.ctx and name and error.ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
        return "config file: "
    return ""


def _fail(code: int, *problems: str) -> int:
    for problem in problems:
        click.echo(f"ddlrun: error: {problem}", err=True)
    return code
