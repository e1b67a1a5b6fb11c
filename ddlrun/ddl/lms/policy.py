"""What leaves the device, and what comes back when: numbers in, numbers out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZE_KB = 1024  # what IBM's PyTorch began with, too


class MemoryLoad(NamedTuple):
    """How full a device is, in bytes: taken, there in all, taken but leaving, brought back ahead of its use."""

    used: int
    capacity: int
    leaving: int = 0
    ahead: int = 0


class Policy(NamedTuple):
    """When saved tensors go and come.

    `size`: bytes of the smallest memory that goes, 0: none does. `frac`: the share of the device that must be taken
    first. `window`: the share of the device that may be on its way, out or back. `full`: above this share nothing is
    brought back ahead, and what leaves is waited for.
    """

    size: int = SIZE_KB * 1024
    frac: float = 0.7
    window: float = 0.05
    full: float = 0.9

    def excess(self, load: MemoryLoad) -> int:
        """Return the bytes that should begin to leave now."""
        return max(0, load.used - load.leaving - int(self.frac * load.capacity))

    def must_wait(self, load: MemoryLoad, newest: int) -> bool:
        """Tell whether so much is leaving that the next computation has to wait for the oldest of it.

        `newest`: the bytes that began to leave last. They may exceed the window alone, or nothing would overlap.
        """
        return load.leaving > 0 and (
            load.leaving - newest > self.window * load.capacity or load.used > max(self.full, self.frac) * load.capacity
        )

    def over_full(self, load: MemoryLoad) -> int:
        """Return the bytes that are taken above `full`."""
        return max(0, load.used - load.leaving - int(self.full * load.capacity))

    def may_come(self, nbytes: int, load: MemoryLoad) -> bool:
        """Tell whether memory of that size may come back ahead of its use; one that exceeds the window comes alone."""
        near = load.ahead == 0 or load.ahead + nbytes <= self.window * load.capacity
        return near and load.used + nbytes <= self.full * load.capacity


def read_policy(size_kb: float | None, frac: float | None, window: float | None, environ: Mapping[str, str]) -> Policy:
    """Return what a script asks for, else the launcher (DDLRUN_LMS, DDLRUN_LMS_FRAC), else the defaults.

    A size of 0 KB or less switches off. Raises InputError on what is no number, or no share from 0 to 1.

    >>> read_policy(None, 0.5, None, {"DDLRUN_LMS": "1000"})
    Policy(size=1024000, frac=0.5, window=0.05, full=0.9)
    """
    default = Policy()
    kilobytes = _number(size_kb, "size_kb", "DDLRUN_LMS", environ, SIZE_KB)
    shares = {
        "frac": _number(frac, "frac", "DDLRUN_LMS_FRAC", environ, default.frac),
        "window": _number(window, "window", "", environ, default.window),
    }
    wrong = [f"{name} {value:g}: a share of the device is wanted, 0 to 1" for name, value in shares.items()
             if not 0 <= value <= 1]  # fmt: skip
    if wrong:
        raise InputError(*(f"lms: {one}" for one in wrong))
    return Policy(max(0, int(kilobytes * 1024)), shares["frac"], shares["window"])


def _number(given: float | None, name: str, variable: str, environ: Mapping[str, str], default: float) -> float:
    text = environ.get(variable, "") if given is None else given
    where = variable if given is None else f"lms: {name}"
    if text == "":
        return default
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) < 1e15:
        raise InputError(f"{where} {text!r} is no number; write one such as {default:g}")
    return number
