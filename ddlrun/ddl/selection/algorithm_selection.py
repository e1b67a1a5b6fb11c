"""The choice of an algorithm per reduction: the mode's default, or in mode p the fastest one measured."""

from __future__ import annotations

import os
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import (
    BETWEEN_HOSTS,
    CONNECTIONS,
    ONE_HOST,
    TCP_DEPTH,
    AlgorithmSpace,
    AllreduceAlgorithm,
    MessageClass,
    default_algorithm,
    grow_chunks,
)
from ddlrun.ddl.selection import autotune
from ddlrun.ddl.selection.wire_compression import WIRES, parse_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddlrun.allreduce_algorithms import Tuning
    from ddlrun.ddl.group.settings import GroupSettings
    from ddlrun.ddl.launch_context import Options
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout
    from ddlrun.ddl.transports.communicators import Communicator
    from ddlrun.topology import RankOrder, Topology


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The sizes that the reductions of a group work with, by its transport and its hosts.

    tuning: for small arrays. grows: chunks grow with the array. local_ranks: the number of ranks if they are on one
    host, otherwise 0. host_ranks: the size of the first dimension if its ranks exchange parts of an array that are
    longer than chunks, otherwise 1. connections: numbers of connections to a rank that mode p tries.
    """

    tuning: Tuning
    grows: bool = False
    local_ranks: int = 0
    host_ranks: int = 1
    connections: tuple[int, ...] = ()

    def of(self, size: int, *, weighted: bool = False) -> Tuning:
        """Return the sizes for an array of `size` bytes, as sent."""
        if not self.grows:
            return self.tuning
        return grow_chunks(self.tuning, size, local_ranks=self.local_ranks, weighted=weighted)


def find_sizes(comm: Communicator, settings: GroupSettings, *, hosts: int, host_ranks: int) -> GroupSizes:
    """Return the sizes of a group.

    Args:
        comm: The group.
        settings: The sizes that are set.
        hosts: The number of hosts.
        host_ranks: The size of the first dimension if that is inside the hosts and others are not, otherwise 1.
    """
    default = ONE_HOST if hosts == 1 else BETWEEN_HOSTS
    if comm.collectives is not None:
        return GroupSizes(settings.tuning(default)._replace(connections=1))
    tuning = settings.tuning(default._replace(depth=TCP_DEPTH))
    return GroupSizes(
        tuning=tuning._replace(depth=max(tuning.depth, tuning.connections)),  # a chunk uses one connection
        grows=not settings.sets("chunk"),
        local_ranks=comm.size if hosts == 1 else 0,
        host_ranks=host_ranks,
        connections=CONNECTIONS if hosts > 1 and not settings.sets("connections") else (),
    )


class Selection:
    """Selects the algorithm of each reduction. All ranks create it together.

    Args:
        options: The mode.
        sizes: The sizes of the group.
        learners: The size of each dimension.
        comm: A communicator of all learners.
        load: Returns the algorithms measured so far, when they are first needed; None unless mode p explores.
        layout: The hosts if they or their links are unequal.
    """

    def __init__(
        self,
        options: Options,
        sizes: GroupSizes,
        *,
        learners: tuple[int, ...],
        comm: Communicator,
        load: Callable[[], autotune.AutotuneCache] | None = None,
        layout: HostLayout | None = None,
    ) -> None:
        self.options, self.sizes, self.tuning, self.layout = options, sizes, sizes.tuning, layout
        self._learners, self._comm, self._load = learners, comm, load
        self._cache: autotune.AutotuneCache | None = None
        self.default = lru_cache(maxsize=256)(self._make_default)
        """default(message): the algorithm of a message class before any measurement."""
        self.find = lru_cache(maxsize=256)(self._find)
        """find(message): the algorithm of a message class, None if it is to be explored."""

    @property
    def explores(self) -> bool:
        """True if algorithms are measured."""
        return self._load is not None

    def explore(self, message: MessageClass, measure: autotune.Measure) -> None:
        """Find the fastest algorithm for a message class; `measure` returns the same seconds on all ranks."""
        if self._cache is None and self._load is not None:
            self._cache = self._load()
            self.find.cache_clear()
        if self._cache is None or self._find(message) is not None:
            return
        space = AlgorithmSpace(
            # Sized blocks are used if they are faster indeed: measured rates may be wrong.
            default=self.default(message._replace(weighted=False)),
            chunked=self.default(message._replace(blocking=False)),
            learners=self._learners,
            size=message.size,
            blocking=message.blocking,
            connections=self.sizes.connections,
        )
        result, name = autotune.search(space, measure, self.tuning.explore), self._name(message)
        is_writer = self._comm.rank == 0
        written = self._cache.put(name, result.algorithm, write=is_writer)
        self.find.cache_clear()
        if is_writer and (self.options.dbg_level or result.seconds > 1):
            where = f", kept in {self._cache.path}" if written else ""
            sys.stderr.write(
                f"ddlrun.ddl: explored {name}: {result.algorithm} after {result.runs} reductions, "
                f"{result.seconds:.1f} s{where}\n"
            )

    def _find(self, message: MessageClass) -> AllreduceAlgorithm | None:
        if self._load is None or not message.whole or message.size <= autotune.SMALLEST:
            return self.default(message)
        return None if self._cache is None else self._cache.get(self._name(message))

    def _name(self, message: MessageClass) -> str:
        size = autotune.size_class(message.size)
        call = "all_reduce" if message.blocking else "start"
        name = f"{message.dtype} {size} {call}{message.wire and f' by {message.wire}'}"
        return f"{name} on links {zlib.crc32(repr(self.layout).encode()):08x}" if message.weighted else name

    def _make_default(self, message: MessageClass) -> AllreduceAlgorithm:
        wire = parse_wire(message.wire).dtype
        sent = message.size * WIRES[wire] // 4 if wire else message.size  # instead of float32
        tuning = self.sizes.of(sent, weighted=message.weighted)
        return default_algorithm(self.options.mode, tuning, self._learners, message)


def load_cache(
    comm: Communicator, environ: Mapping[str, str], topology: Topology, order: RankOrder, tuning: Tuning
) -> autotune.AutotuneCache:
    """Return the algorithms that earlier jobs have measured on the same hosts.

    All ranks call it together; rank 0 reads for all.
    """
    names = comm.gather(os.uname().nodename)
    arguments = None
    if names is not None:
        key = {
            "hosts": list(dict.fromkeys(names)),
            "topology": str(topology),
            "order": order.value,
            "mpi": comm.library,
            "connections": tuning.connections,
        }
        path = autotune.cache_path(environ, key)
        arguments = path, key, autotune.read_file(path)
    return autotune.AutotuneCache(*comm.bcast(arguments))
