"""The states and stacks of a rank's processes, for the report of a stall."""

from __future__ import annotations

import os
import time

from ddlrun.rank.processes import children_of, list_processes, read_command, read_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.rank.process_stat import ProcessStat

MOST_SECONDS = 15
MOST_PROCESSES = 8
MOST_STACK_LINES = 40
# The interval at which a running py-spy is stopped if the inspection is interrupted.
POLL_SECONDS = 0.2


def describe_processes(pid: int, seconds: float, interrupted: Callable[[], bool]) -> str:
    """Return the state of a program's processes: the kernel's view, and Python stacks if py-spy is installed.

    Args:
        pid: The program; its descendants are included.
        seconds: The time limit for all stacks together.
        interrupted: Returns True once the caller has something more urgent to do.
    """
    processes = list_processes()
    pids = [pid]
    for parent in pids:
        pids += children_of(parent, processes)
    lines = []
    end = time.monotonic() + min(seconds, MOST_SECONDS)
    for member in pids[:MOST_PROCESSES]:
        stat = processes.get(member)
        lines.append(_describe(member, stat))
        if stat is not None and stat.name.startswith("python"):
            lines += _read_stack(member, max(0.1, end - time.monotonic()), interrupted)
    return "\n".join(lines)


def _describe(pid: int, stat: ProcessStat | None) -> str:
    name, state = ("?", "gone") if stat is None else (stat.name, stat.state)
    function = "".join(read_lines(f"/proc/{pid}/wchan")).strip("0\n")
    waiting = f", waits in {function}" if function else ""
    return f"process {pid} ({name}): state {state}{waiting}"


def _read_stack(pid: int, seconds: float, interrupted: Callable[[], bool]) -> list[str]:
    import shutil  # noqa: PLC0415 - for stalls alone

    executable = f"/proc/{pid}/exe"
    beside = os.path.dirname(os.readlink(executable)) if os.path.exists(executable) else ""
    folders = (os.environ["PATH"], os.path.dirname(read_command(pid)[0]), beside)
    tool = shutil.which("py-spy", path=os.pathsep.join(folders))
    if tool is None:
        return ["  (py-spy is not installed on this host: pip install py-spy shows the Python stack here)"]
    output = _run([tool, "dump", "--pid", str(pid)], seconds, interrupted)
    return [f"  {line}" for line in output.splitlines()[:MOST_STACK_LINES]]


def _run(argv: list[str], seconds: float, interrupted: Callable[[], bool]) -> str:
    """Return a command's output, or its errors if it printed nothing else."""
    import subprocess  # noqa: PLC0415 - for stalls alone

    end = time.monotonic() + seconds
    try:
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
            while True:
                try:
                    output, errors = process.communicate(timeout=min(seconds, POLL_SECONDS))
                except subprocess.TimeoutExpired:
                    if interrupted() or time.monotonic() > end:
                        process.kill()
                        return f"(py-spy: stopped after {seconds:.1f} s)"
                else:
                    return output or errors
    except OSError as error:
        return f"(py-spy: {error})"
