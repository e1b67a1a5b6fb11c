"""Python imports this before a rank's script: a rank that fails then ends at once, whatever others wait for.

An uncaught exception or sys.exit(not 0) leads Python to its finalization, in which mpi4py calls
MPI_Finalize: that waits for all other ranks, and these wait for this one. So the process ends after
the script's own atexit functions, before MPI's; or after a while, where those or threads wait, too.
"""

# ruff: noqa: PLC0415, INP001 - only what is needed is imported, and never ours by a package's name
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

MOST_SECONDS = 10.0


class _Exit(SystemExit):
    """Knows whether it ended Python or was caught: no Python function is left where it ended it."""

    def __del__(self) -> None:
        if sys is not None and sys._getframe().f_back is None and self.code not in (None, 0):  # noqa: SLF001
            _fail(self.code & 255 if isinstance(self.code, int) else 1)


_failed: list[int] = []
_before = sys.excepthook
_plain_exit = sys.exit


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


def _hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    _before(kind, value, trace)
    if not hasattr(sys, "ps1") and not sys.flags.interactive:
        _fail(130 if kind is KeyboardInterrupt else 1)


def _exit(status: int | str | None = None, /) -> None:
    import threading

    if threading.current_thread() is not threading.main_thread():
        _plain_exit(status)
    raise _Exit(status)


def _at_end() -> None:
    if not _failed and sys.excepthook is not _hook and getattr(sys, "last_value", None) is not None:
        _failed.append(1)  # the script has an excepthook of its own
    if _failed:
        _leave()


def _install() -> None:
    import atexit
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not any(paths):
        del os.environ["PYTHONPATH"]
    sys.path[:] = [path for path in sys.path if path != folder]
    atexit.register(_at_end)  # the first to be registered is the last to run
    sys.excepthook = _hook
    sys.exit = _exit  # type: ignore[assignment]
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
