"""The policy of swapping: when saved tensors leave the device and come back, as pure functions of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Passes in which no block may stay. The first one also allocates gradients and the optimizer's state, and may try
# algorithms; only the last one counts.
BARE_PASSES = 2
# Passes that learn. The later ones show how much of what an operation holds is a block that may stay.
PASSES = BARE_PASSES + 3
# A limit that never matters.
NO_LIMIT = 1 << 62


class Demand:
    """The bytes of saved blocks that may stay on a device, so that the rest of a pass has room.

    It learns again once a block is larger than all before. After that, a peak above the capacity lowers the limit. A
    pass ends with the first save after all blocks are gone that had been saved when backward began.

    Args:
        capacity: The bytes that may be in use.
        learns: Whether the peaks of the device are known. Without them, the number of blocks is not limited.
    """

    def __init__(self, capacity: int, *, learns: bool) -> None:
        self._capacity = self._highest = capacity
        self._learns = learns
        self._passes_left = PASSES + 1 if learns else 0
        self._base = self._room = self._excess = 0
        self._moments: list[tuple[int, int]] = []
        """Between each two saves or fetches: the most bytes if all blocks stay, and those beside the ones that do."""
        self._learned: list[tuple[int, int]] = []
        """The moments of earlier passes."""
        self._largest = self._largest_of_pass = 0
        self._saved: int | None = 0
        """The number of blocks that had been saved when backward began; None in forward."""
        self._alive = self._held = 0

    @property
    def learning(self) -> bool:
        """True in a pass of which the peaks are wanted."""
        return self._passes_left > 0

    @property
    def limit(self) -> int:
        """The bytes of saved blocks that may stay on the device."""
        if not self._learns:
            return NO_LIMIT
        return 0 if self._passes_left > PASSES - BARE_PASSES else max(0, self._room - self._excess)

    def note_peak(self, peak: int, left: int = 0) -> None:
        """Take the most bytes in use since the last save or fetch into account; unless it learns, since any time.

        Of blocks that do not stay, `left` bytes are still in use by other owners.
        """
        if self.learning:
            need = peak - self._base - self._held
            self._moments.append((self._alive - left + need, need))
        else:
            self._excess += max(0, peak - self._highest)
        self._highest = max(self._capacity, peak)

    def note_blocks(self, alive: int, held: int) -> None:
        """Take the bytes of all blocks, and of those on the device, after a save or fetch into account."""
        self._alive, self._held = alive, held

    def note_block(self, nbytes: int) -> None:
        """Take the size of a new block into account."""
        self._largest_of_pass = max(self._largest_of_pass, nbytes)
        if self._learns and nbytes > self._largest:
            self._largest, self._passes_left, self._excess = nbytes, max(self._passes_left, PASSES), 0

    def note_backward(self, saved: int) -> None:
        """Note that backward goes on, after `saved` blocks in all."""
        if self._saved is None:
            self._saved = saved

    def is_over(self, oldest: int) -> bool:
        """Return True if a pass is over; `oldest` is the number of the oldest block that is alive."""
        return self._saved is not None and oldest >= self._saved

    def begin(self, base: int, peak: int) -> None:
        """Begin a pass, when `base` bytes are in use beside the blocks, after a peak that is of no pass."""
        if self.learning:
            self._passes_left -= 1
            # A pass over smaller tensors than others had needs less.
            up, down = self._largest, max(self._largest_of_pass, 1)
            scaled = [(total * up // down, need * up // down) for total, need in self._moments]
            self._learned = scaled if self._passes_left else [*self._learned, *scaled]
        self._room = self._find_room(self._capacity - base)
        self._highest = max(self._capacity, peak)
        self._base, self._largest_of_pass, self._saved = base, 0, None
        self._moments.clear()

    def _find_room(self, free: int) -> int:
        """Return the bytes of blocks that may stay: all, unless that is too much at some moment."""
        tight = [need for total, need in self._learned if total > free]
        totals, needs = zip(*self._learned, strict=True) if self._learned else ((0,), (0,))
        return free - max(tight) if tight else max(*totals, free - max(needs))


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
