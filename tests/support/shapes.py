"""Machines of the tests, each with the hwloc topology for a real mpirun, and placements on them."""

from functools import cache

from ddlrun.hosts import Host, HostList
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.mapping.placement import Placement, place
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.topology import RankOrder, parse_job_topology
from tests.machines.facts import parse_facts
from tests.machines.render_hwloc import render_hwloc

DEFAULT = PlacementPolicy()

# Name -> (ddlrun's description, the CPUs of the packages and of the cores as tests.machines describes them).
MACHINES = {
    "minsky": ("{packages: 2, cores_per_package: 10, smt: 8, gpus: [0, 0, 1, 1]}", "0-159/80", "0-159/8"),
    "2x22": ("{packages: 2, cores_per_package: 22, smt: 4}", "0-175/88", "0-175/4"),
    "1x2": ("{packages: 1, cores_per_package: 2}", "0-1", "0-1/1"),
    "4x6": ("{packages: 4, cores_per_package: 6, smt: 2}", "0-47/12", "0-47/2"),
    "8+10": ("{packages: [8, 10]}", "0-7 10-19", "0-7,10-19/1"),
    "3+5+4": ("{packages: [3, 5, 4], smt: 2}", "0-5 10-19 20-27", "0-5,10-27/2"),
}


def machine(name: str) -> Machine:
    return parse_machine(MACHINES[name][0], name)


@cache
def hwloc_topology(name: str) -> str:
    """Return hwloc's XML of a machine, for the oracle."""
    _, packages, cores = MACHINES[name]
    return render_hwloc(parse_facts(f"about: {name}\npackages: {packages}\ncores: {cores}\n", name))


def placement(
    topology: str,
    hosts: list[str],
    described: Machine,
    order: RankOrder = RankOrder.DDL,
    policy: PlacementPolicy = DEFAULT,
) -> Placement:
    listed = HostList(tuple(map(Host, hosts)), "test")
    return place(parse_job_topology(topology), listed, dict.fromkeys(hosts, described), order, policy)


def cores_by_package(placed: Placement) -> dict[int, tuple[str, dict[int, tuple[int, ...]]]]:
    """Return a placement in the form of the oracle: rank -> (host, {package: cores inside it})."""
    ranks = {}
    for rank in placed.by_host():
        cores: dict[int, tuple[int, ...]] = {}
        for core in rank.binding.cores:
            cores[core.package] = (*cores.get(core.package, ()), core.index_in_package)
        ranks[rank.rank] = (rank.host.name, cores)
    return ranks
