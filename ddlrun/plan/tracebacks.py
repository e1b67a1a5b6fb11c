"""The end of a rank's standard error: its failure, such as a traceback, and errors that blame another rank."""

import re
from itertools import takewhile
from signal import SIGKILL
from typing import NamedTuple

from ddlrun.plan.outcome import RankEnd
from ddlrun.wording import COLOUR

MOST_LINES = 20
MOST_TRACEBACK_LINES = 60
MOST_CHARACTERS = 2000
# The characters of what a framework or a log puts before each line.
MOST_PREFIX = 200
ZEROS = str.maketrans("123456789", "0" * 9)
HEADER = r"(?<!Original )(?<!\| )Traceback \(most recent call last\)"
# The first line of a failure. PyTorch puts `[rank1]: ` before each line; a progress bar may stand before the first.
BEGINNING = (
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
HARMLESS = r"Exception (?:ignored|in thread)|Error in \S+:$|--- Logging error ---|Process \S+:$|future: <"
# How a process ends that crashes in its threads or at its end, perhaps after a traceback.
CRASH = r"Fatal Python error: |terminate called "
# The error of a program that writes its usage after it.
USAGE_ERROR = r"(?i)error|invalid|unknown|unrecogni|missing|required|illegal|too (?:few|many)"
# Lines before the one that names the exception: the frames of Python, loguru, rich and IPython, and their headings.
FRAME = (
    rf'$|\s(?! what\(\): )|(?:> )?File |Cell In\[|-*> |[│╭╰|+]|.*{HEADER}|[Uu]sage: |Try |.*RemoteTraceback:|"""'
    "|terminate called after "
)
# Warnings and notes in the log format of C++ libraries, which may be of another time.
LOG_LINE = r"(?:\[rank\d+\]:)?\[?[IW]\d{4} "
# The exit code of a program whose MPI, Open MPI 5, ends it when another rank's connection is gone.
SOCKET_CLOSED = 14
# Errors of a rank that has lost another one, or has waited for it in vain; that one is then the cause.
COLLATERAL = (
    "Connection reset by peer", "Connection closed by", "Connection was likely closed", "Connection refused",
    "Broken pipe", "Socket closed", "failed to connect to all addresses", "are unable to reach each other for",
    "remote process exit", "ncclRemoteError", "NCCL communicator was aborted", "Horovod has been shut down",
    "MPI_ERR_PROC_ABORTED", "MPI_ERR_PROC_FAILED", "MPI_ERR_INTERN", "Communication error with rank",
    "LostRankError", " is lost: ", "CoordinationServiceError", "Watchdog caught collective operation timeout",
    "failed to pass monitoredBarrier", "Timed out waiting", "Collective ops is aborted by", "watchdog got stuck",
    "connectFullMesh failed", "Application timeout caused pair closure", "retrieving ncclUniqueId from",
    "another task died", "reset by remote peer", " waiting for clients",
    "wait timeout after ",
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
    block = [_without(prefix, line) for line in (lines[start][len(before) :], *lines[start + 1 :])]
    while not block[-1].strip():
        block.pop()
    after = (line.removeprefix("  | ") for line in block[chain[-1] - start :])
    otherwise = block[0] if re.match(CRASH, block[0]) else ""
    return Failure(start, block, next((line.strip() for line in after if not re.match(FRAME, line)), otherwise))


def plain_lines(text: str) -> list[str]:
    """Return the lines of a text without colours, as they were last."""
    lines = re.sub(COLOUR, "", text).rstrip("\n").split("\n") if text.strip() else []
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def _match_beginning(line: str) -> re.Match[str] | None:
    return re.fullmatch(BEGINNING, line) if any(word in line for word in WORDS) else None


def _last_chain(lines: list[str]) -> list[int]:
    """Return the indexes of the first lines of the last failure, and of the tracebacks that are chained to it."""
    starts = [index for index, line in enumerate(lines) if _match_beginning(line)]
    starts = [index for index in starts if not (index and re.search(HARMLESS, lines[index - 1]))] or starts
    starts = [index for index in starts if index == starts[0] or not re.match(CRASH, lines[index])]
    first = len(starts) - 1
    while first > 0 and any(line.endswith(CHAINS) for line in lines[starts[first - 1] : starts[first]]):
        first -= 1
    chain = starts[max(0, first) :]
    is_usage = bool(chain and chain[0] and lines[chain[0]].startswith(("usage: ", "Usage: ")))
    return [chain[0] - 1] if is_usage and re.search(USAGE_ERROR, lines[chain[0] - 1]) else chain


def _repeated(before: str, following: list[str]) -> str:
    """Return the end of a text with which the following line begins, too; empty where that is blank.

    Digits are zeros in it, as the lines of a log have different times.
    """
    before = before[-MOST_PREFIX:].translate(ZEROS)
    line = following[0].translate(ZEROS) if following else ""
    ends = (before[index:] for index in range(len(before)))
    return next((end for end in ends if end.strip() and line.startswith(end)), "")


def _without(prefix: str, line: str) -> str:
    return line[len(prefix) :] if line.translate(ZEROS).startswith(prefix) else line


def find_beginning(lines: bytes) -> int | None:
    """Return the offset of the line with which the first failure in some lines begins; None without any."""
    offset = 0
    for line in re.split(rb"(?<=[\r\n])", lines) if any(word.encode() in lines for word in WORDS) else ():
        if _match_beginning(re.sub(COLOUR, "", line.decode(errors="replace")).rstrip("\r\n")):
            return offset
        offset += len(line)
    return None


def is_collateral(end: RankEnd) -> bool:
    """Return True for the end of a rank that blames another one; a rank that was killed had not failed itself."""
    failure = find_failure(end.tail)
    lines = plain_lines(end.tail)[-MOST_LINES:] if failure is None else failure.lines
    own = "\n".join(
        line for line in takewhile(lambda line: not re.search(HARMLESS, line), lines) if not re.match(LOG_LINE, line)
    )
    killed = end.signal == SIGKILL and not end.ordered
    return not killed and (end.exit_code == SOCKET_CLOSED or any(error in own for error in COLLATERAL))


def last_lines(tail: str) -> list[str]:
    """Return the last failure with the lines after it, shortened in its middle; or else the last lines."""
    failure = find_failure(tail)
    lines = plain_lines(tail)[-MOST_LINES:] if failure is None else failure.lines
    if len(lines) > MOST_TRACEBACK_LINES:
        lines = [*lines[:3], "  ...", *lines[4 - MOST_LINES :]]
    return [f"{line[:MOST_CHARACTERS]}..." if len(line) > MOST_CHARACTERS else line for line in lines]


def ends_in_failure(text: str) -> bool:
    """Return True for a text at whose end a failure stands, with few lines after it."""
    failure = find_failure(text)
    return failure is not None and len(failure.lines) <= MOST_TRACEBACK_LINES


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
