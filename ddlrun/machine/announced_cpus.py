"""CPUs that the ranks of other users have on a host, as their keepers announce them (keeper/kept_rank.py)."""

import re

from ddlrun.machine.sysfs_script import probe_script
from ddlrun.ranges import parse_ranges

# The script of sysfs_script.py, which prints these CPUs too.
SCRIPT = probe_script("-e '@ddlrun-cpus/[0-9/,-]*' -e '^Uid:[[:space:]]*[0-9]*' /proc/net/unix")
# The lines that it adds.
LINES = r"(?m)^/proc/(net/unix:@ddlrun-cpus/|self/status:Uid:).*\n?"


def parse_announced_cpus(text: str) -> frozenset[int]:
    r"""Return the CPUs that the ranks of other users have, from the output of SCRIPT.

    >>> announced = "\n".join(f"/proc/net/unix:@ddlrun-cpus/{name}" for name in ("1000/71/0-1", "7/72/3", "7/1/2-1"))
    >>> sorted(parse_announced_cpus(f"{announced}\n/proc/self/status:Uid:\t1000"))
    [3]
    """
    own = re.search(r"(?m)^/proc/self/status:Uid:\s*(\d+)$", text)
    cpus = set[int]()
    for user, listed in re.findall(r"(?m)^/proc/net/unix:@ddlrun-cpus/(\d+)/\d+/(\d{1,4}(?:[,-]\d{1,4})*)$", text):
        if own is not None and user != own[1]:
            try:
                cpus |= parse_ranges(listed)
            except ValueError:  # any program can have a socket with such a name
                continue
    return frozenset(cpus)
