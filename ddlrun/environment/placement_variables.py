"""Placement variables: what tells each rank its place and the topology of the job."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.machine import Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement, spare_cores
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.rack_layout import unequal_racks
from ddlrun.ranges import render_ranges
from ddlrun.topology import ddl_topology


def render_rank_variables(placement: Placement, mode: str, visible_gpus: str = "all") -> dict[str, str]:
    """Return the variables that tell every rank the topology, its cores, GPUs and NICs, and DDL's options.

    DDLRUN_SEATS is read by keeper/binding.py. Consecutive hosts with equal ranks share an entry
    `HOSTS*RANK;RANK...`; entries are joined by `/`. A rank is `THREADS@CPUS@GPUS@NICS`, or with a memory policy
    `THREADS@CPUS@GPUS@NICS@MEMORY`:

    - CPUS: OS indexes; empty where the machine was not measured.
    - GPUS: the GPUs that the rank may see, `VENDOR=` and PCI addresses, or numbers where the machine was not
      measured. With `visible_gpus` "all", the rank's own is at the index of its local rank; else it is the first.
    - NICS: the RDMA devices near the rank.
    - MEMORY: `bind=` or `interleave=` and the OS indexes of NUMA nodes.

    DDLRUN_SPARES is set where cores are left: `HOSTS*CPUS;CPUS`, joined in the same way. The first CPUS are
    those of the reserved cores, the second those of the others. DDLRUN_RACKS is set where the topology does not have
    the racks, because hosts or racks are unequal: the number of hosts of each one, such as 3+2.
    """
    variables = {
        "DDLRUN_TOPOLOGY": str(placement.topology),
        "DDLRUN_RANK_ORDER": placement.order.value,
        "DDLRUN_SEATS": _seats(placement, visible_gpus),
        "DDL_OPTIONS": f"-mode {mode}:{ddl_topology(placement.topology)}",
    }
    if placement.policy.threads_per_core:
        variables["DDLRUN_NARROW"] = "1"  # mpirun binds to whole cores: the rank narrows that to its PUs
    if spares := _spares(placement):
        variables["DDLRUN_SPARES"] = spares
    if racks := unequal_racks(placement.topology, placement.hosts):
        variables["DDLRUN_RACKS"] = "+".join(map(str, racks))
    return variables


def _seats(placement: Placement, visible_gpus: str) -> str:
    """Return DDLRUN_SEATS; empty where it would be too long for a variable."""
    groups = placement.groups()
    for cpus in (True, False):  # where hosts differ much, the CPUs are left out: they only serve to check the binding
        texts = {
            id(seats): ";".join(
                f"{placement.threads_of(seat)}@{_seat_text(seats, seat, machine, visible_gpus, cpus=cpus)}"
                f"{_memory_text(seat, placement.policy)}"
                for seat in seats
            )
            for _, machine, seats in groups
        }
        joined = _join_runs(texts[id(seats)] for seats in placement.bindings)
        if len(joined) <= MOST_CHARACTERS:
            return joined
    return ""


def has_all_cpus(variables: Mapping[str, str]) -> bool:
    r"""Return True if DDLRUN_SEATS has the CPUs of every rank.

    >>> [has_all_cpus({"DDLRUN_SEATS": seats}) for seats in ("2*5@0-4@@;5@5-9@@", "1*5@0-4@@/1*5@@@", "")]
    [True, False, False]
    """
    seats = variables["DDLRUN_SEATS"]
    return bool(seats) and re.search(r"[*;]\d+@@", seats) is None


def _spares(placement: Placement) -> str:
    """Return DDLRUN_SPARES; empty where no core is left, or where it would be too long for a variable."""
    texts = {id(seats): _spare_text(seats, machine, placement.policy) for _, machine, seats in placement.groups()}
    if all(text == ";" for text in texts.values()):
        return ""
    joined = _join_runs(texts[id(seats)] for seats in placement.bindings)
    return joined if len(joined) <= MOST_CHARACTERS else ""


def _spare_text(seats: Sequence[LocalRankPlacement], machine: Machine, policy: PlacementPolicy) -> str:
    per_core = policy.threads_per_core
    groups = spare_cores(machine, seats, policy) if machine.measured else ((), ())
    return ";".join(render_ranges(pu.os_index for core in cores for pu in core.pus[:per_core]) for cores in groups)


def _seat_text(
    seats: Sequence[LocalRankPlacement], seat: LocalRankPlacement, machine: Machine, visible_gpus: str, *, cpus: bool
) -> str:
    indexes = [pu.os_index for core in seat.cores for pu in core.pus] if machine.measured and cpus else []
    gpus = _visible(seats, seat, machine, visible_gpus)
    return f"{render_ranges(indexes)}@{gpus}@{','.join(seat.nics)}"


def _memory_text(seat: LocalRankPlacement, policy: PlacementPolicy) -> str:
    if not seat.memory_nodes:
        return ""
    mode = "interleave" if policy.membind == "interleave" else "bind"
    return f"@{mode}={','.join(map(str, seat.memory_nodes))}"


def _visible(seats: Sequence[LocalRankPlacement], seat: LocalRankPlacement, machine: Machine, visible_gpus: str) -> str:
    """Return the GPUs that a rank may see, in the order in which it counts them."""
    if seat.gpu is None or seat.gpu.vendor is None or visible_gpus == "unchanged":
        return ""
    used = list(dict.fromkeys(other.gpu for other in seats if other.gpu is not None))
    shared = len(used) < len(seats)  # then a rank counts local_rank % len(used)
    rest = [] if shared else [gpu for gpu in machine.gpus if gpu not in used]
    gpus = [seat.gpu] if visible_gpus == "own" else [*used, *rest]
    same_vendor = [gpu for gpu in gpus if gpu.vendor == seat.gpu.vendor]
    by_number = not machine.measured or seat.gpu.vendor == "intel"  # Level Zero knows no addresses
    if by_number and same_vendor == list(machine.gpus):
        return ""
    names = [str(gpu.number) if by_number else gpu.pci_address or str(gpu.number) for gpu in same_vendor]
    return f"{seat.gpu.vendor}={','.join(names)}"


def _join_runs(texts: Iterable[str]) -> str:
    """Join texts, equal neighbours as COUNT*TEXT."""
    return "/".join(f"{len(list(run))}*{text}" for text, run in groupby(texts))
