"""Cores for learners that move: those that the plan reserved or left over, each given to one learner only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ddlrun.ddl.monitor.procfs import CpuCore


@dataclass(frozen=True, slots=True)
class SpareCoreOffer:
    """New CPUs for a learner, and their origin as text."""

    cpus: frozenset[int]
    origin: str


class SpareCores:
    """The cores of one host that no learner owns.

    Every rank of the host makes the same calls in the same order, so all get the same answers.

    Args:
        masks: The CPUs of each learner.
        reserved: The CPUs that the plan reserved (`--reserve-cores`).
        unassigned: The CPUs that the plan gave to no rank.
        core_of: Returns the core of a CPU.
    """

    def __init__(
        self,
        masks: Mapping[int, frozenset[int]],
        reserved: Iterable[int],
        unassigned: Iterable[int],
        core_of: Callable[[int], CpuCore],
    ) -> None:
        owned = frozenset[int]().union(*masks.values())
        self._masks, self._core_of = dict(masks), core_of
        self._free = dict.fromkeys(_free_cores(unassigned, owned, core_of), False)
        """The free cores, and whether the plan reserved them."""
        self._free |= dict.fromkeys(_free_cores(reserved, owned, core_of), True)
        self._loans: dict[int, tuple[frozenset[int], dict[CpuCore, bool]]] = {}
        """The CPUs that a learner had before, and the cores that it took."""

    def offer(self, rank: int) -> SpareCoreOffer | None:
        """Take cores for a learner from the nearest group that has one: as many as it has, or what there is.

        Returns None if there is no free core.
        """
        cores = {self._core_of(cpu) for cpu in self._masks[rank]}
        nodes, packages = {core.node for core in cores}, {core.package for core in cores}
        reserved = [core for core, is_reserved in self._free.items() if is_reserved]
        in_package = [core for core in reserved if core.package in packages]
        in_node = [core for core in in_package if core.node in nodes]
        unassigned = [core for core in self._free if core not in reserved and core.package in packages]
        for group, origin in (
            (in_node, "kept by the plan"),
            (in_package, "kept by the plan, on another NUMA node of its package"),
            (sorted(unassigned, key=lambda core: core.node not in nodes), "of its package that no learner owns"),
            (reserved, "kept by the plan, in another package: its memory stays behind"),
        ):
            if group:
                return self._take(rank, group[: len(cores)], origin, enough=len(group) >= len(cores))
        return None

    def give_back(self, rank: int) -> frozenset[int]:
        """Return the CPUs that a learner had before its last offer; the cores of the offer are free again."""
        self._masks[rank], cores = self._loans.pop(rank)
        self._free |= cores
        return self._masks[rank]

    def _take(self, rank: int, cores: Sequence[CpuCore], origin: str, *, enough: bool) -> SpareCoreOffer:
        """Give cores to a learner: instead of its own if they are enough and reserved, else beside its own."""
        before, taken = self._masks[rank], {core: self._free.pop(core) for core in cores}
        self._loans[rank] = before, taken
        new = frozenset[int]().union(*(core.cpus for core in cores))
        self._masks[rank] = new if enough and any(taken.values()) else new | before
        return SpareCoreOffer(self._masks[rank], origin)


def _free_cores(cpus: Iterable[int], owned: frozenset[int], core_of: Callable[[int], CpuCore]) -> list[CpuCore]:
    """Return the cores of CPUs, cut to these CPUs, of which no learner owns any."""
    allowed = frozenset(cpus)
    cores = dict.fromkeys(core_of(cpu) for cpu in sorted(allowed))
    return [replace(core, cpus=core.cpus & allowed) for core in cores if not core.cpus & owned]
