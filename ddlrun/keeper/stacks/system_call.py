"""The system call in which a process waits, and the file that it is about."""

from __future__ import annotations

import os

# Names of the calls that block on files, by their numbers; the numbers of aarch64 are those of all newer architectures.
_X86_64 = {0: "read", 1: "write", 2: "open", 45: "recvfrom", 44: "sendto", 42: "connect", 257: "openat", 202: "futex",
           230: "sleep", 35: "sleep", 7: "poll", 271: "poll", 232: "poll", 281: "poll", 23: "poll", 270: "poll",
           61: "wait", 247: "wait", 19: "read", 17: "read", 20: "write", 18: "write", 47: "recvfrom", 46: "sendto",
           288: "accept", 43: "accept", 72: "lock", 73: "lock"}  # fmt: skip
_GENERIC = {63: "read", 64: "write", 56: "openat", 207: "recvfrom", 206: "sendto", 203: "connect", 98: "futex",
            115: "sleep", 101: "sleep", 73: "poll", 22: "poll", 72: "poll", 260: "wait", 95: "wait", 65: "read",
            66: "write", 67: "read", 68: "write", 212: "recvfrom", 211: "sendto", 242: "accept", 25: "lock",
            32: "lock"}  # fmt: skip
_PPC64 = {3: "read", 4: "write", 5: "open", 286: "openat", 221: "futex", 162: "sleep", 248: "sleep", 167: "poll",
          238: "poll", 303: "poll", 7: "wait", 114: "wait", 272: "wait", 337: "recvfrom", 335: "sendto",
          328: "connect", 143: "lock"}  # fmt: skip
CALLS = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC, "ppc64le": _PPC64}
# Calls whose first argument is a descriptor.
ON_FILES = ("read", "write", "recvfrom", "sendto", "connect", "accept", "lock")


class SystemCall:
    """A call, by a name that is the same on all architectures, and its first argument."""

    def __init__(self, name: str = "", argument: int = -1) -> None:
        self.name = name
        """Empty: the process runs, or the call is another one or cannot be read."""
        self.argument = argument


def read_call(pid: int) -> SystemCall:
    """Return the system call in which the first thread of a process is."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return parse_call(file.read(), CALLS.get(os.uname().machine, {}))
    except OSError:
        return SystemCall()


def parse_call(text: str, names: dict[int, str]) -> SystemCall:
    """Parse the content of /proc/PID/syscall.

    >>> call = parse_call("0 0x5 0x7f01 0x2000 0x0 0x0 0x0 0x7ffc 0x7f02", _X86_64)
    >>> call.name, call.argument, parse_call("running", _X86_64).name
    ('read', 5, '')
    """
    words = text.split()
    if len(words) < 2 or not words[0].isdecimal():
        return SystemCall()
    return SystemCall(names.get(int(words[0]), ""), int(words[1], 16))


def describe_call(pid: int, call: SystemCall) -> str:
    """Return the file that a call is about: a path, pipe:[N] or socket:[N]; empty if it is about none."""
    if call.name not in ON_FILES:
        return ""
    try:
        return os.readlink(f"/proc/{pid}/fd/{call.argument}")
    except OSError:
        return ""
