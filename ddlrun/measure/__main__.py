"""A rank of the measuring job: python -m ddlrun.measure racks, or bench, tune or horovod PLAN."""

import json
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST
from ddlrun.measure.collectives import Collectives, bus_bandwidth, least_seconds
from ddlrun.measure.hierarchy import HierarchyResult, find_levels
from ddlrun.measure.links import fabric_of, measure_links, measure_nics, with_nics
from ddlrun.measure.messages import progress_of, send, send_result
from ddlrun.measure.pair_rates import Pair
from ddlrun.measure.timing import Cell, Timer, cells_of
from ddlrun.measure.traffic import Traffic
from ddlrun.measure.tuning import StepBenchmark, TuningSearch, result_dict
from ddlrun.network.candidates import TuningSpace, default_candidate
from ddlrun.network.fabric import LEVELS, Fabric, parse_fabric, render_fabric
from ddlrun.network.forecast import wiring_of
from ddlrun.network.measurements import (
    BandwidthRecord,
    BenchResult,
    LinkRates,
    RacksResult,
    TimingRecord,
    TuneResult,
)
from ddlrun.network.unequal_nics import describe_slow_nics
from ddlrun.topology import Topology, UnequalTopology, parse_job_topology, parse_topology
from ddlrun.units import render_bytes, render_seconds, render_size

# Copies of an array in a rank's memory, at most: with the results of collectives and MPI's own buffers.
COPIES = 4
# A pair across racks may by chance be up to this factor faster than one inside.
FASTER = 1.3

Links = dict[str, LinkRates]


def racks(comm: MPI.Intracomm) -> None:
    """Find the hierarchy; rank i is host i."""
    traffic = Traffic(comm)
    if comm.rank:
        traffic.serve()
        return
    start, rates = time.perf_counter(), list[list[float]]()
    likely = max(24, 2 * min(comm.size, 64))

    def measure(pairs: Sequence[Pair]) -> list[float]:
        send("progress", [f"round {len(rates) + 1}: {len(pairs)} pairs at once", min(len(rates) / likely, 0.99)])
        rates.append(traffic(pairs))
        return rates[-1]

    traffic.warm_up([(host, host + 1) for host in range(0, comm.size - 1, 2)])
    hierarchy = find_levels(comm.size, measure)
    traffic.end()
    result: RacksResult = {
        "levels": [
            {
                "groups": level.groups,
                "inside": level.inside,
                "across": level.across,
                "doubts": [(doubt.reason, doubt.hosts) for doubt in level.doubts],
            }
            for level in hierarchy.levels
        ],
        "rounds": hierarchy.rounds,
        "seconds": time.perf_counter() - start,
        "latency": latencies(hierarchy, traffic),
        "rate": float(np.median(np.concatenate(rates))),
    }
    send_result(comm, result)


def latencies(hierarchy: HierarchyResult, traffic: Traffic) -> tuple[float | None, float | None]:
    """Return the median latencies of pairs inside the groups of the first level, and across; None where none met."""
    groups = hierarchy.levels[0].groups if hierarchy.levels else ()
    group_of = {host: number for number, group in enumerate(groups) for host in group}
    inside: list[float] = []
    across: list[float] = []
    for (host, other), latency in traffic.latencies.items():
        same_group = not groups or group_of[host] == group_of[other]
        (inside if same_group else across).append(latency)
    return _median(inside), _median(across)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def links_of(comm: MPI.Intracomm, topology: Topology, rack_numbers: Sequence[int]) -> tuple[Links, tuple[float, ...]]:
    """Measure the links, and the NIC of each host; all ranks get the result."""
    traffic = Traffic(comm)
    links: Links = {}
    nics: tuple[float, ...] = ()
    if comm.rank == 0:
        send("progress", ["links", None])
        links = measure_links(traffic, topology, rack_numbers)
        nics = measure_nics(traffic, topology, rack_numbers)
        traffic.end()
    else:
        traffic.serve()
    links, nics = comm.bcast((links, nics))
    return links, nics


def bench(comm: MPI.Intracomm) -> None:
    """Time links, then collectives.

    The plan is JSON: {"budget": seconds, "sizes": [bytes, ...], "modes": "rp", "racks": the number of each host's rack,
    or []}.
    """
    plan = json.loads(sys.argv[2])
    start = time.perf_counter()
    if cannot_measure(comm):
        return
    collectives = Collectives(comm, plan["modes"], os.environ)
    topology = collectives.topology
    links, nics = links_of(comm, topology, plan["racks"])
    names = comm.allgather(os.uname().nodename)[:: topology.ranks_per_host]
    fabric = with_nics(fabric_of(links, topology, "ddlrun network bench", plan["racks"]), nics, names)
    left = max(plan["budget"] - (time.perf_counter() - start), 0.0)
    report = progress_of(comm)

    def progress(cell: Cell, share: float) -> None:
        report(f"{cell.collective} {cell.algorithm} {render_size(cell.size)}", share)

    def least(collective: str, size: int) -> float:
        return least_seconds(collective, size, topology, fabric)

    room = comm.allreduce(memory() / COPIES / ranks_on_host(comm), MPI.MIN)
    cells = cells_of(collectives, plan["sizes"])
    timer = Timer(comm, collectives, left, least)
    measured, left_out = timer.run([cell for cell in cells if cell.size < room], progress)
    left_out += [cell for cell in cells if cell.size >= room]
    collectives.free()
    result: BenchResult = {
        "topology": str(topology),
        "links": links,
        "network": render_fabric(fabric),
        "measured": [{**row, **bandwidths(row, topology, fabric)} for row in measured],
        "skipped": [(cell.collective, cell.algorithm, cell.size) for cell in left_out],
        "note": "; ".join(filter(None, [odd_racks(links), *slow_nics(fabric)])),
        "seconds": time.perf_counter() - start,
    }
    send_result(comm, result)


def bandwidths(row: TimingRecord, topology: Topology, fabric: Fabric) -> BandwidthRecord:
    """Return nccl-tests' bandwidths of a measurement, and its share of the limit that the links set.

    On a single host there is no share: its link is the memory, whose rate depends on what the caches hold.
    """
    collective, size, seconds = row["collective"], row["bytes"], row["seconds"]
    limit = least_seconds(collective, size, topology, fabric) if topology.hosts > 1 else 0.0
    return {
        "algbw": size / seconds,
        "busbw": bus_bandwidth(collective, size, seconds, topology.size),
        "share": limit / seconds if limit else None,
    }


def odd_racks(links: Links) -> str:
    """Return a note where rates contradict the declared racks; empty otherwise."""
    inside, across = (links[level]["single"] if level in links else 0.0 for level in ("nic", "uplink"))
    if not inside or across < FASTER * inside:
        return ""
    return (
        f"a pair across racks is {across / inside:.2g} times as fast as a pair inside a rack: the declared racks are "
        "probably wrong; ddlrun network racks finds them"
    )


def slow_nics(fabric: Fabric) -> list[str]:
    """Return a sentence for each host whose NIC is slower than most."""
    return describe_slow_nics(dict(fabric.nics), fabric.links[LEVELS.index("nic")].capacity)


def cannot_measure(comm: MPI.Intracomm) -> bool:
    """Return True, after the result that says so, if the job has a single rank, or different numbers on its hosts."""
    topology = parse_job_topology(os.environ["DDLRUN_TOPOLOGY"])
    if comm.size == 1:
        send("result", {"problem": "a single rank has no partner; name hosts, or give --ranks-per-host core"})
    elif isinstance(topology, UnequalTopology):
        words = f"the hosts have different numbers of ranks ({topology}); give them all the same: --ranks-per-host N"
        send_result(comm, {"problem": words})
    return comm.size == 1 or isinstance(topology, UnequalTopology)


def ranks_on_host(comm: MPI.Intracomm) -> int:
    """Return the number of ranks on this host."""
    return int(comm.Split_type(MPI.COMM_TYPE_SHARED).size)


def memory() -> int:
    """Return the bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tune(comm: MPI.Intracomm) -> None:
    """Search for the settings that average a step's gradients fastest.

    The plan is JSON: {"budget": seconds, "gradient": bytes, "lead": seconds of the backward pass during which gradients
    travel, "links": YAML or "" to measure them, "racks": as for bench, "exhaustive": whether to measure everything}.
    """
    plan = json.loads(sys.argv[2])
    start = time.perf_counter()
    if cannot_measure(comm):
        return
    problem = memory_problem(comm, plan["gradient"])
    if problem:
        send_result(comm, {"problem": problem})
        return
    topology = parse_topology(os.environ["DDLRUN_TOPOLOGY"])
    links = {} if plan["links"] else links_of(comm, topology, plan["racks"])[0]
    if plan["links"]:
        fabric = parse_fabric(plan["links"], "")
    else:
        fabric = fabric_of(links, topology, "ddlrun network tune", plan["racks"])
    space = TuningSpace(topology, wiring_of(topology, fabric), fabric, plan["gradient"])
    default = default_candidate(topology, ONE_HOST if topology.hosts == 1 else BETWEEN_HOSTS)
    expected = space.predict(default)
    if expected > plan["budget"] and not plan["exhaustive"]:
        words = f"plan expects {render_seconds(expected)} for one step; give a longer --budget or a smaller --gradient"
        send_result(comm, {"problem": words})
        return
    left = float(comm.bcast(plan["budget"] - (time.perf_counter() - start)))
    step = StepBenchmark(comm, plan["gradient"], plan["lead"], os.environ)
    search = TuningSearch(comm, step, max(left, 1e-3), progress_of(comm))
    best = search.run_all(default, space) if plan["exhaustive"] else search.run(default, space)
    step.free()
    result: TuneResult = {
        **result_dict(best, space),
        "links": links,
        "major": MPI.get_vendor()[1][0],
        "topology": str(topology),
        "default_seconds": float(np.median(best.samples[default])),
        "seconds": time.perf_counter() - start,
    }
    send_result(comm, result)


def memory_problem(comm: MPI.Intracomm, gradient: int) -> str:
    """Return an error where the gradients of all ranks of a host exceed its memory; the same on all ranks."""
    needed, available = gradient * ranks_on_host(comm), memory()
    problem = f"{render_bytes(needed)} of gradients on a host of {render_bytes(available)}"
    return str(comm.allreduce("" if needed < available else problem, MPI.MAX))


def horovod(comm: MPI.Intracomm) -> None:
    """Time a step with the settings of Horovod in the environment; the plan is JSON: {"gradient": bytes}."""
    plan = json.loads(sys.argv[2])
    from ddlrun.measure.fusion import time_horovod  # noqa: PLC0415 - 2 s: torch, and Horovod need not be installed

    send_result(comm, {"seconds": time_horovod(comm, plan["gradient"])})


if __name__ == "__main__":
    {"racks": racks, "bench": bench, "tune": tune, "horovod": horovod}[sys.argv[1]](MPI.COMM_WORLD)
