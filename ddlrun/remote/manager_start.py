"""The start of a process manager, and a copy of ddlrun's standard input."""

import os
import subprocess
from collections.abc import Mapping, Sequence

Process = subprocess.Popen[bytes]
TimeoutExpired = subprocess.TimeoutExpired


def start_manager(argv: Sequence[str], environ: Mapping[str, str]) -> Process:
    """Start one without input, its output in pipes that do not block. Raises OSError if it cannot be started."""
    # A session of its own: a Ctrl-C at the terminal does not reach it, and whatever is left of the job
    # on this host can be found by its session.
    process = subprocess.Popen(  # noqa: S603 - argv lists, no shell
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
    return process


def copy_stdin() -> int:
    """Return the read end of a pipe with a copy of our standard input, for one without a path, such as a socket."""
    read, write = os.pipe()
    subprocess.Popen(["cat"], stdout=write, start_new_session=True)  # noqa: S607 - ends with its input, or its reader
    os.close(write)
    return read
