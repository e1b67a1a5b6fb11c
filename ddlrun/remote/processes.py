"""Commands on this machine that run to their end: their exit code and their output."""

import errno
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")

# The exit code of a command that could not be started.
EXIT_NOT_STARTED = 127


class FinishedProcess(NamedTuple):
    """A process that has ended."""

    code: int | None
    """The exit code; None: it did not end in time."""
    out: str
    err: str


def explain_start(program: str, error: OSError) -> str:
    """Return the reason why a program could not be started; raise the error if no program can be started here."""
    if error.errno in (errno.EMFILE, errno.E2BIG):
        raise error
    missing = isinstance(error, FileNotFoundError) and "/" not in program
    return f"{program}: {'not on PATH' if missing else error.strerror}"


def start_command(
    argv: Sequence[str], stdin: str = "", timeout: float = 20.0, errors: str = "replace"
) -> Callable[[], FinishedProcess]:
    """Start a short command; return a function that waits for its end.

    Neither raises an error of the command; `timeout` is in seconds, and `errors` decides about output that is not
    UTF-8. Raises OSError where this process may not open more files, or its environment is too long for any program to
    start.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors=errors
        )
    except OSError as error:
        failed = FinishedProcess(EXIT_NOT_STARTED, "", explain_start(argv[0], error))
        return lambda: failed

    def finish() -> FinishedProcess:
        with process:
            try:
                out, err = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                return FinishedProcess(None, "", "")
            except BaseException:  # a signal that ends ddlrun: leaving `with` would wait for the command
                process.kill()
                raise
        return FinishedProcess(process.returncode, out, err)

    return finish


def read_lines(
    argv: Sequence[str], read: Callable[[Iterator[str]], Result], complain: Callable[[str], None]
) -> tuple[int, Result]:
    """Run a command; return its exit code, and what `read` makes of the lines of its standard output while it runs.

    `complain` gets each line of its standard error, in a thread. Any exception ends the command too, with SIGINT or
    SIGTERM, and its remaining errors are discarded.
    """
    process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    interrupted = threading.Event()
    errors = threading.Thread(target=_read_errors, args=(process, complain, interrupted), daemon=True)
    try:
        errors.start()
        result = read(iter(process.stdout or ()))
        code = process.wait()
    except BaseException as error:
        interrupted.set()
        process.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        try:
            process.wait()
        except KeyboardInterrupt:  # the second Ctrl-C: the command has to end at once
            process.send_signal(signal.SIGINT)
            process.wait()
        raise
    errors.join(1)  # an ssh that outlives the command may hold the pipe open
    return code, result


def _read_errors(process: subprocess.Popen[str], complain: Callable[[str], None], interrupted: threading.Event) -> None:
    try:
        for line in process.stderr or ():
            if not interrupted.is_set():
                complain(line)
    except (OSError, ValueError):
        if process.stderr is not None:
            process.stderr.close()  # the command then learns that its errors are no longer read
