"""One large rank file in a process that does nothing else: `python -m tests.bench.programs.rank_file TOPOLOGY HOSTS`.

Prints JSON: the seconds of rendering alone, and the peak memory of this process from its start. ru_maxrss includes the
memory that the parent had when it started this process, so the parent must be smaller.
"""

import json
import os
import resource
import sys
import time

from ddlrun.hosts import parse_hosts
from ddlrun.machine.preset import simple_machine
from ddlrun.mapping.placement import place
from ddlrun.mapping.rankfile import render
from ddlrun.topology import RankOrder, parse_topology


def main(topology: str, expression: str) -> None:
    hosts = parse_hosts(expression)
    machines = dict.fromkeys(hosts.names, simple_machine(2, 10))
    placement = place(parse_topology(topology), hosts, machines, RankOrder.DDL)
    with open(os.devnull, "w", encoding="utf-8") as null:
        start = time.perf_counter()
        null.writelines(render(placement, "bench"))
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
