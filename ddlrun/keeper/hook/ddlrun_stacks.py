"""Duty "stacks" of the start-up hook: the rank answers ddlrun doctor.

On a signal, the process writes its stacks to a file in memory, also while C code runs or waits. On another one, it adds
a line once the interpreter runs again: a main thread that waits in a library does not. The line has a word per function
of the main thread, which changes with its variables: those of a loop that waits for something do not change.

In a process of torch.distributed, a thread writes PyTorch's flight recorder to another such file. A main thread that
waits in a collective operation runs no Python code, so that a signal does not suffice. A request is a word in a pipe,
whose descriptor is a part of the file's name. See keeper/stacks/python_stacks.py.
"""

# ruff: noqa: ANN401, PLC0415, INP001 - objects of torch; it imports as little as possible, and nothing from the package
# mypy: disable-error-code="import-not-found"

import _signal  # signal itself takes 4 ms to import
import faulthandler
import os
import sys
from _collections import deque  # collections takes 2 ms
from time import time_ns

# As in ddlrun/keeper/stacks/python_stacks.py. Nothing else uses these real-time signals.
STACKS_FILE = "ddlrun-stacks"
STACKS_SIGNAL = 57
PROBE_SIGNAL = 58
PROBE_REPLY = "moved"
MOST_FRAMES = 40
# Types of variables that are compared by their values, and by their lengths; of others, another object differs.
PLAIN, SIZED = (int, float, bool), (str, bytes, bytearray, list, dict, set, tuple)
# The flag of code whose local variables are in no dictionary (CO_OPTIMIZED). Until Python 3.12 a frame makes one for
# whoever asks, such as locals(), and all who ask share it.
OPTIMIZED, MASK = 1, 0xFFFFFFFF
# The references to that dictionary if nobody else has it: the frame's, a variable's, and the argument of getrefcount.
OWN_REFERENCES = 3
# The file has a high number: programs use the low ones, and may close and reuse them.
STACKS_DESCRIPTOR = 200
RECORDER_FILE = "ddlrun-flight-recorder"
# Functions of torch that return a recorder as JSON, that of gloo and that of NCCL. There are no public ones.
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
MOST_REQUEST = 64
# A blocking function of torch.distributed -> its parameter with the other rank.
PEERS = {"send": "dst", "recv": "src"}
ANY = -1
# Groups may change while they are described.
TRIALS = 3
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Its function, group, other rank, and other rank in the group.
    Kind = tuple[str, int, int | None, int | None]
_pipe: "list[int]" = []
# The last messages, with their times in ns, and the numbers of all.
_messages: "deque[tuple[int, Kind]]" = deque(maxlen=64)
_counts: "dict[Kind, int]" = {}


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
        _signal.siginterrupt(PROBE_SIGNAL, False)  # the kernel restarts a system call that has begun meanwhile


def _reply(_number: int, frame: "Any") -> None:
    """Write that the main thread runs Python, and the state of its functions: the handler of the probe's signal."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    try:
        words = " ".join([PROBE_REPLY, *map(_describe_frame, frames[: -MOST_FRAMES - 1 : -1])])
        os.write(STACKS_DESCRIPTOR, f"{words}\n".encode())
    except Exception:  # noqa: BLE001, S110 - nothing of this may reach the program
        pass


def _describe_frame(frame: "Any") -> str:
    """Return a number for a function, and one that changes with the values of its variables."""
    numbers = frame.f_code, tuple(map(_identify, _list_values(frame)))
    return ":".join(f"{hash(number) & MASK:x}" for number in numbers)


def _list_values(frame: "Any") -> "list[Any]":
    """Return the values of a function's variables, and of its object's; the time if it calls locals()."""
    code = frame.f_code
    if code.co_flags & OPTIMIZED and "locals" in code.co_names:
        return [time_ns()]
    values = frame.f_locals
    own = values.get("self")
    attributes = object.__getattribute__(own, "__dict__") if type(own).__dictoffset__ else {}  # calls no __getattr__
    items = [*values.values(), *attributes.values()]
    unshared = type(values) is dict and sys.getrefcount(values) == OWN_REFERENCES and sys.gettrace() is None
    if code.co_flags & OPTIMIZED and unshared:
        values.clear()  # a copy, which would keep the values as long as the function runs
    return items


def _identify(value: "Any") -> "Any":
    """Return a value that changes with that of a variable, without a call of the program's code."""
    if type(value) in PLAIN:
        return value
    return (id(value), len(value)) if type(value) in SIZED else id(value)


def before_group() -> None:
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


def record_messages(module: "Any") -> None:
    """Let the functions of torch.distributed that begin messages record them: torch does so with NCCL alone."""
    for name, parameter in PEERS.items():
        setattr(module, f"i{name}", _record_calls(module, name, parameter))


def _record_calls(module: "Any", name: str, parameter: str) -> "Callable[..., Any]":
    from functools import wraps

    function = getattr(module, f"i{name}")
    names = ("tensor", parameter, "group", "tag", f"group_{parameter}")

    @wraps(function)
    def begin(*arguments: "Any", **words: "Any") -> "Any":
        values = words if len(arguments) < 2 else dict(zip(names, arguments), **words)  # noqa: B905 - as in Python 3.8
        try:  # noqa: SIM105 - it takes less time
            _record((name, id(values.get("group")), values.get(parameter), values.get(names[-1])))
        except TypeError:  # of the arguments: the function itself raises it
            pass
        return function(*arguments, **words)

    return begin


def _record(kind: "Kind") -> None:
    _counts[kind] = _counts.get(kind, 0) + 1
    _messages.append((time_ns(), kind))


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
            text = request + b" [" + b",".join([*dumps, _dump_others()]) + b"]\n"
            os.ftruncate(file, 0)
            os.pwrite(file, text, 0)
        except (OSError, RuntimeError):  # the program has closed the descriptors, or a GPU has failed
            return


def _dump_others() -> bytes:
    """Return, as one more recorder, what torch's have not: members of groups, and the send or recv of the main thread.

    So are the operations of ddlrun's backend. It is empty for another version of torch.
    """
    import json

    threads = {"threads": _read_threads()}
    for _ in range(TRIALS):
        try:
            return json.dumps({**_describe_groups(), **threads}).encode()
        except (AttributeError, KeyError, TypeError, RuntimeError, ValueError):  # a group changes at this moment
            continue
    return json.dumps(threads).encode()


def _describe_groups() -> "dict[str, Any]":
    torch = sys.modules["torch.distributed.distributed_c10d"]
    world = torch._world  # noqa: SLF001 - there is no public list
    groups = {name: group for group, name in tuple(world.pg_names.items())}
    own = {name: group.describe_operations() for name, group in groups.items() if hasattr(group, "describe_operations")}
    described = {name: {"group": name, "description": groups[name].group_desc, "backend": "ddl"} for name in own}
    calls = [{**described[name], **call} for name, records in own.items() for call in records["operations"]]
    uses = [(at, name, number, call, None) for name, records in own.items() for at, number, call in records["recent"]]
    return {
        "pg_config": {
            name: {"desc": group.group_desc, "ranks": str(list(world.pg_group_ranks[group]))}
            for name, group in groups.items()
        },
        "calls": sorted(calls, key=lambda call: call.pop("time"))
        + [call for call in _find_call(torch) if call["group"] not in own],
        "counts": {name: records["number"] for name, records in own.items()},
        "recent": uses + _describe_messages(torch, groups),
    }


def _describe_messages(torch: "Any", groups: "dict[str, Any]") -> "list[tuple[int, str, int, str, int]]":
    """Return the time, group, number, function and other rank (ANY: any) of the last messages."""
    messages, world = tuple(_messages), torch._world  # noqa: SLF001
    names = {id(group): name for name, group in groups.items()}
    names[id(None)] = world.pg_names[torch.GroupMember.WORLD]
    numbers: dict[tuple[str, str, int], int] = {}
    series, recent = {}, []
    for kind, count in tuple(_counts.items()):
        function, group, peer, in_group = kind
        name = names.get(group, "")
        places = {place: rank for rank, place in world.pg_group_ranks.get(groups.get(name), {}).items()}
        peer = int(peer) if peer is not None else ANY if in_group is None else places.get(in_group)
        if name and peer is not None:
            series[kind] = name, function, peer
            numbers[series[kind]] = numbers.get(series[kind], 0) + count
    for at, kind in reversed(messages):
        if kind in series:
            name, function, peer = series[kind]
            recent.append((at, name, numbers[series[kind]], function, peer))
            numbers[series[kind]] -= 1
    return recent


def _read_threads() -> "list[dict[str, Any]]":
    """Return the stacks of all other threads, that of the main thread first, as python_stacks.py has them."""
    import _thread
    import threading

    threads = []
    for number, frame in sys._current_frames().items():  # noqa: SLF001
        thread = threading._active.get(number)  # type: ignore[attr-defined]  # noqa: SLF001 - enumerate() takes a lock
        if number != _thread.get_ident():
            name, native = getattr(thread, "name", ""), getattr(thread, "native_id", None)
            threads.append({"id": native or 0, "name": name, "active": False, "frames": _read_frames(frame)})
    return sorted(threads, key=lambda thread: thread["id"] != os.getpid())


def _read_frames(frame: "Any") -> "list[tuple[str, str, int]]":
    """Return the function, file and line of each frame of a stack, the innermost first."""
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return frames


def _find_call(torch: "Any") -> "list[dict[str, Any]]":
    """Return the send or recv in which the main thread waits: gloo records none, and ddlrun's backend neither."""
    import threading

    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    while frame is not None:
        name = frame.f_code.co_name
        if name in PEERS and frame.f_code.co_filename == torch.__file__:
            return _describe_call(torch, name, frame.f_locals)
        frame = frame.f_back
    return []


def _describe_call(torch: "Any", name: str, values: "dict[str, Any]") -> "list[dict[str, Any]]":
    """Return a call by the values of its parameters; nothing if it receives from any rank."""
    group = values["group"] or torch.GroupMember.WORLD
    peer, peer_in_group = values[PEERS[name]], values[f"group_{PEERS[name]}"]
    if peer is None and peer_in_group is None:
        return []
    return [
        {
            "name": name,
            "backend": torch.get_backend(group),
            "group": torch._world.pg_names[group],  # noqa: SLF001
            "description": group.group_desc,
            "peer": torch.get_global_rank(group, peer_in_group) if peer is None else peer,
            "tag": values["tag"],
        }
    ]
