"""The end of a rank's standard error: its traceback, and errors that blame another rank."""

import re

MOST_LINES = 20
MOST_TRACEBACK_LINES = 60
BEGIN = "Traceback (most recent call last):"
# Lines between the tracebacks of chained exceptions.
CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# The exit code of a program that uses Open MPI 5's MPI when another rank's connection is gone.
SOCKET_CLOSED = 14
# Errors of a rank that has lost another one, which is then the cause.
COLLATERAL = (
    "Connection reset by peer", "Connection closed by peer", "Broken pipe", "Connection refused",
    "remote process exited", "NCCL communicator was aborted", "Socket closed", "Horovod has been shut down",
    "failed to connect to all addresses", "Connection was likely closed", "MPI_ERR_PROC_ABORTED",
    "MPI_ERR_INTERN", "are unable to reach each other for",
)  # fmt: skip


def is_collateral(exit_code: int, tail: str) -> bool:
    """Return True for the end of a rank that blames another one.

    Args:
        exit_code: The exit code of its program.
        tail: The end of its standard error.
    """
    return exit_code == SOCKET_CLOSED or any(error in tail for error in COLLATERAL)


def last_lines(tail: str) -> list[str]:
    """Return the last Python traceback with the lines after it, shortened in its middle; or else the last lines.

    The tracebacks of chained exceptions are one. A line that was rewritten, such as that of a progress bar, counts as
    it was last.
    """
    texts = tail.strip("\n").split("\n") if tail.strip() else []
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in texts]
    start = _traceback_start(lines)
    if start is None:
        return lines[-MOST_LINES:]
    traceback = lines[start:]
    if len(traceback) <= MOST_TRACEBACK_LINES:
        return traceback
    return [*traceback[:3], "  ...", *traceback[4 - MOST_LINES :]]


def _traceback_start(lines: list[str]) -> int | None:
    """Return the index of the first line of the last chain of tracebacks; None without a traceback."""
    starts = [index for index, line in enumerate(lines) if line.startswith(BEGIN)]
    while len(starts) > 1 and any(line in CHAINS for line in lines[starts[-2] : starts[-1]]):
        starts.pop()
    return starts[-1] if starts else None


def exception_line(tail: str) -> str:
    r"""Return the line of a traceback that names its exception; empty without a traceback.

    >>> exception_line("Traceback (most recent call last):\n  File 't.py'\nValueError: no\nmore\n")
    'ValueError: no'
    """
    lines = last_lines(tail)
    starts = [index for index, line in enumerate(lines) if line.startswith(BEGIN)]
    after = lines[starts[-1] + 1 :] if starts else []
    return next((line for line in after if line and not line.startswith(" ")), "")


def without_numbers(text: str) -> str:
    """Return a text that is equal for ranks whose errors differ in numbers alone, such as ports.

    >>> without_numbers("rank 3: port 4711, 0x7f3a")
    'rank #: port #, #'
    """
    return re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", text)
