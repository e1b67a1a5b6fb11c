"""Duty "stacks" of the start-up hook: the rank answers ddlrun doctor.

On a signal, the process writes its stacks to a file in memory, also while C code runs or waits. On another one, it adds
a word once the interpreter runs again: a main thread that waits in a library does not.

In a process of torch.distributed, a thread writes PyTorch's flight recorder to another such file. A main thread that
waits in a collective operation runs no Python code, so that a signal does not suffice. A request is a word in a pipe,
whose descriptor is a part of the file's name. See keeper/stacks/python_stacks.py.
"""

# ruff: noqa: PLC0415, INP001 - it imports as little as possible, and nothing from the package
# mypy: disable-error-code="import-not-found"

import _signal  # signal itself takes 4 ms to import
import faulthandler
import os
import sys

# As in ddlrun/keeper/stacks/python_stacks.py. Nothing else uses these real-time signals.
STACKS_FILE = "ddlrun-stacks"
STACKS_SIGNAL = 57
PROBE_SIGNAL = 58
PROBE_REPLY = b"moved\n"
# The file has a high number: programs use the low ones, and may close and reuse them.
STACKS_DESCRIPTOR = 200
RECORDER_FILE = "ddlrun-flight-recorder"
# Functions of torch that return a recorder as JSON, that of gloo and that of NCCL. There are no public ones.
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
MOST_REQUEST = 64
_pipe: "list[int]" = []


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


def on_group() -> None:
    """Start the recorder's thread, unless it runs; do nothing with a torch that records nothing."""
    import _thread

    if _pipe:
        return
    try:
        torch = sys.modules["torch._C._distributed_c10d"]
        reader, writer = (_raise(descriptor) for descriptor in os.pipe())
        file = _raise(os.memfd_create(f"{RECORDER_FILE}-{writer}"))
        _thread.start_new_thread(_serve, (reader, file, torch))
    except (KeyError, OSError, RuntimeError):  # another torch, or low limits
        return
    _pipe.append(writer)


def _raise(descriptor: int) -> int:
    """Return a descriptor of the same file with a high number."""
    import fcntl

    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, STACKS_DESCRIPTOR)
    os.close(descriptor)
    return high


def _serve(reader: int, file: int, torch: object) -> None:
    """Write the request and the recorders for each request."""
    while True:
        try:
            request = os.read(reader, MOST_REQUEST)
            dumps = [getattr(torch, name)() for name in DUMPS if hasattr(torch, name)]
            text = request + b" [" + b",".join([*dumps, _dump_members()]) + b"]\n"
            os.ftruncate(file, 0)
            os.pwrite(file, text, 0)
        except (OSError, RuntimeError):  # the program has closed the descriptors, or a GPU has failed
            return


def _dump_members() -> bytes:
    """Return the members of all groups as a recorder has them; gloo's has none. Empty for another version of torch."""
    import json

    try:
        world = sys.modules["torch.distributed.distributed_c10d"]._world  # noqa: SLF001 - there is no public list
        groups = {name: list(world.pg_group_ranks[group]) for group, name in tuple(world.pg_names.items())}
    except (AttributeError, KeyError, TypeError, RuntimeError):  # a group that is destroyed at this moment
        groups = {}
    return json.dumps({"pg_config": {name: {"ranks": str(ranks)} for name, ranks in groups.items()}}).encode()
