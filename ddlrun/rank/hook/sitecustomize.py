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
    from types import TracebackType

MOST_SECONDS = 10.0


class _Exit(SystemExit):
    """Knows whether it ended Python or was caught: no Python function is left where it ended it."""

    def __del__(self) -> None:
        if sys is not None and sys._getframe().f_back is None:  # noqa: SLF001
            _note(self)


def _note(end: SystemExit) -> None:
    if end.code not in (None, 0):
        _fail(end.code & 255 if isinstance(end.code, int) else 1)


def _unwound(_code: object, _offset: int, error: BaseException) -> None:
    """Python 3.12 calls this for each function that an exception leaves."""
    if isinstance(error, SystemExit) and _in_main() and sys._getframe(1).f_back is None:  # noqa: SLF001
        _note(error)


def _in_main() -> bool:
    import _thread

    return _thread.get_ident() == _main_thread


_failed: "list[int]" = []  # quoted: whatever Python a rank starts must read this
_before = sys.excepthook
_plain_exit = sys.exit
_main_thread = 0


def _fail(code: int) -> None:
    """Note that Python is about to end with an error, and see to it that it does."""
    import threading
    import time

    def end() -> None:
        time.sleep(MOST_SECONDS)
        _leave()

    _failed.append(code)
    threading.Thread(target=end, daemon=True).start()


def _leave() -> None:
    import contextlib
    import os

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(_failed[0])


def _hook(kind: "type[BaseException]", value: BaseException, trace: "TracebackType | None") -> None:
    _before(kind, value, trace)
    if not hasattr(sys, "ps1") and not sys.flags.interactive:
        _fail(130 if kind is KeyboardInterrupt else 1)


def _exit(status: "int | str | None" = None) -> None:
    if not _in_main():
        _plain_exit(status)
    raise _Exit(status)


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
        _failed.append(1)  # the script has an excepthook of its own
    if _failed:
        _leave()


def _install() -> None:
    global _main_thread  # noqa: PLW0603 - a module of its own in each process
    import _thread
    import atexit
    import os

    _main_thread = _thread.get_ident()
    folder = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not any(paths):
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
