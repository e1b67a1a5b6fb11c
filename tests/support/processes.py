"""Processes of tests: started, found by a mark among their arguments, and waited for."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from tests.support.waiting import PATIENCE, wait_until

MANAGER = r"[^\0]*(mpi|orte|prte)run\0|[^\0]*\0-I\0-S\0[^\0]*/ddlrun/agent/start\.py\0"

GREP = """#!/bin/sh
[ "$1" = "${{1#-lsaz}}" ] && exec {grep} "$@"
{grep} "$@" | while read environ; do
  tr '\\0' ' ' <"${{environ%environ}}cmdline" | {grep} -q {mark} && echo "$environ"
done
"""


def wait_for(condition: Callable[[], object], describe: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition holds; fail after a generous deadline with a description of what is there instead."""
    wait_until(condition, lambda: f"not so after {PATIENCE:g} s: {describe()}")


def see_only(mark: str, folder: Path) -> str:
    """Return a PATH with a grep that finds only processes with a mark, as `clean` ends those of all runs here."""
    grep = folder / "bin" / "grep"
    grep.parent.mkdir(exist_ok=True)
    grep.write_text(GREP.format(grep=shutil.which("grep"), mark=mark))
    grep.chmod(0o755)
    return f"{grep.parent}:{os.environ['PATH']}"


def mark() -> str:
    """Return a number of seconds for `sleep` by which the test's own processes can be found."""
    return f"9{os.getpid()}.{time.monotonic_ns()}"


def command_line(pid: int | str) -> str:
    """Return the words of a process, each with a NUL after it; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    """Return the paths of the files that a process has open."""
    paths = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            paths.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return paths


def running(word: str) -> list[int]:
    """Return the pids of `sleep` processes that have the word among their arguments."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if command_line(pid).startswith("sleep\0") and word in command_line(pid).split("\0")]


def listed(word: str) -> str:
    """Return the processes with the word in their command lines: pid, parent, state and words."""
    names = ["pid", "ppid", "status", "cmdline"]
    listing = [process.info for process in psutil.process_iter(names)]
    lines = [" ".join(str(info[name]) for name in names) for info in listing]
    return "\n".join(line for line in lines if word in line)


def mpirun_of(ddlrun: int) -> int:
    """Return the mpirun, or the root of ddlrun's own process manager, that a ddlrun has started."""
    children = Path(f"/proc/{ddlrun}/task/{ddlrun}/children").read_text().split()
    (pid,) = [int(child) for child in children if re.match(MANAGER, command_line(child))]
    return pid


class Started(subprocess.Popen[Any]):
    """A process of a test, which uses only the streams that it has asked for."""

    stdin: IO[Any]
    stdout: IO[Any]
    stderr: IO[Any]


@contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[Started]:
    """Start a process, and wait for its end after the block; it is killed if the block fails or the end never comes."""
    process = Started(argv, **options)
    try:
        yield process
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()
        process.wait(PATIENCE)
    finally:
        process.kill()  # the keepers of a ddlrun notice, and end their ranks
        process.wait()
