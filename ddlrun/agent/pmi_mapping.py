"""The hosts of ranks as MPI libraries read them: the value of PMI_process_mapping."""

from __future__ import annotations

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


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
