"""CPUs that the ranks of other users have on a host, as their keepers announce them (keeper/kept_rank.py)."""

import re

from ddlrun.ranges import parse_ranges

# A POSIX sh command, which runs before SCRIPT of sysfs_script.py.
SCRIPT = "grep -ahos -e '@ddlrun-cpus/[0-9/,-]*' -e '^Uid:[[:space:]]*[0-9]*' /proc/net/unix /proc/self/status\n"
# All lines of its output.
LINES = r"(?m)^(@ddlrun-cpus/|Uid:).*\n?"


def parse_announced_cpus(text: str) -> frozenset[int]:
    r"""Return the CPUs that the ranks of other users have, from the output of SCRIPT.

    >>> sorted(parse_announced_cpus("@ddlrun-cpus/1000/71/0-1\n@ddlrun-cpus/7/72/3\n@ddlrun-cpus/7/1/2-1\nUid:\t1000"))
    [3]
    """
    own = re.search(r"(?m)^Uid:\s*(\d+)$", text)
    cpus = set[int]()
    for user, listed in re.findall(r"(?m)^@ddlrun-cpus/(\d+)/\d+/(\d{1,4}(?:[,-]\d{1,4})*)$", text):
        if own is not None and user != own[1]:
            try:
                cpus |= parse_ranges(listed)
            except ValueError:  # any program can have a socket with such a name
                continue
    return frozenset(cpus)
