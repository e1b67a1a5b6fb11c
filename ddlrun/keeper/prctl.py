"""prctl(2): the settings of a Linux process that tie its life to its parent's."""

from __future__ import annotations

import _ctypes  # once per host, before keepers are forked; ctypes itself takes 3 ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61


def load_prctl() -> Callable[[int, int], object]:
    """Return prctl as a function of an option and its argument; without effect if the system has none."""
    try:
        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    except OSError:
        return lambda _option, _argument: None
    return lambda option, argument: _ctypes.call_function(address, (option, int(argument), 0, 0, 0))
