"""The launch of a script from Python."""

import codecs
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddlrun.api.options import OptionValue, render_environment, render_options
from ddlrun.errors import DdlrunError, InputError, PlacementError, PreflightError, UnreachableError
from ddlrun.plan.outcome import Outcome, parse_outcome
from ddlrun.plan.run_dir import RunDir
from ddlrun.remote.streamed_process import stream_command

# The module that runs the launch. It ends when this process ends.
CHILD = "ddlrun.api.child"
ERRORS = {error.exit_code: error for error in (InputError, UnreachableError, PlacementError, PreflightError)}


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job that has ended."""

    outcome: Outcome
    run_dir: RunDir
    """The folder of its last attempt."""
    restarts: int


def launch(script: str, /, *args: str, **options: OptionValue) -> Outcome:
    """Launch a script as `ddlrun launch` does, and return how the job ended.

    The output of the ranks and of ddlrun goes to sys.stdout and sys.stderr while the job runs. A KeyboardInterrupt ends
    the job and is then raised; another one meanwhile ends it at once.

    Args:
        script: The script or program.
        args: Its arguments.
        options: Options of `ddlrun launch`, with an underscore for each dash: `hosts="n1,n2"`, `np=4`,
            `cores_per_rank=2`. True is an option without a value (`share_gpus=True`), False its `--no-` form, None
            leaves the option out. A list is joined by commas. `env` is a mapping of variables to values.

    Raises:
        DdlrunError: The job was not started: an option is wrong, a host cannot be reached, the ranks cannot be placed,
            or a requirement is not met. Its `exit_code` is that of the command.

    Examples:
        >>> import ddlrun
        >>> outcome = ddlrun.launch("train.py", "--epochs", "3", hosts=["n1", "n2"], timeout=3600)  # doctest: +SKIP
        >>> outcome.exit_code  # doctest: +SKIP
        0
    """
    return launch_job((script, *args), options).outcome


def launch_job(program: Sequence[str], options: Mapping[str, OptionValue], *, raises: bool = False) -> LaunchedJob:
    """Launch a program, and return the ended job. Raises DdlrunError if it was not started.

    `raises`: the caller raises the traceback of a rank that failed, so that it is not printed as well.
    """
    _check_words(program)
    words = render_options(options)
    environ = {**os.environ, **render_environment(options)}
    answer = bytearray()
    argv = [sys.executable, "-m", CHILD, str(os.getpid()), str(raises), *words, "--", *program]
    code = stream_command(argv, environ, (_printer("stdout"), _printer("stderr"), answer.extend))
    job = None
    for message in map(json.loads, answer.rpartition(b"\n")[0].splitlines()):
        if "error" in message:
            raise _error(**message["error"])
        job = LaunchedJob(parse_outcome(message["outcome"]), RunDir(message["run_dir"]), message["restarts"])
    if job is None:
        raise _error(code, [f"ddlrun ended with exit code {code} before the job had ended"])
    return job


def _check_words(program: Sequence[str | os.PathLike[str]]) -> None:
    """Raise InputError where the script or one of its arguments is not a string or path."""
    for word in program:
        if not isinstance(word, str | os.PathLike):
            words = ", ".join(repr(str(part)) for part in (word if isinstance(word, list | tuple) else [word]))
            remedy = "call ddlrun.run with a function" if callable(word) else f"write {words}"
            raise InputError(f"{word!r}: the script and its arguments are strings; {remedy}")
        if "\0" in os.fspath(word):
            raise InputError(f"{word!r}: an argument cannot have a null character")


def _error(exit_code: int, problems: Sequence[str]) -> DdlrunError:
    """Return the error with an exit code."""
    error = ERRORS.get(exit_code, DdlrunError)(*problems)
    error.exit_code = exit_code
    return error


def _printer(stream: str) -> Callable[[bytes], None]:
    """Return a function that prints bytes to sys.stdout or sys.stderr, which a notebook has replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(data: bytes) -> None:
        file = getattr(sys, stream)
        if file is not None:
            file.write(decoder.decode(data, final=not data))
            file.flush()

    return write
