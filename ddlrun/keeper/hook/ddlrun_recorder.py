"""The flight recorder of torch.distributed, for the duty "stacks": a thread writes it to a file in memory on request.

A main thread that waits in a collective operation runs no Python code, so that a signal does not suffice. A request is
a word in a pipe, whose descriptor is a part of the file's name. See keeper/stacks/python_stacks.py.
"""

# ruff: noqa: PLC0415, INP001 - it imports as little as possible, and nothing from the package

import os
import sys

# As in ddlrun/keeper/stacks/python_stacks.py.
RECORDER_FILE = "ddlrun-flight-recorder"
# Programs use the low descriptors, and may close and reuse them.
LEAST_DESCRIPTOR = 200
# Functions of torch that return a recorder as JSON, that of gloo and that of NCCL. There are no public ones.
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
MOST_REQUEST = 64
_pipe: "list[int]" = []


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

    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, LEAST_DESCRIPTOR)
    os.close(descriptor)
    return high


def _serve(reader: int, file: int, torch: object) -> None:
    """Write the request and the recorders for each request."""
    while True:
        try:
            request = os.read(reader, MOST_REQUEST)
            dumps = [getattr(torch, name)() for name in DUMPS if hasattr(torch, name)]
            text = request + b" [" + b",".join(dumps) + b"]\n"
            os.ftruncate(file, 0)
            os.pwrite(file, text, 0)
        except (OSError, RuntimeError):  # the program has closed the descriptors, or a GPU has failed
            return
