"""Machines that the tests place ranks on, each with the hwloc topology that a real mpirun is shown."""

import subprocess
from pathlib import Path

from ddlrun.hosts import Host, HostList
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.placement import Placement, PlacementPolicy, place
from ddlrun.topology import RankOrder, parse_topology

DEFAULT = PlacementPolicy()

# Name -> (our description, hwloc's synthetic notation, PUs that are left of it or "" for all).
MACHINES = {
    "minsky": ("{packages: 2, cores_per_package: 10, smt: 8, gpus: [0, 0, 1, 1]}", "pack:2 core:10 pu:8", ""),
    "2x22": ("{packages: 2, cores_per_package: 22, smt: 4}", "pack:2 core:22 pu:4", ""),
    "1x2": ("{packages: 1, cores_per_package: 2}", "pack:1 core:2 pu:1", ""),
    "4x6": ("{packages: 4, cores_per_package: 6, smt: 2}", "pack:4 core:6 pu:2", ""),
    "8+10": ("{packages: [8, 10]}", "pack:2 core:10 pu:1", "0-7,10-19"),
    "3+5+4": ("{packages: [3, 5, 4], smt: 2}", "pack:3 core:5 pu:2", "0-5,10-27"),
}


def machine(name: str) -> Machine:
    return parse_machine(MACHINES[name][0], name)


def hwloc_topology(name: str, folder: Path) -> str:
    """Return what the oracle takes: synthetic notation, or the file of a machine with cores taken away."""
    _, synthetic, left = MACHINES[name]
    if not left:
        return synthetic
    pus: set[int] = set()
    for part in left.split(","):
        low, _, high = part.partition("-")
        pus.update(range(int(low), int(high) + 1))
    path = folder / "machine.xml"
    mask = hex(sum(1 << pu for pu in pus))
    subprocess.run(["lstopo", "-i", synthetic, "--restrict", mask, "--of", "xml", "-f", str(path)], check=True)
    return str(path)


def as_hwloc2(path: Path, folder: Path) -> Path:
    """Return an XML file that lstopo 2 reads: hwloc 3 names its format otherwise, and changed nothing that we need."""
    copy = folder / path.name
    text = path.read_text(errors="replace")
    copy.write_text(text.replace('<topology version="3.0">', '<topology version="2.0">', 1))
    return copy


def placement(
    topology: str,
    hosts: list[str],
    described: Machine,
    order: RankOrder = RankOrder.DDL,
    policy: PlacementPolicy = DEFAULT,
) -> Placement:
    listed = HostList(tuple(map(Host, hosts)), "test")
    return place(parse_topology(topology), listed, dict.fromkeys(hosts, described), order, policy)


def seats_by_package(placed: Placement) -> dict[int, tuple[str, dict[int, tuple[int, ...]]]]:
    """Return the placement as the oracle says it: rank -> (host, {package: cores inside it})."""
    found = {}
    for rank in placed.by_host():
        cores: dict[int, tuple[int, ...]] = {}
        for core in rank.seat.cores:
            cores[core.package] = (*cores.get(core.package, ()), core.index_in_package)
        found[rank.rank] = (rank.host.name, cores)
    return found
