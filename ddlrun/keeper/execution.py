"""The start of a program in the place of this process."""

from __future__ import annotations

import os
import sys

from ddlrun.keeper.bare_signal import signal


def become(argv: list[str], label: str) -> None:
    """Replace this process by the program; exit with 127 if there is none, with 126 if it cannot be run."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec would not change that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is the point
    except OSError as error:
        # An unreadable folder in PATH hides that the program is in none of the others.
        missing = isinstance(error, FileNotFoundError) or not _may_exist(argv[0])
        complain(f"{label}: cannot start {argv[0]!r}: {'No such file or directory' if missing else error.strerror}")
        os._exit(127 if missing else 126)


def _may_exist(program: str) -> bool:
    return "/" in program or any(os.path.lexists(os.path.join(folder, program)) for folder in os.get_exec_path())


def complain(text: str) -> None:
    """Print a message of ddlrun's to standard error."""
    sys.stderr.write(f"ddlrun: {text}\n")
    sys.stderr.flush()
