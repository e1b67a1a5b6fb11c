"""PMI-1, the protocol in which a rank's MPI library asks its process manager: the lines that ranks send.

A line is a list of words KEY=VALUE, separated by spaces; the first is cmd=COMMAND. MPICH, Intel MPI and MVAPICH speak
it over a socket that the rank inherits.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict  # noqa: UP035 - the agent runs with Python 3.8

    Words = Dict[bytes, bytes]  # noqa: UP006

LONGEST_LINE = 1 << 16
"""The length of the longest line. Arguments of MPI_Comm_spawn may be long."""
MOST_DIGITS = 9

# The words whose value is the rest of the line.
_TEXTS = (b" value=", b" message=")


class WireError(Exception):
    """Bytes that no MPI library sends; the text completes a sentence about the rank."""


class Lines:
    """The lines that arrive from one rank."""

    def __init__(self) -> None:
        self._part = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes. Raises WireError if one is too long."""
        if not self._part and data.endswith(b"\n") and len(data) <= LONGEST_LINE:
            return data[:-1].split(b"\n")
        *lines, self._part = (self._part + data).split(b"\n")
        if max(map(len, (*lines, self._part))) > LONGEST_LINE:
            raise WireError(f"sent a PMI request of more than {LONGEST_LINE} bytes")
        return lines


def parse_words(line: bytes) -> Words:
    """Return the words of a line.

    >>> parse_words(b"cmd=put kvsname=job key=-bc-0 value=segments=2 of 3")
    {b'value': b'segments=2 of 3', b'cmd': b'put', b'kvsname': b'job', b'key': b'-bc-0'}
    """
    words = {}
    for start in _TEXTS:
        line, mark, text = line.partition(start)
        if mark:
            words[start[1:-1]] = text
    for word in line.split(b" "):
        key, mark, value = word.partition(b"=")
        if mark:
            words[key] = value
    return words


def parse_exit_code(words: Words) -> int:
    """Return the exit code of an abort as a shell would see it; 1 where it is none, or would be that of a success.

    >>> [parse_exit_code({b"exitcode": text}) for text in (b"7", b"-1", b"256", b"x")]
    [7, 255, 1, 1]
    """
    text = words.get(b"exitcode", b"")
    digits = text[1:] if text.startswith(b"-") else text
    known = digits.isdigit() and len(digits) <= MOST_DIGITS
    return (int(text) & 0xFF if known else 0) or 1
