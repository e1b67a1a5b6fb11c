"""python -m ddlrun.measure racks, or bench, tune or horovod PLAN: a rank of the measuring job."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST
from ddlrun.measure.collectives import Collectives, bus_bandwidth, least_seconds
from ddlrun.measure.fusion import tune_horovod
from ddlrun.measure.hierarchy import HierarchyResult, find_levels
from ddlrun.measure.links import fabric_of, measure_links
from ddlrun.measure.pair_rates import Pair
from ddlrun.measure.timing import Cell, Timer, cells_of
from ddlrun.measure.traffic import Traffic
from ddlrun.measure.tuning import StepBenchmark, TuningSearch, found_dict
from ddlrun.network.candidates import TuningSpace, usual
from ddlrun.network.fabric import parse_fabric, render_fabric
from ddlrun.network.forecast import wiring_of
from ddlrun.topology import Topology, parse_topology
from ddlrun.units import render_bytes, render_seconds, render_size

# What a rank has of an array at most, with the results of collectives and MPI's own.
COPIES = 4
# So much faster may a pair across racks be than one inside, by chance.
FASTER = 1.3


def say(what: str, found: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps({what: found}) + "\n")
    sys.stdout.flush()


def shower(comm: MPI.Intracomm) -> Callable[[str, float], None]:
    """Return what tells how far all are; one rank does."""
    return lambda words, share: say("progress", [words, share]) if comm.rank == 0 else None


def racks(comm: MPI.Intracomm) -> None:
    """Find the hierarchy; rank i is host i."""
    traffic = Traffic(comm)
    if comm.rank:
        traffic.serve()
        return
    start, rates = time.perf_counter(), list[list[float]]()
    likely = max(24, 2 * min(comm.size, 64))

    def measure(pairs: Sequence[Pair]) -> list[float]:
        say("progress", [f"round {len(rates) + 1}: {len(pairs)} pairs at once", min(len(rates) / likely, 0.99)])
        rates.append(traffic(pairs))
        return rates[-1]

    traffic.warm_up([(host, host + 1) for host in range(0, comm.size - 1, 2)])
    found = find_levels(comm.size, measure)
    traffic.end()
    usually = float(np.median(np.concatenate(rates)))
    say("result", told(found, traffic, time.perf_counter() - start) | {"rate": usually})


def told(found: HierarchyResult, traffic: Traffic, seconds: float) -> dict[str, Any]:
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


def links_of(comm: MPI.Intracomm, topology: Topology, racks: Sequence[int]) -> dict[str, dict[str, float]]:
    """Measure the links; all ranks get what was found."""
    traffic = Traffic(comm)
    links: dict[str, dict[str, float]] = {}
    if comm.rank == 0:
        say("progress", ["links", None])
        links = measure_links(traffic, topology, racks)
        traffic.end()
    else:
        traffic.serve()
    return dict(comm.bcast(links))


def bench(comm: MPI.Intracomm) -> None:
    """Time links, then collectives.

    The plan is JSON: {"budget": seconds, "sizes": [bytes, ...], "modes": "rp", "racks": each host's by number, or []}.
    """
    plan = json.loads(sys.argv[2])
    start = time.perf_counter()
    if alone(comm):
        return
    collectives = Collectives(comm, plan["modes"], os.environ)
    topology = collectives.topology
    links = links_of(comm, topology, plan["racks"])
    fabric = fabric_of(links, topology, "ddlrun bench", plan["racks"])
    left = max(plan["budget"] - (time.perf_counter() - start), 0.0)

    def show(cell: Cell, share: float) -> None:
        shower(comm)(f"{cell.collective} {cell.algorithm} {render_size(cell.size)}", share)

    def least(collective: str, size: int) -> float:
        return least_seconds(collective, size, topology, fabric)

    room = comm.allreduce(memory() / COPIES / ranks_here(comm), MPI.MIN)
    cells = [cell for cell in cells_of(collectives, plan["sizes"]) if cell.size < room]
    found, left_out = Timer(comm, collectives, left, least).run(cells, show)
    left_out += [cell for cell in cells_of(collectives, plan["sizes"]) if cell.size >= room]
    for one in found:
        # Of one host the link is its memory, and what that carries depends on what is in its caches.
        limit = least(one["collective"], one["bytes"]) if topology.hosts > 1 else 0.0
        one |= {
            "algbw": one["bytes"] / one["seconds"],
            "busbw": bus_bandwidth(one["collective"], one["bytes"], one["seconds"], comm.size),
            "share": limit / one["seconds"] if limit else None,
        }
    collectives.free()
    if comm.rank == 0:
        told = {"topology": str(topology), "links": links, "network": render_fabric(fabric), "measured": found}
        more = {"left_out": left_out, "odd": odd(links), "seconds": time.perf_counter() - start}
        say("result", told | more)


def odd(links: dict[str, dict[str, float]]) -> str:
    """Say what cannot be where racks are as they were said."""
    inside, across = (links[level]["alone"] if level in links else 0.0 for level in ("nic", "uplink"))
    if not inside or across < FASTER * inside:
        return ""
    return (
        f"a pair across racks reaches {across / inside:.2g} times what one inside of a rack does: are the racks as "
        "they were said? ddlrun racks finds them"
    )


def alone(comm: MPI.Intracomm) -> bool:
    """Tell whether there is one rank alone, and say what is to be done."""
    if comm.size == 1:
        say("result", {"problem": "one rank has nobody to talk to; name hosts, or say --accelerators core"})
    return comm.size == 1


def ranks_here(comm: MPI.Intracomm) -> int:
    """Return how many ranks this host has."""
    return int(comm.Split_type(MPI.COMM_TYPE_SHARED).size)


def memory() -> int:
    """Return the bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tune(comm: MPI.Intracomm) -> None:
    """Look for the best way to average a step's gradients.

    The plan is JSON: {"budget": seconds, "gradient": bytes, "lead": seconds of the backward pass that gradients can
    hide in, "links": YAML or "" to measure them, "racks": as for bench, "exhaustive": whether to measure everything}.
    """
    plan = json.loads(sys.argv[2])
    start = time.perf_counter()
    if alone(comm):
        return
    needed, there = plan["gradient"] * ranks_here(comm), memory()
    problem = "" if needed < there else f"{render_bytes(needed)} of gradients on a host of {render_bytes(there)}"
    problem = comm.allreduce(problem, MPI.MAX)
    if problem:
        say("result", {"problem": problem}) if comm.rank == 0 else None
        return
    topology = parse_topology(os.environ["DDLRUN_TOPOLOGY"])
    racks = plan["racks"]
    links = {} if plan["links"] else links_of(comm, topology, racks)
    fabric = parse_fabric(plan["links"], "") if plan["links"] else fabric_of(links, topology, "ddlrun tune", racks)
    space = TuningSpace(topology, wiring_of(topology, fabric), fabric, plan["gradient"])
    plain = usual(topology, ONE_HOST if topology.hosts == 1 else BETWEEN_HOSTS)
    expected = space.expected(plain)
    if expected > plan["budget"] and not plan["exhaustive"]:
        words = f"plan expects {render_seconds(expected)} for one step; give a longer --budget or a smaller --gradient"
        say("result", {"problem": words}) if comm.rank == 0 else None
        return
    left = float(comm.bcast(plan["budget"] - (time.perf_counter() - start)))
    step = StepBenchmark(comm, plan["gradient"], plan["lead"], os.environ)
    search = TuningSearch(comm, step, max(left, 1e-3), shower(comm))
    found = search.run_all(plain, space) if plan["exhaustive"] else search.run(plain, space)
    step.free()
    if comm.rank == 0:
        told = found_dict(found, space) | {"links": links, "major": MPI.get_vendor()[1][0]}
        usually = found.seen[plain]
        say("result", told | {"topology": str(topology), "usual": float(np.median(usually)),
                              "seconds": time.perf_counter() - start})  # fmt: skip


def horovod(comm: MPI.Intracomm) -> None:
    """Look for the best settings of Horovod; the plan is JSON: {"budget": seconds, "gradient": bytes}."""
    plan = json.loads(sys.argv[2])
    found = tune_horovod(comm, plan["gradient"], plan["budget"], shower(comm))
    if comm.rank == 0:
        say("result", found)


if __name__ == "__main__":
    {"racks": racks, "bench": bench, "tune": tune, "horovod": horovod}[sys.argv[1]](MPI.COMM_WORLD)
