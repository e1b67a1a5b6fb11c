"""python -m ddlrun.measure racks: a rank of the measuring job."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.measure.levels import Found, Pair, find_levels
from ddlrun.measure.traffic import Traffic


def say(what: str, found: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps({what: found}) + "\n")
    sys.stdout.flush()


def racks(comm: MPI.Intracomm) -> None:
    """Find the hierarchy; rank i is host i."""
    traffic = Traffic(comm)
    if comm.rank:
        traffic.serve()
        return
    start, rounds = time.perf_counter(), 0

    def measure(pairs: Sequence[Pair]) -> list[float]:
        nonlocal rounds
        rounds += 1
        say("progress", [f"round {rounds}: {len(pairs)} pairs at once", None])
        return traffic(pairs)

    traffic.warm_up()
    found = find_levels(comm.size, measure)
    traffic.end()
    say("result", told(found, traffic, time.perf_counter() - start))


def told(found: Found, traffic: Traffic, seconds: float) -> dict[str, Any]:
    """Return what was found as JSON can carry it; latencies of pairs inside of the first level's groups and across."""
    groups = found.levels[0].groups if found.levels else ()
    place = {host: number for number, group in enumerate(groups) for host in group}
    near = [late for (one, other), late in traffic.latencies.items() if not groups or place[one] == place[other]]
    far = [late for (one, other), late in traffic.latencies.items() if groups and place[one] != place[other]]
    return {
        "levels": [level._asdict() for level in found.levels],
        "rounds": found.rounds,
        "seconds": seconds,
        "latency": [float(np.median(some)) if some else None for some in (near, far)],
    }


if __name__ == "__main__":
    {"racks": racks}[sys.argv[1]](MPI.COMM_WORLD)
