"""python -m ddlrun.measure racks, or bench PLAN: a rank of the measuring job."""

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.measure.collectives import Collectives, bus_bandwidth, least_seconds
from ddlrun.measure.levels import Found, find_levels
from ddlrun.measure.links import fabric_of, measure_links
from ddlrun.measure.meetings import Pair
from ddlrun.measure.timing import Cell, Timer, cells_of
from ddlrun.measure.traffic import Traffic
from ddlrun.network.fabric import render_fabric
from ddlrun.network.quantities import shown_bytes


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

    traffic.warm_up([(host, host + 1) for host in range(0, comm.size - 1, 2)])
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


def bench(comm: MPI.Intracomm) -> None:
    """Time links, then collectives; the plan is JSON: {"budget": seconds, "sizes": [bytes, ...], "modes": "rp"}."""
    plan = json.loads(sys.argv[2])
    speaks = comm.rank == 0
    start = time.perf_counter()
    collectives = Collectives(comm, plan["modes"], os.environ)
    topology = collectives.topology
    traffic = Traffic(comm)
    links: dict[str, dict[str, float]] = {}
    if speaks:
        say("progress", ["links", None])
        links = measure_links(traffic, topology)
        traffic.end()
    else:
        traffic.serve()
    links = comm.bcast(links)
    fabric = fabric_of(links, topology, "ddlrun bench")
    left = max(plan["budget"] - (time.perf_counter() - start), 0.0)

    def show(cell: Cell, share: float) -> None:
        if speaks:
            say("progress", [f"{cell.collective} {cell.algorithm} {shown_bytes(cell.size)}", share])

    def least(collective: str, size: int) -> float:
        return least_seconds(collective, size, topology, fabric)

    found, left_out = Timer(comm, collectives, left, least).run(cells_of(collectives, plan["sizes"]), show)
    for one in found:
        # Of one host the link is its memory, and what that carries depends on what is in its caches.
        limit = least(one["collective"], one["bytes"]) if topology.hosts > 1 else 0.0
        one |= {
            "algbw": one["bytes"] / one["seconds"],
            "busbw": bus_bandwidth(one["collective"], one["bytes"], one["seconds"], comm.size),
            "share": limit / one["seconds"] if limit else None,
        }
    collectives.free()
    if speaks:
        told = {"topology": str(topology), "links": links, "network": render_fabric(fabric), "measured": found}
        say("result", told | {"left_out": left_out, "seconds": time.perf_counter() - start})


if __name__ == "__main__":
    {"racks": racks, "bench": bench}[sys.argv[1]](MPI.COMM_WORLD)
