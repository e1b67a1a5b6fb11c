"""The policy of swapping: when saved tensors leave the device and come back, as pure functions of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlrun.ddl.lms.demand import NO_LIMIT
from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZE_KB = 1024  # the default of IBM's PyTorch too


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """The load of a device, in bytes.

    used: in use. capacity: in all. leaving: in use, but being copied out. ahead: brought back before they are needed.
    room: of blocks that may stay beside those that do; below 0 if too many do.
    """

    used: int
    capacity: int
    leaving: int = 0
    ahead: int = 0
    room: int = NO_LIMIT


@dataclass(frozen=True, slots=True)
class Policy:
    """The sizes and shares by which saved tensors leave and come back.

    size: bytes of the smallest block that leaves; 0: none does. frac: the share of the device that must be in use
    before. window: the share of the device that may be copied at a time, in each direction. full: the share in use
    above which nothing is brought back ahead, and computation waits for blocks that leave.
    """

    size: int = SIZE_KB * 1024
    frac: float = 0.7
    window: float = 0.05
    full: float = 0.9

    def excess(self, load: MemoryLoad) -> int:
        """Return the number of bytes that should begin to leave now."""
        return max(0, load.used - load.leaving - int(self.frac * load.capacity), -load.room - load.leaving)

    def must_wait(self, load: MemoryLoad, newest: int) -> bool:
        """Return True if the next computation must wait for the oldest of the blocks that leave.

        `newest` is the size of the block that began to leave last. It may exceed the window by itself, or nothing would
        overlap.
        """
        return load.leaving > 0 and (
            load.leaving - newest > self.window * load.capacity
            or load.used > max(self.full, self.frac) * load.capacity
            or load.room < 0
        )

    def over_full(self, load: MemoryLoad) -> int:
        """Return the number of bytes in use above the share `full`, or of blocks that may not stay."""
        return max(0, load.used - load.leaving - int(self.full * load.capacity), -load.room - load.leaving)

    def may_come(self, nbytes: int, load: MemoryLoad) -> bool:
        """Return True if a block may come back before it is needed. One that exceeds the window comes alone."""
        near = load.ahead == 0 or load.ahead + nbytes <= self.window * load.capacity
        return near and load.used + nbytes <= self.full * load.capacity and nbytes <= load.room


def read_policy(size_kb: float | None, frac: float | None, window: float | None, environ: Mapping[str, str]) -> Policy:
    """Return the policy of a script's arguments, else of the launcher (DDLRUN_LMS, DDLRUN_LMS_FRAC), else the default.

    A size of 0 KB or less switches off. Raises InputError if a value is not a number, or a share is not from 0 to 1.

    >>> read_policy(None, 0.5, None, {"DDLRUN_LMS": "1000"})
    Policy(size=1024000, frac=0.5, window=0.05, full=0.9)
    """
    default = Policy()
    kilobytes = _number(size_kb, "size_kb", "DDLRUN_LMS", environ, SIZE_KB)
    shares = {
        "frac": _number(frac, "frac", "DDLRUN_LMS_FRAC", environ, default.frac),
        "window": _number(window, "window", "", environ, default.window),
    }
    problems = [
        f"lms: {name} {value:g}: a share of the device is wanted, 0 to 1"
        for name, value in shares.items()
        if not 0 <= value <= 1
    ]
    if problems:
        raise InputError(*problems)
    return Policy(max(0, int(kilobytes * 1024)), shares["frac"], shares["window"])


def _number(value: float | None, name: str, variable: str, environ: Mapping[str, str], default: float) -> float:
    text = environ.get(variable, "") if value is None else value
    where = variable if value is None else f"lms: {name}"
    if text == "":
        return default
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) < 1e15:
        raise InputError(f"{where} {text!r} is not a number; write one such as {default:g}")
    return number
