"""Duty "stacks" of the start-up hook: the rank answers ddlrun doctor.

On a signal, the process writes its stacks to a file in memory, also while C code runs or waits. On another one, it adds
a word once the interpreter runs again: a main thread that waits in a library does not.
See keeper/stacks/python_stacks.py.
"""

# ruff: noqa: INP001 - it imports nothing from the package
# mypy: disable-error-code="import-not-found"

import _signal  # signal itself takes 4 ms to import
import faulthandler
import os

# As in ddlrun/keeper/stacks/python_stacks.py. Nothing else uses these real-time signals.
STACKS_FILE = "ddlrun-stacks"
STACKS_SIGNAL = 57
PROBE_SIGNAL = 58
PROBE_REPLY = b"moved\n"
# The file has a high number: programs use the low ones, and may close and reuse them.
STACKS_DESCRIPTOR = 200


def start() -> None:
    """Handle the signals, unless the program has the descriptor already."""
    try:
        os.fstat(STACKS_DESCRIPTOR)
    except OSError:  # it is free
        pass
    else:
        return
    try:
        file = os.memfd_create(STACKS_FILE)
        os.dup2(file, STACKS_DESCRIPTOR, inheritable=False)
        os.close(file)
    except (OSError, AttributeError):  # an old Python, or a low limit of open files
        return
    if _signal.getsignal(STACKS_SIGNAL) == _signal.SIG_DFL:
        faulthandler.register(STACKS_SIGNAL, STACKS_DESCRIPTOR)
    if _signal.getsignal(PROBE_SIGNAL) == _signal.SIG_DFL:
        _signal.signal(PROBE_SIGNAL, _reply)


def _reply(_number: int, _frame: object) -> None:
    """Write that the main thread runs Python: the handler of the probe's signal."""
    try:  # noqa: SIM105 - contextlib would have to be imported
        os.write(STACKS_DESCRIPTOR, PROBE_REPLY)
    except OSError:  # the program has closed it
        pass
