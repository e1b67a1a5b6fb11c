"""Limits and other causes that keep ddlrun from starting programs here, and what the user can do about them."""

import errno
import os
import resource
from collections.abc import Mapping

ENOUGH_FILES = 1024
# Files of other purposes: pipes, unauthenticated connections.
OTHER_FILES = 64


def count_open_files() -> int:
    """Return the number of files that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def allow_files(more: int) -> None:
    """Raise this process's limit of open files so that it may open some more, if it may."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count_open_files() + more + OTHER_FILES
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def explain_limit(error: OSError, environ: Mapping[str, str]) -> str | None:
    """Return the limit or the removed folder that an error is about, with its remedy; None for another error."""
    if error.errno == errno.EMFILE:
        most = os.sysconf("SC_OPEN_MAX")
        return f"only {most} files may be open (ulimit -n), which are too few; raise it: ulimit -n {ENOUGH_FILES}"
    if error.errno == errno.E2BIG:
        sizes = {name: len(name) + len(value) for name, value in environ.items()}
        longest = max(sizes, key=sizes.__getitem__, default="")
        return (
            "the arguments and the environment are too long for a program to start: the environment has "
            f"{sum(sizes.values())} characters, {longest} the most of them ({sizes.get(longest, 0)}); "
            "unset variables, or raise the limit of the stack, of which they may take a quarter (ulimit -s)"
        )
    if error.errno == errno.ENOENT and error.filename is None and not _has_folder():
        return "the current folder has been removed; cd to it again, or to another folder"
    return None


def _has_folder() -> bool:
    """Return True if the current folder still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
