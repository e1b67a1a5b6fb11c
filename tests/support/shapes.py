"""Machines of the tests, each with the hwloc topology for a real mpirun, and placements on them."""

import subprocess
from pathlib import Path

from ddlrun.hosts import Host, HostList
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.placement import Placement, place
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.topology import RankOrder, parse_topology

DEFAULT = PlacementPolicy()

# Name -> (ddlrun's description, hwloc's synthetic notation, the PUs to keep or "" for all).
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
    """Return a machine for the oracle: synthetic notation, or the file of a machine without some of its cores."""
    _, synthetic, remaining = MACHINES[name]
    if not remaining:
        return synthetic
    pus: set[int] = set()
    for part in remaining.split(","):
        low, _, high = part.partition("-")
        pus.update(range(int(low), int(high) + 1))
    path = folder / "machine.xml"
    mask = hex(sum(1 << pu for pu in pus))
    subprocess.run(["lstopo", "-i", synthetic, "--restrict", mask, "--of", "xml", "-f", str(path)], check=True)
    return str(path)


def as_hwloc2(path: Path, folder: Path) -> Path:
    """Return a copy of an XML file for lstopo 2: hwloc 3 has another version number, and equal elements."""
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


def cores_by_package(placed: Placement) -> dict[int, tuple[str, dict[int, tuple[int, ...]]]]:
    """Return a placement in the form of the oracle: rank -> (host, {package: cores inside it})."""
    ranks = {}
    for rank in placed.by_host():
        cores: dict[int, tuple[int, ...]] = {}
        for core in rank.binding.cores:
            cores[core.package] = (*cores.get(core.package, ()), core.index_in_package)
        ranks[rank.rank] = (rank.host.name, cores)
    return ranks
