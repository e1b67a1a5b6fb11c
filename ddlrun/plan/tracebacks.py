"""The end of a rank's standard error: its failure, such as a traceback, and errors that blame another rank."""

import re
from typing import NamedTuple

from ddlrun.wording import COLOUR

MOST_LINES = 20
MOST_TRACEBACK_LINES = 60
HEADER = r"(?<!Original )(?<!\| )Traceback \(most recent call last\)"
# The first line of a failure. PyTorch puts `[rank1]: ` before each line; a progress bar may stand before the first.
BEGINNING = re.compile(
    rf"(?P<before>.*?)(?:(?:  \+ Exception Group |\S{{1,99}} {{9,}})?{HEADER}:?|[╭+][─-]+ {HEADER} [─-]+[╮+]"
    r"|[\w.]{1,99}RemoteTraceback:)\s*"
    r'|(?P<torch>\[rank\d+\]: )?(?:  File ".*", line \d+|[Uu]sage: .*|\S*python[\d.]*: .*|Fatal Python error: .*'
    r"|terminate called .*)"
)
# Words of such lines, by which other output is passed over quickly.
WORDS = (
    "most recent call last", "RemoteTraceback", '  File "', "sage: ", "Fatal Python", "terminate called",
    ": No module", ": can't open file", ": Error while finding module",
)  # fmt: skip
# The ends of lines between the tracebacks of chained exceptions; the quotes end that of another process.
CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
    "terminated with the following error:",
    '"""',
)
# The line before a traceback that does not end the process.
HARMLESS = re.compile(r"Exception (?:ignored|in thread)|Error in \S+:$|--- Logging error ---")
# How a process ends that crashes in its threads or at its end, perhaps after a traceback.
CRASH = re.compile(r"Fatal Python error: |terminate called ")
# Lines before the one that names the exception: the frames of Python, loguru, rich and IPython, and their headings.
FRAME = re.compile(rf'$|\s|(?:> )?File |Cell In\[|-*> |[│╭╰|+]|.*{HEADER}|[Uu]sage: |Try |.*RemoteTraceback:|"""')
# Warnings and notes in the log format of C++ libraries, which may be of another time.
LOG_LINE = re.compile(r"(?:\[rank\d+\]:)?\[?[IW]\d{4} ")
# The exit code of a program that uses Open MPI 5's MPI when another rank's connection is gone.
SOCKET_CLOSED = 14
# Errors of a rank that has lost another one, or has waited for it in vain; that one is then the cause.
COLLATERAL = (
    "Connection reset by peer", "Connection closed by", "Connection was likely closed", "Connection refused",
    "Broken pipe", "Socket closed", "failed to connect to all addresses", "are unable to reach each other for",
    "remote process exit", "ncclRemoteError", "NCCL communicator was aborted", "Horovod has been shut down",
    "MPI_ERR_PROC_ABORTED", "MPI_ERR_PROC_FAILED", "MPI_ERR_INTERN", "Communication error with rank",
    "LostRankError", " is lost: ", "CoordinationServiceError", "Watchdog caught collective operation timeout",
    "failed to pass monitoredBarrier", "Timed out waiting", "Collective ops is aborted by",
)  # fmt: skip


class Failure(NamedTuple):
    """The last failure in a text."""

    start: int
    """The number of lines before it."""
    lines: list[str]
    """Its lines and those after it, without what a framework puts before each."""
    message: str
    """The line that names the exception, or the error."""


def find_failure(text: str) -> Failure | None:
    """Return the last failure in a text; None if it has none.

    The tracebacks of chained exceptions are one. A line that was rewritten, such as that of a progress bar, counts as
    it was last.
    """
    lines = plain_lines(text)
    chain = _last_chain(lines)
    if not chain:
        return None
    start = chain[0]
    match = _match_beginning(lines[start])
    before = "" if match is None else match["before"] or match["torch"] or ""
    prefix = _repeated(before, lines[start + 1 : start + 2])
    block = [line.removeprefix(prefix) for line in (lines[start][len(before) :], *lines[start + 1 :])]
    while not block[-1].strip():
        block.pop()
    after = (line.removeprefix("  | ") for line in block[chain[-1] - start :])
    return Failure(start, block, next((line for line in after if not FRAME.match(line)), ""))


def plain_lines(text: str) -> list[str]:
    """Return the lines of a text without colours, as they were last."""
    lines = re.sub(COLOUR, "", text).rstrip("\n").split("\n") if text.strip() else []
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def _match_beginning(line: str) -> re.Match[str] | None:
    return BEGINNING.fullmatch(line) if any(word in line for word in WORDS) else None


def _last_chain(lines: list[str]) -> list[int]:
    """Return the indexes of the first lines of the last failure, and of the tracebacks that are chained to it."""
    starts = [index for index, line in enumerate(lines) if _match_beginning(line)]
    starts = [index for index in starts if not (index and HARMLESS.search(lines[index - 1]))] or starts
    starts = [index for index in starts if index == starts[0] or not CRASH.match(lines[index])]
    first = len(starts) - 1
    while first > 0 and any(line.endswith(CHAINS) for line in lines[starts[first - 1] : starts[first]]):
        first -= 1
    return starts[max(0, first) :]


def _repeated(before: str, following: list[str]) -> str:
    """Return the end of a text with which the following line begins, too; empty where that is blank."""
    ends = (before[index:] for index in range(len(before)))
    return next((end for end in ends if end.strip() and following and following[0].startswith(end)), "")


def find_beginning(lines: bytes) -> int | None:
    """Return the offset of the line with which the first failure in some lines begins; None without any."""
    offset = 0
    for line in re.split(rb"(?<=[\r\n])", lines) if any(word.encode() in lines for word in WORDS) else ():
        if _match_beginning(re.sub(COLOUR, "", line.decode(errors="replace")).rstrip("\r\n")):
            return offset
        offset += len(line)
    return None


def is_collateral(exit_code: int, tail: str) -> bool:
    """Return True for the end of a rank that blames another one.

    Args:
        exit_code: The exit code of its program.
        tail: The end of its standard error.
    """
    failure = find_failure(tail)
    lines = plain_lines(tail) if failure is None else failure.lines
    own = "\n".join(line for line in lines if not LOG_LINE.match(line))
    return exit_code == SOCKET_CLOSED or any(error in own for error in COLLATERAL)


def last_lines(tail: str) -> list[str]:
    """Return the last failure with the lines after it, shortened in its middle; or else the last lines."""
    failure = find_failure(tail)
    if failure is None:
        return plain_lines(tail)[-MOST_LINES:]
    if len(failure.lines) <= MOST_TRACEBACK_LINES:
        return failure.lines
    return [*failure.lines[:3], "  ...", *failure.lines[4 - MOST_LINES :]]


def exception_line(tail: str) -> str:
    r"""Return the line of a failure that names its exception; empty without one.

    >>> exception_line("Traceback (most recent call last):\n  File 't.py'\nValueError: no\nmore\n")
    'ValueError: no'
    """
    failure = find_failure(tail)
    return "" if failure is None else failure.message


def without_numbers(text: str) -> str:
    """Return a text that is equal for ranks whose errors differ in numbers alone, such as ports.

    >>> without_numbers("rank 3: port 4711, 0x7f3a")
    'rank #: port #, #'
    """
    return re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", text)
