"""Mappings that mpibind published for five machines, beside ddlrun's, with the reason for each difference.

The mappings are those of mpibind's test suite (test-suite/expected), of its Python README (Pascal, 4 tasks), and of
its tutorials (Pascal, 2 tasks; Tioga), by OS index. `python -m tests.machines.mpibind` prints a table.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddlrun.machine import Machine
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.mapping.local_ranks import place_local_ranks
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.ranges import parse_ranges, render_ranges
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc

SPREAD = PlacementPolicy(packing="spread")
SHARED = PlacementPolicy(share_gpus=True)
PLAIN = PlacementPolicy()
OPTIONS = {SPREAD: " `--packing spread`", SHARED: " `--share-gpus`", PLAIN: ""}

FIRST_GPUS = (
    "ddlrun takes the first GPUs, 0 and 1, as `set_device(local_rank)` does; they are on one package. mpibind gives "
    "each task two GPUs"
)
GPU_NODES_ALONE = "mpibind uses the nodes with GPUs alone and leaves the others idle; ddlrun divides these too"


class Mapping(NamedTuple):
    """A published mapping: the CPUs of each task, and why ddlrun's cores differ (empty: they are the same)."""

    title: str
    machine: str
    policy: PlacementPolicy
    cpus: Sequence[str]
    reason: str = ""


def _singles(cpus: str) -> list[str]:
    return [str(cpu) for cpu in sorted(parse_ranges(cpus))]


MAPPINGS = (
    Mapping("Minsky", "minsky", PLAIN, ["0-72:8", "80-152:8"], FIRST_GPUS),
    Mapping("Minsky", "minsky", SPREAD, ["0-72:8", "80-152:8"]),
    Mapping("Minsky", "minsky", PLAIN, _singles("0-152:8")),
    Mapping("Lassen", "power9-lassen", PLAIN, ["8-84:4", "96-172:4"], FIRST_GPUS),
    Mapping("Lassen", "power9-lassen", SPREAD, ["8-84:4", "96-172:4"]),
    Mapping("Lassen", "power9-lassen", PLAIN, _singles("8-84:4,96-172:4")),
    Mapping("Pascal", "pascal", PLAIN, ["0-8", "9-17"]),
    Mapping("Pascal", "pascal", SHARED, ["0-4", "5-9", "10-13", "14-17"]),
    Mapping(
        "Pascal", "pascal", PLAIN, ["0-4", "5-9", "10-13", "14-17"],
        "4 ranks have no GPU of their own without `--share-gpus`, so that ddlrun divides both packages",
    ),
    Mapping("Corona", "corona-4-gpus", SPREAD, ["0-23,48-71", "24-47,72-95"]),
    Mapping(
        "Corona", "corona-4-gpus", PLAIN,
        ["0-11,48-59", "12-17,60-65", "18-23,66-71", "24-29,72-77", "30-35,78-83", "36-41,84-89", "42-47,90-95"],
        "7 ranks on 8 nodes: mpibind gives the node left over to task 0, ddlrun to a rank of the package with 3 ranks",
    ),
    Mapping("Corona", "corona-4-gpus", PLAIN, ["0-5", "6-11", "12-17", "18-23", "24-29", "30-35", "36-41", "42-47"]),
    Mapping(
        "Corona", "corona-4-gpus", SHARED, ["6-8", "9-11", "12-14", "15-17", "30-32", "33-35", "42-44", "45-47"],
        GPU_NODES_ALONE,
    ),
    Mapping("Tioga", "tioga", SPREAD, ["0-15", "16-31", "32-47", "48-63"],
            "The same shares in another order: local rank x has GPU x, which is on node 3, 1, 0, 2"),
    Mapping(
        "Tioga", "tioga", PLAIN, ["0-15", "16-31", "32-47", "48-63"],
        "ddlrun takes GPUs 0 to 3, which are on nodes 3 and 1: half of the GPU's node and half of the one beside it",
    ),
)  # fmt: skip


def machine_of(mapping: Mapping) -> Machine:
    return parse_hwloc(render_hwloc(load(mapping.machine)), mapping.machine)


def their_cores(mapping: Mapping) -> list[str]:
    """Return the logical indexes of the cores of each task."""
    core_of = {pu.os_index: core.logical_index for core in machine_of(mapping).cores for pu in core.pus}
    return [render_ranges({core_of[cpu] for cpu in parse_ranges(cpus)}) for cpus in mapping.cpus]


def our_cores(mapping: Mapping) -> list[str]:
    placed = place_local_ranks(machine_of(mapping), len(mapping.cpus), mapping.policy)
    return [render_ranges(core.logical_index for core in local_rank.cores) for local_rank in placed]


def row(mapping: Mapping) -> str:
    """Return a row of the table."""
    theirs, ours = (_shortened(cores) for cores in (their_cores(mapping), our_cores(mapping)))
    result = mapping.reason or "same"
    return f"| {mapping.title}, {len(mapping.cpus)}{OPTIONS[mapping.policy]} | {theirs} | {ours} | {result} |"


def _shortened(cores: Sequence[str]) -> str:
    return " / ".join(cores if len(cores) <= 8 else [*cores[:2], "...", cores[-1]])


HEAD = "| machine, ranks | mpibind | ddlrun | reason |\n|---|---|---|---|"

if __name__ == "__main__":
    print(HEAD, *map(row, MAPPINGS), sep="\n")
