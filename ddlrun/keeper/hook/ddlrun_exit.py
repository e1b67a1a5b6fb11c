"""Duty "exit" of the start-up hook: a rank that fails does not wait in MPI_Finalize, and none aborts in gloo.

After an uncaught exception or sys.exit(nonzero) Python finalizes, and mpi4py calls MPI_Finalize, which waits for the
other ranks, which may wait for this one. This module notices the failure and ends the process after the script's own
atexit functions, before those of MPI. If threads or atexit functions block, it does so after GRACE_SECONDS.

A thread of gloo that needs the interpreter lock while Python finalizes ends the process with SIGABRT: torch 2.13 drops
the Python context of a collective call there, which may be long after the call has returned. The hook waits until these
threads are idle.

The hook starts nothing after the atexit functions: once Python finalizes, no other thread runs any more, and a
start that waits for its thread blocks indefinitely.
"""

# ruff: noqa: PLC0415, INP001 - it imports as little as possible, and nothing from the package

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType

GRACE_SECONDS = 60.0
# torch's name for the threads in which gloo runs collective calls.
GLOO_THREAD = "pt_gloo_runloop"
GLOO_SECONDS = 60.0
# These end with MPI_Abort, which mpi4py calls at the end of the finalization.
ABORTING_MODULES = ("mpi4py.run", "mpi4py.__main__", "mpi4py.futures.__main__")

_failed: "list[int]" = []  # the exit code; quoted, so that old versions of Python can import this module
_finalizing = False
_main_thread = 0
_plain_hook = sys.excepthook
_plain_exit = sys.exit


class _Exit(SystemExit):
    """A SystemExit that records the failure when Python ends because of it.

    Python then reads the exit code from C, with no Python function on the stack. A script that catches
    the exception reads it from a function.
    """

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name == "code" and sys._getframe().f_back is None:  # noqa: SLF001
            _fail(_exit_code(value))
        return value

    def __reduce__(self) -> "tuple[type[SystemExit], tuple[object, ...]]":
        return SystemExit, self.args  # another process may have no such class


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # for tracebacks
_Exit.__module__ = "builtins"


def _exit(status: object = None) -> None:
    """Replace sys.exit in Python before 3.12."""
    if _in_main_thread() and _exit_code(status) and not isinstance(status, (tuple, BaseException)):
        raise _Exit(status)
    _plain_exit(status)  # type: ignore[arg-type]


def _exit_code(status: object) -> int:
    """Return the exit code that Python makes of the argument of sys.exit."""
    if status is None:
        return 0
    return status & 255 if isinstance(status, int) else 1


def _unwound(code: "CodeType", _offset: int, error: BaseException) -> None:
    """Record a SystemExit that leaves the script; Python 3.12 calls this for each function that an exception leaves."""
    outermost = code.co_name in ("<module>", "_run_module_as_main") and sys._getframe(1).f_back is None  # noqa: SLF001
    if outermost and isinstance(error, SystemExit) and _in_main_thread():
        _fail(_exit_code(error.code))


def _hook(kind: "type[BaseException]", value: BaseException, trace: "TracebackType | None") -> None:
    """Replace sys.excepthook; it may also be called by a script that only prints an exception."""
    _plain_hook(kind, value, trace)
    ends = _in_main_thread() and sys._getframe().f_back is None  # noqa: SLF001
    if ends and not hasattr(sys, "ps1") and not sys.flags.interactive:
        _fail(130 if isinstance(value, KeyboardInterrupt) else 1)


def _in_main_thread() -> bool:
    import _thread

    return _thread.get_ident() == _main_thread


def _fail(code: int) -> None:
    """Record that Python is about to end with this exit code, and start the time limit."""
    import _thread

    if code == 0 or _finalizing or not _uses_mpi():
        return
    _failed.append(code)
    try:  # noqa: SIM105 - contextlib cannot be imported where too many files are open
        _thread.start_new_thread(_leave, (code, GRACE_SECONDS))
    except RuntimeError:  # no thread can be started: there is no time limit
        pass


def _uses_mpi() -> bool:
    try:
        with open("/proc/self/maps") as file:
            return "libmpi" in file.read()
    except OSError:  # the script may have failed because too many files are open
        return True


def _leave(code: int, seconds: float = 0) -> None:
    """Flush all files and end the process, after some seconds."""
    import gc
    import io
    import os
    import time

    time.sleep(seconds)
    # By type alone: isinstance asks an object for its __class__, and some of torch's warn when they are asked.
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    files = [item for item in gc.get_objects() if issubclass(type(item), kinds)]
    files.sort(key=lambda file: not isinstance(file, io.TextIOWrapper))  # text files flush into binary files
    for file in files:
        try:  # noqa: SIM105 - as in _fail
            file.flush()
        except Exception:  # noqa: BLE001, S110 - a closed file, or a full disk
            pass
    os._exit(code)


def _at_end() -> None:
    """End a failed process; Python calls this after the atexit functions of the script."""
    global _finalizing  # noqa: PLW0603 - a module of its own in each process
    error = getattr(sys, "last_value", None)
    if not _failed and sys.excepthook is not _hook and error is not None and _uses_mpi():
        _failed.append(130 if isinstance(error, KeyboardInterrupt) else 1)  # the script replaced the excepthook
    _finalizing = True
    if _failed and not _mpi4py_aborts():
        _leave(_failed[0])
    if "torch.distributed" in sys.modules:
        await_gloo()


def await_gloo() -> None:
    """Wait until no thread of gloo has work to do or to drop; a call that waits for another rank is given up."""
    import time

    end = time.monotonic() + GLOO_SECONDS
    quiet = 0
    while quiet < 3 and time.monotonic() < end:
        quiet = 0 if gloo_is_busy() else quiet + 1
        time.sleep(0.001)  # without the interpreter lock


def gloo_is_busy() -> bool:
    """Return True if a thread of gloo is not in the wait for its next call, which is a futex without a time limit."""
    import os

    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/comm") as file:
                if file.read().rstrip() != GLOO_THREAD:
                    continue
            with open(f"/proc/self/task/{thread}/syscall") as file:
                words = file.read().split()
        except OSError:  # it has ended, or the kernel does not show it
            continue
        if words[0] == "running" or (len(words) > 4 and words[4] != "0x0"):
            return True
    return False


def _mpi4py_aborts() -> bool:
    """Return True if mpi4py ends this failed process with MPI_Abort."""
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "mpi4py.MPI" in sys.modules and getattr(program, "name", None) in ABORTING_MODULES


def _watch_exits() -> None:
    """Notice each SystemExit that ends Python: before 3.12 only those of sys.exit, exit and quit."""
    monitoring = getattr(sys, "monitoring", None)
    tool = 4  # debuggers, coverage, profilers and optimizers have other numbers
    if monitoring is not None and monitoring.get_tool(tool) is None:
        monitoring.use_tool_id(tool, "ddlrun")
        monitoring.register_callback(tool, monitoring.events.PY_UNWIND, _unwound)
        monitoring.set_events(tool, monitoring.events.PY_UNWIND)
        return
    import builtins

    sys.exit = _exit  # type: ignore[assignment]
    for name in ("exit", "quit"):  # `python -S` has none
        if hasattr(builtins, name):
            setattr(builtins, name, _exit)


def start() -> None:
    """Notice failures from now on."""
    global _main_thread  # noqa: PLW0603 - a module of its own in each process
    import _thread
    import atexit

    _main_thread = _thread.get_ident()
    atexit.register(_at_end)  # the first to be registered is the last to run
    sys.excepthook = _hook
    _watch_exits()
