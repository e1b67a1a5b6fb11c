"""Waits for events, with a deadline that no machine needs."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 300.0


def wait_until(condition: Callable[[], T], show: Callable[[], object] = str) -> T:
    """Wait until `condition` returns a true value, and return it; at the deadline fail with the value of `show`."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, show()
        time.sleep(0.02)
    return value
