"""NCCL's communicators as its RAS threads know them: see keeper/stacks/ras.py."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class LateRank(NamedTuple):
    """A rank of a communicator that differs."""

    pid: int
    operation: str = ""
    """Of which others have begun more; empty: NCCL has no reply from the rank."""
    begun: int = 0
    most: int = 0
    """The numbers of operations that it, and those that are ahead, have begun."""


class NcclCommunicator(NamedTuple):
    """A communicator, and the ranks that differ."""

    hash: str
    size: int
    """The number of its ranks; 0: not known."""
    late: tuple[LateRank, ...]


def parse_communicator(record: Mapping[str, Any]) -> NcclCommunicator:
    """Return the communicator of a keeper's record; LookupError and others are raised if it cannot be read."""
    late = [LateRank(int(pid)) for _, pid in record["missing"]]
    for name, operations in record["behind"].items():
        most = int(operations["most"])
        late += [LateRank(int(pid), str(name), int(count), most) for _, count, pid in operations["ranks"]]
    return NcclCommunicator(str(record["hash"]), int(record["size"]), tuple(late))
