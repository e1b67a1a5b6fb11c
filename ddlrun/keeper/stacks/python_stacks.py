"""The stacks of a Python process, from py-spy or its own start-up hook."""

from __future__ import annotations

import os
import time

from ddlrun.keeper.proc_files import find_line, list_folder, read_link, read_text
from ddlrun.keeper.processes import handles, read_command, send_signal
from ddlrun.keeper.stacks.process_facts import read_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Threads = list[dict[str, Any]]

# The name of the file to which the hook of a process writes its stacks, and the signal that makes it do so.
STACKS_FILE = "ddlrun-stacks"
STACKS_SIGNAL = 57
# A process writes a line to the file once its main thread runs Python code after the other signal.
PROBE_SIGNAL, PROBE_REPLY = 58, "moved"
PROBES, PROBE_SECONDS, MOST_REPLIES = 4, 0.02, 8
RUNNING = "running"
# Calls that fail after a signal handler, in programs that do not expect that: those of PyTorch's sockets, and others.
FRAGILE, FRAGILE_IN_TORCH = ("connect",), ("connect", "poll")
POLL_SECONDS = 0.01
HOOK_SECONDS = 2.0
# The stacks are complete when nothing has been added for this time: they have no end.
QUIET_SECONDS = 0.2
# A library whose operations match by the argument `name` of its functions.
NAMED = "/horovod/"
# The first words of the line before a stack in the file.
THREAD, CURRENT = "Thread ", "Current thread "
UNKNOWN = "no py-spy on this host, and its Python did not load ddlrun's start-up hook: pip install py-spy"


def read_stacks(pid: int, seconds: float, own: Threads = ()) -> tuple[Threads, str]:  # type: ignore[assignment]
    """Return the stacks of a process, the first thread first, and the problem if there are none.

    Args:
        pid: The process.
        seconds: The time limit.
        own: Its stacks as a thread of its own has reported them; empty: it has no such thread.
    """
    tool = find_py_spy(pid)
    # py-spy stops a process while it reads it, unless that is forbidden. A system call would be interrupted by that: a
    # write returns with less than it was to write.
    ways = [*_native_option(pid), []] if _runs(pid) else [["--nonblocking"]]
    named = ["--locals"] if NAMED in read_text(f"/proc/{pid}/maps") else []
    problem = ""
    end = time.monotonic() + seconds
    for options in ways if tool is not None else ():
        threads, problem = _dump(
            [str(tool), "dump", "--json", "--pid", str(pid), *options, *named], end - time.monotonic()
        )
        if threads:
            threads.sort(key=lambda thread: thread["id"] != pid)
            return threads, ""
    threads = own or _read_from_hook(pid, min(HOOK_SECONDS, seconds))
    return threads, "" if threads else problem or UNKNOWN


def _runs(pid: int) -> bool:
    """Return True if the first thread of a process runs now, and so is in no system call."""
    return read_text(f"/proc/{pid}/syscall").startswith(RUNNING)


def _native_option(pid: int) -> list[list[str]]:
    """Return the options for the functions of MPI, if a process uses it; with PyTorch, that would take seconds."""
    maps = read_text(f"/proc/{pid}/maps")
    return [["--native"]] if "/libmpi" in maps and "/libtorch" not in maps else []


def find_py_spy(pid: int) -> str | None:
    """Return the path of py-spy: on PATH, or beside the Python of a process; None if it is not installed."""
    import shutil  # noqa: PLC0415 - in the keeper's child alone

    beside = [os.path.dirname(path) for path in (*read_command(pid)[:1], read_link(f"/proc/{pid}/exe"))]
    folders = (os.environ.get("PATH", os.defpath), *beside)
    return shutil.which("py-spy", path=os.pathsep.join(filter(None, folders)))


def _dump(argv: list[str], seconds: float) -> tuple[Threads, str]:
    """Return the stacks that py-spy prints as JSON, and the problem if it prints none."""
    import subprocess  # noqa: PLC0415 - in the keeper's child alone

    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=max(seconds, 0.1))  # noqa: S603
    except subprocess.TimeoutExpired:
        return [], f"py-spy: stopped after {seconds:.1f} s"
    except OSError as error:
        return [], f"py-spy: {error}"
    threads = parse_dump(done.stdout)
    errors = done.stderr.decode(errors="replace").splitlines()
    return threads, "" if threads else f"py-spy: {next(iter(errors), 'no output')}"


def parse_dump(output: bytes) -> Threads:
    """Return the threads in the output of py-spy dump --json; none if it cannot be read."""
    import json  # noqa: PLC0415 - in the keeper's child alone

    try:
        return [
            {
                "id": thread["os_thread_id"] or 0,
                "name": thread["thread_name"] or "",
                "active": bool(thread["active"]),
                "frames": [(_name_frame(frame), frame["filename"], frame["line"]) for frame in thread["frames"]],
            }
            for thread in json.loads(output)
        ]
    except (ValueError, KeyError, TypeError):
        return []


def _name_frame(frame: dict[str, Any]) -> str:
    """Return the function of a frame, with the name that it gives to an operation, such as `allreduce of loss`."""
    values = frame.get("locals") or () if NAMED in frame["filename"] else ()
    texts = [value["repr"] or "" for value in values if value["name"] == "name"]
    names = [text.strip('"') for text in texts if text.startswith('"')]
    return " of ".join([frame["name"], *names])


def _read_from_hook(pid: int, seconds: float) -> Threads:
    """Have the hook of a process write its stacks, and return them; none if it has no hook or does not reply."""
    path, _ = find_memory_file(pid, STACKS_FILE)
    fragile = FRAGILE_IN_TORCH if "/libtorch" in read_text(f"/proc/{pid}/maps") else FRAGILE
    if not path or not handles(pid, STACKS_SIGNAL) or read_call(pid)["call"] in fragile:
        return []
    before, text, written_at = len(read_text(path)), "", 0.0
    send_signal(pid, STACKS_SIGNAL)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        longer = read_text(path)[before:]
        if longer != text:
            text, written_at = longer, time.monotonic()
        elif text and time.monotonic() > written_at + QUIET_SECONDS:
            return parse_traceback(text, pid)
        time.sleep(POLL_SECONDS)
    return []


def probe(pid: int) -> tuple[int, list[str]]:
    """Send a process some probes while that interrupts no system call; return the number of replies, and the last ones.

    A reply has the functions of the main thread, the outermost first, as CODE:VARIABLES. A thread in a library replies
    once to several probes.
    """
    path, _ = find_memory_file(pid, STACKS_FILE)
    if not path or not handles(pid, PROBE_SIGNAL):
        return 0, []
    replies = [
        line[len(PROBE_REPLY) :].strip() for line in read_text(path).splitlines() if line.startswith(PROBE_REPLY)
    ]
    for _ in range(PROBES):
        if not _runs(pid):
            break
        send_signal(pid, PROBE_SIGNAL)
        time.sleep(PROBE_SECONDS)
    return len(replies), replies[-MOST_REPLIES:]


def count_switches(pid: int) -> int:
    """Return the number of times that the first thread of a process has begun to wait; 0 if that is not known."""
    return int(find_line(f"/proc/{pid}/task/{pid}/status", "voluntary_ctxt_switches:") or 0)


def parse_traceback(text: str, pid: int) -> Threads:
    """Return the threads of a dump by faulthandler, the first thread first.

    The dump has the threads in the order of their start, the latest first, and no numbers of the system's.
    """
    threads: Threads = []
    for line in text.splitlines():
        if line.startswith((THREAD, CURRENT)):
            threads.append({"id": 0, "name": "", "active": line.startswith(CURRENT), "frames": []})
        elif line.startswith("  File ") and threads:
            threads[-1]["frames"].append(_parse_frame(line))
    threads.reverse()
    for thread in threads[:1]:
        thread["id"] = pid
    return threads


def _parse_frame(line: str) -> tuple[str, str, int]:
    """Return the function, file and line of a frame.

    >>> _parse_frame('  File "/a b.py", line 7 in step')
    ('step', '/a b.py', 7)
    """
    file, _, rest = line.strip()[len('File "') :].rpartition('", line ')
    number, _, function = rest.partition(" in ")
    return function, file, int(number) if number.isdecimal() else 0


def find_memory_file(pid: int, beginning: str) -> tuple[str, str]:
    """Return the path of a process's file in memory, and the rest of its name after a beginning; empty: there is none.

    A process that was forked may have another one of its parent's.
    """
    folder = f"/proc/{pid}/fd"
    for number in sorted(list_folder(folder), key=int, reverse=True):
        target = read_link(f"{folder}/{number}")
        if target.startswith(f"/memfd:{beginning}"):
            return f"{folder}/{number}", target[len(f"/memfd:{beginning}") :]
    return "", ""
