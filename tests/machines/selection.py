"""The machines of a test: one of each kind in every run, the others only in `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest

VARIED = frozenset(
    "ac922-22-cores cpuset-7-of-8-packages cpuset-reorders-packages dgx2-cpuset every-cpu-in-every-node "
    "hybrid-laptop interleaved-4x10 knl-snc4 minsky near-packages offline-cpu0 offline-threads power9-lassen "
    "s390-books sparse-numa tioga xeon-4x8".split()
)


def others_extra(names: Iterable[str]) -> list[Any]:
    """Return parameters, of which those outside VARIED are marked `extra`."""
    return [name if name in VARIED else pytest.param(name, marks=pytest.mark.extra) for name in names]
