"""Cores for learners that must move: those that the plan kept, each given to one learner alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ddlrun.ddl.monitor.procfs import CpuCore


class SpareCoreOffer(NamedTuple):
    """New CPUs for a learner, and in words whose they were."""

    cpus: frozenset[int]
    words: str


class SpareCores:
    """The cores of one host that no learner owns. Learners that ask in the same order get the same cores everywhere.

    `masks` has each learner's CPUs, `kept` the cores that the plan reserved, `idle` those that it gave to nobody;
    `core_of` tells a CPU's core.
    """

    def __init__(
        self,
        masks: Mapping[int, frozenset[int]],
        kept: Iterable[int],
        idle: Iterable[int],
        core_of: Callable[[int], CpuCore],
    ) -> None:
        owned = frozenset[int]().union(*masks.values())
        self._masks, self._core_of = dict(masks), core_of
        self._kept, self._idle = (_free(cpus, owned, core_of) for cpus in (kept, idle))
        self._taken: dict[int, tuple[frozenset[int], list[CpuCore], list[CpuCore]]] = {}

    def offer(self, rank: int) -> SpareCoreOffer | None:
        """Take cores for a learner, near ones first: as many as it has, or what there is beside its own."""
        own = self._masks[rank]
        cores = {self._core_of(cpu) for cpu in own}
        nodes, packages = {core.node for core in cores}, {core.package for core in cores}
        near = [[core for core in group if core.package in packages] for group in (self._kept, self._idle)]
        nearest = [core for core in near[0] if core.node in nodes]
        for group, words in (
            (nearest, "kept by the plan"),
            (near[0], "kept by the plan, on another NUMA node of its package"),
            (sorted(near[1], key=lambda core: core.node not in nodes), "of its package that no learner owns"),
            (self._kept, "kept by the plan, in another package: its memory stays behind"),
        ):
            if group:
                return self._take(rank, group[: len(cores)], words, whole=len(group) >= len(cores))
        return None

    def give_back(self, rank: int) -> frozenset[int]:
        """Return the CPUs that a learner had before its last offer, which is free again."""
        before, kept, idle = self._taken.pop(rank)
        self._kept, self._idle, self._masks[rank] = [*self._kept, *kept], [*self._idle, *idle], before
        return before

    def _take(self, rank: int, cores: Sequence[CpuCore], words: str, *, whole: bool) -> SpareCoreOffer:
        kept, idle = ([core for core in group if core in cores] for group in (self._kept, self._idle))
        self._kept, self._idle = ([core for core in group if core not in cores] for group in (self._kept, self._idle))
        before = self._masks[rank]
        self._taken[rank] = before, kept, idle
        new = frozenset[int]().union(*(core.cpus for core in cores))
        self._masks[rank] = new if whole and kept else new | before
        return SpareCoreOffer(self._masks[rank], words)


def _free(cpus: Iterable[int], owned: frozenset[int], core_of: Callable[[int], CpuCore]) -> list[CpuCore]:
    """Return the cores of CPUs, cut to these CPUs, none of which a learner owns."""
    allowed = frozenset(cpus)
    cores = dict.fromkeys(core_of(cpu) for cpu in sorted(allowed))
    return [core._replace(cpus=core.cpus & allowed) for core in cores if not core.cpus & owned]
