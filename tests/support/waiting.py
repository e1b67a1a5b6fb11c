"""Waits for events, with a deadline that no machine needs."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 300.0


def wait_until(condition: Callable[[], T], show: Callable[[], object] = str) -> T:
    """Wait until `condition` returns a true value, and return it; at the deadline fail with the value of `show`."""
    begin = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < begin + PATIENCE, show()
        pause(begin)
    return value


def pause(begin: float) -> None:
    """Sleep between two looks, of which many start a process: for a tenth of the time since `begin`, 0.02 to 0.25 s."""
    time.sleep(min(max((time.monotonic() - begin) / 10, 0.02), 0.25))
