"""Python imports this before a rank's script: a rank that fails then ends at once, whatever others wait for.

An uncaught exception or sys.exit(not 0) leads Python to its finalization, in which mpi4py calls
MPI_Finalize: that waits for all other ranks, and these wait for this one. So the process ends after
the script's own atexit functions, before MPI's; or after a while, where those or threads wait, too.
"""

# ruff: noqa: PLC0415, INP001 - only what is needed is imported, and never ours by a package's name
# mypy: disable-error-code="import-not-found"

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType

MOST_SECONDS = 60.0


class _Exit(SystemExit):
    """Knows whether it ended Python or was caught: no Python function is left where it ended it."""

    top = ""

    def __del__(self) -> None:
        ends = sys is not None and sys.meta_path is not None and sys._getframe().f_back is None  # noqa: SLF001
        if ends:
            _note(self, self.top)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # as tracebacks show it
_Exit.__module__ = "builtins"


def _note(end: SystemExit, where: str) -> None:
    """Take note of an exit of the script, or of what `python -m` runs; not of one in an atexit function."""
    if end.code not in (None, 0) and where in ("<module>", "_run_module_as_main"):
        _fail(end.code & 255 if isinstance(end.code, int) else 1)


def _unwound(code: "CodeType", _offset: int, error: BaseException) -> None:
    """Python 3.12 calls this for each function that an exception leaves."""
    if isinstance(error, SystemExit) and _in_main() and sys._getframe(1).f_back is None:  # noqa: SLF001
        _note(error, code.co_name)


def _in_main() -> bool:
    import _thread

    return _thread.get_ident() == _main_thread


_failed: "list[int]" = []  # quoted: whatever Python a rank starts must read this
_before = sys.excepthook
_plain_exit = sys.exit
_main_thread = 0


def _fail(code: int) -> None:
    """Note that Python is about to end with an error; where MPI is in the process, see to it that it does."""
    import threading
    import time

    with open("/proc/self/maps") as file:
        if "libmpi" not in file.read():
            return

    def end() -> None:
        time.sleep(MOST_SECONDS)
        _leave()

    _failed.append(code)
    threading.Thread(target=end, daemon=True).start()


def _leave() -> None:
    import contextlib
    import gc
    import io
    import os

    # By type alone: isinstance asks an object for its __class__, and some of torch's warn when they are asked.
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    files = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    for file in sorted(files, key=lambda one: not isinstance(one, io.TextIOWrapper)):  # what these hold goes into those
        with contextlib.suppress(Exception):
            file.flush()
    os._exit(_failed[0])


def _hook(kind: "type[BaseException]", value: BaseException, trace: "TracebackType | None") -> None:
    _before(kind, value, trace)
    ends = _in_main() and sys._getframe().f_back is None  # noqa: SLF001 - else somebody only wants it printed
    if ends and not hasattr(sys, "ps1") and not sys.flags.interactive:
        _fail(130 if kind is KeyboardInterrupt else 1)


def _exit(status: "int | str | None" = None) -> None:
    if not _in_main():
        _plain_exit(status)
    end = _Exit(status)
    frame = sys._getframe()  # noqa: SLF001
    while frame.f_back is not None:
        frame = frame.f_back
    end.top = frame.f_code.co_name  # the script, or a function that Python itself calls at its end
    raise end


def _watch_exits() -> None:
    """Notice each SystemExit that ends Python: before 3.12, those of sys.exit, exit and quit."""
    monitoring = getattr(sys, "monitoring", None)
    tool = 4  # not one of those that debuggers, coverage, profilers and optimizers have
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


def _at_end() -> None:
    if not _failed and sys.excepthook is not _hook and getattr(sys, "last_value", None) is not None:
        _fail(1)  # the script has an excepthook of its own
    if _failed:
        _leave()


def _install() -> None:
    global _main_thread  # noqa: PLW0603 - a module of its own in each process
    import _thread
    import atexit
    import os

    _main_thread = _thread.get_ident()
    folder = os.path.dirname(os.path.abspath(__file__))
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in before:  # somebody imports this for a look at it
        return
    paths = [path for path in before if path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not paths:
        del os.environ["PYTHONPATH"]
    sys.path[:] = [path for path in sys.path if path != folder]
    atexit.register(_at_end)  # the first to be registered is the last to run
    sys.excepthook = _hook
    _watch_exits()
    _run_the_other()


def _run_the_other() -> None:
    """Run the sitecustomize that there is without this one."""
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


_install()
