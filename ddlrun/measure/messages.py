"""Messages of rank 0 to the command that started the job: one JSON object per line."""

import json
import sys
from collections.abc import Callable

from mpi4py import MPI

Progress = Callable[[str, float], None]
"""Report what is under way, and the share of the work that is done."""


def send(kind: str, value: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps({kind: value}) + "\n")
    sys.stdout.flush()


def send_result(comm: MPI.Intracomm, value: object) -> None:
    """Print the result of the job on rank 0."""
    if comm.rank == 0:
        send("result", value)


def progress_of(comm: MPI.Intracomm) -> Progress:
    """Return a callback that prints progress on rank 0."""

    def report(words: str, share: float) -> None:
        if comm.rank == 0:
            send("progress", [words, share])

    return report
