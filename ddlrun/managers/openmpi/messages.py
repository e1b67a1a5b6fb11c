"""The messages in mpirun's output that are printed although ddlrun ends the job: those of the ranks' MPI."""

import re

# A message of Open MPI, from a rank or from mpirun, is framed by two lines.
FRAMED = rb"(?s)-{70,}\n(.*?)\n-{70,}\n"
# How the messages begin in which mpirun itself says which rank has failed, or which daemon it has lost. In 6 they have
# an empty line first.
MPIRUNS_OWN = rb"\s*(?:mpirun|mpiexec|orterun|prterun|ORTE|PRTE|Primary job|A (?:process or )?daemon)\b"
# Lines of mpirun that are not printed: harmless ones about its ssh, now and then, and about signals.
HARMLESS = rb"(?m)^(?:\[[^\]\n]*\] plm:(?:ssh|rsh): Warning: setpgid\(|(?:mpirun|\(null\)): Forwarding signal )[^\n]*\n"
# The owner of lines on the console beside the ranks.
MOST_STORED = 1 << 16  # bytes


class MpirunMessages:
    r"""The messages that have not been printed, or only in part.

    >>> line = b"-" * 75 + b"\n"
    >>> messages = MpirunMessages()
    >>> messages.add(line + b"Nothing\n", printed=True)
    >>> messages.add(b"found\n" + line + line + b"mpirun detected that\n" + line, printed=False)
    >>> messages.from_ranks().split(b"\n", 1)[0]
    b'found'
    """

    def __init__(self) -> None:
        self._output = b""
        self._printed = 0  # bytes of it

    def add(self, chunk: bytes, *, printed: bool) -> None:
        """Add output of mpirun that has been printed, or that is not."""
        if printed:
            self._output = re.sub(FRAMED, b"", self._output + chunk)[-MOST_STORED:]
            self._printed = len(self._output)
        elif len(self._output) < 2 * MOST_STORED:
            self._output += chunk

    def from_ranks(self) -> bytes:
        """Return the rest of a message that was printed in part, and all messages but mpirun's own."""
        return b"".join(
            self._output[max(message.start(), self._printed) : message.end()]
            for message in re.finditer(FRAMED, self._output)
            if message.start() < self._printed or not re.match(MPIRUNS_OWN, message[1])
        )
