"""The key-value space of a job, through which MPI libraries exchange their addresses (PMI-1)."""

from __future__ import annotations

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Dict  # noqa: UP035 - the agent runs with Python 3.8

    Words = Dict[bytes, bytes]  # noqa: UP006
    """The words of a request."""

# The limits that MPICH's own process manager reports: clients may have buffers of these sizes.
LONGEST_NAME = 256
LONGEST_KEY = 64
LONGEST_VALUE = 1024

MAPPING = b"PMI_process_mapping"
MOST_PUT = 1 << 22
"""The number of bytes that one rank may put between two barriers."""
VERSION = b"1"
NOT_FOUND = b"get_result rc=-1 msg=not_found value=unknown"
FOUND = b"get_result rc=0 msg=success value="
PUT = b"put_result rc=0 msg=success"


class KeyValues:
    """The values that a host knows, and the replies that follow from them."""

    def __init__(self, name: str, size: int, mapping: str) -> None:
        """Create a space.

        Args:
            name: A name of at most 255 bytes. No other job, and no other attempt of this one, has it: MPICH names its
                shared memory after it, and would use that of a job that was killed.
            size: The number of ranks of the job.
            mapping: The value of `process_mapping`.
        """
        self._name = name.encode()
        self._usual_get = b"cmd=get kvsname=%s key=" % self._name
        self._values: dict[bytes, bytes] = {}
        # Without it, MPI libraries compare the names of hosts.
        if mapping and len(mapping) < LONGEST_VALUE:
            self._values[MAPPING] = mapping.encode()
        self._put: list[bytes] = []
        self._put_bytes: dict[int, int] = {}
        limits = (LONGEST_NAME, LONGEST_KEY, LONGEST_VALUE)
        self._fixed = {
            b"get_maxes": b"maxes rc=0 kvsname_max=%d keylen_max=%d vallen_max=%d" % limits,
            b"get_appnum": b"appnum rc=0 appnum=0",
            b"get_universe_size": b"universe_size rc=0 size=%d" % size,
            b"get_my_kvsname": b"my_kvsname rc=0 kvsname=" + self._name,
            b"finalize": b"finalize_ack rc=0",
            b"publish_name": b"publish_result rc=-1 msg=not_supported",
            b"unpublish_name": b"unpublish_result rc=-1 msg=not_supported",
            b"lookup_name": b"lookup_result rc=-1 msg=not_supported",
        }

    def reply(self, rank: int, words: Words) -> bytes:
        """Return the reply to a request that changes nothing but values."""
        command = words.get(b"cmd", b"")
        if command == b"get":
            return self._get(words)
        if command == b"put":
            return self._put_value(rank, words)
        if command == b"init":
            code = 0 if words.get(b"pmi_version") == VERSION else -1
            return b"response_to_init rc=%d pmi_version=%s pmi_subversion=1" % (code, VERSION)
        return self._fixed.get(command) or command[:LONGEST_KEY] + b" rc=-1 msg=unknown_command"

    def usual_reply(self, line: bytes) -> bytes | None:
        """Return the reply to a request for a known value as MPI libraries write it; None for other requests."""
        if not line.startswith(self._usual_get):
            return None
        value = self._values.get(line[len(self._usual_get) :])
        return FOUND + value if value else None

    def take_put(self) -> bytes:
        """Return the values that ranks of this host have put since the last call."""
        put = b"".join(self._put)
        self._put.clear()
        self._put_bytes.clear()
        return put

    def add(self, put: bytes) -> None:
        """Add the values that `take_put` has returned on some hosts."""
        for line in put.split(b"\n"):
            key, _, value = line.partition(b" ")
            self._values[key] = value

    def _get(self, words: Words) -> bytes:
        value = self._values.get(words.get(b"key", b""))
        if not value or words.get(b"kvsname") != self._name:
            return NOT_FOUND
        return FOUND + value

    def _put_value(self, rank: int, words: Words) -> bytes:
        key, value = words.get(b"key", b""), words.get(b"value", b"")
        if words.get(b"kvsname") != self._name:
            return b"put_result rc=-1 msg=unknown_kvsname"
        if not (0 < len(key) <= LONGEST_KEY and 0 < len(value) <= LONGEST_VALUE):
            return b"put_result rc=-1 msg=invalid_length"
        total = self._put_bytes.get(rank, 0) + len(key) + len(value)
        if total > MOST_PUT:
            return b"put_result rc=-1 msg=too_many_values"
        self._put_bytes[rank] = total
        self._values[key] = value
        self._put.append(key + b" " + value + b"\n")
        return PUT


def process_mapping(hosts: Sequence[int]) -> str:
    """Return the text from which an MPI library learns which ranks share memory.

    It is a list of blocks (HOST,HOSTS,RANKS): this many hosts, beginning with HOST, have this many ranks each. Ranks
    are numbered through all blocks. Hosts are numbered by their first rank. The list is never shorter than the job:
    MPICH would repeat it, but Intel MPI would not.

    >>> process_mapping([0, 0, 1, 1]), process_mapping([0, 1, 0, 1]), process_mapping([5, 5, 2])
    ('(vector,(0,2,2))', '(vector,(0,2,1),(0,2,1))', '(vector,(0,1,2),(1,1,1))')

    Args:
        hosts: The number of the host of each rank.
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    blocks: list[list[int]] = []
    for host, ranks in itertools.groupby(numbers[host] for host in hosts):
        count = len(list(ranks))
        if blocks and blocks[-1][2] == count and sum(blocks[-1][:2]) == host:
            blocks[-1][1] += 1
        else:
            blocks.append([host, 1, count])
    return "(vector,{})".format(",".join(f"({first},{number},{count})" for first, number, count in blocks))
