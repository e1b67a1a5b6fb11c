"""The memory policy of a rank: the NUMA nodes on which the kernel allocates its memory."""

from __future__ import annotations

import os

# set_mempolicy(2): its modes, and its number per architecture; the C library has no function for it.
_MODES = {"bind": 2, "interleave": 3}
_SYSCALLS = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "s390x": 270, "riscv64": 237}
_WORD = 64


def set_memory_policy(text: str) -> str | None:
    """Apply a policy such as `bind=0,1`, which programs started later inherit; return the problem, if there is one."""
    if not text:
        return None
    mode, _, nodes = text.partition("=")
    machine = os.uname().machine
    if machine not in _SYSCALLS:
        return f"its memory policy {text} cannot be set: unknown architecture {machine}"
    error = _set_mempolicy(_SYSCALLS[machine], _MODES[mode], [int(node) for node in nodes.split(",")])
    return f"its memory policy {text} cannot be set: {os.strerror(error)}; {_cause(error)}" if error else None


def _set_mempolicy(syscall: int, mode: int, nodes: list[int]) -> int:
    """Call set_mempolicy; return the error number, 0 if there was none."""
    import ctypes  # noqa: PLC0415 - 3 ms, only with --membind

    words = max(nodes) // _WORD + 1
    mask = sum(1 << node for node in nodes).to_bytes(words * _WORD // 8, "little")
    library = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is given as the number of bits.
    arguments = (ctypes.c_long(syscall), ctypes.c_int(mode), mask, ctypes.c_ulong(words * _WORD + 1))
    return ctypes.get_errno() if library.syscall(*arguments) else 0


def _cause(error: int) -> str:
    import errno  # noqa: PLC0415 - for the message alone

    if error == errno.EINVAL:
        return "a node is missing on that host, or a cpuset forbids it"
    return "a container needs the capability SYS_NICE for that"
