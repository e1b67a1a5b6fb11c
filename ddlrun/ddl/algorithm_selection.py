"""The choice of an algorithm per reduction: the mode's default, or in mode p the fastest one measured."""

from __future__ import annotations

import os
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import (
    AlgorithmSpace,
    AllreduceAlgorithm,
    MessageClass,
    default_algorithm,
    grow_chunks,
)
from ddlrun.ddl import autotune
from ddlrun.ddl.wire_compression import WIRES, parse_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddlrun.allreduce_algorithms import Tuning
    from ddlrun.ddl.communicators import Communicator
    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.options import Options
    from ddlrun.ddl.unequal_links import HostGroups
    from ddlrun.ddl.weighted_schedule import HostLayout


@dataclass(frozen=True, slots=True)
class AlgorithmSelector:
    """Selects the algorithm of each reduction. All ranks create it together.

    learners: the size of each dimension. comm: a communicator of all learners. cache: the
    algorithms measured so far, None unless mode p explores. grows: chunks grow with the array, as over TCP.
    local_ranks: the number of learners if they are on one host, otherwise 0. host_ranks: the size of the first
    dimension if that is inside the hosts and others are not, over TCP, otherwise 1. connections: numbers of connections
    to a rank that mode p tries. layout: the hosts if they or their links are unequal. monitored: the hosts if the rates
    of their NICs are to be measured.
    """

    options: Options
    tuning: Tuning
    learners: tuple[int, ...]
    comm: Communicator
    cache: autotune.AutotuneCache | None
    grows: bool = False
    local_ranks: int = 0
    host_ranks: int = 1
    connections: tuple[int, ...] = ()
    layout: HostLayout | None = None
    monitored: HostGroups | None = None

    def select(self, message: MessageClass, make_measure: Callable[[], autotune.Measure]) -> AllreduceAlgorithm:
        """Return the algorithm for a message class.

        `make_measure()` returns a function that measures an algorithm, in seconds that are the same on all ranks.
        """
        if self.comm.collectives is None:
            message = message._replace(blocking=False)  # the collectives of MPI serve callers that wait
        if self.cache is None or not message.whole or message.size <= autotune.SMALLEST:
            return self._default(message)
        size = autotune.size_class(message.size)
        call = "all_reduce" if message.blocking else "start"
        name = f"{message.dtype} {size} {call}{message.wire and f' by {message.wire}'}"
        if message.weighted:
            name += f" on links {zlib.crc32(repr(self.layout).encode()):08x}"
        cached = self.cache.get(name)
        return self._explore(self.cache, name, message, make_measure()) if cached is None else cached

    def _default(self, message: MessageClass) -> AllreduceAlgorithm:
        wire = parse_wire(message.wire).dtype
        sent = message.size * WIRES[wire] // 4 if wire else message.size  # instead of float32
        tuning = self.tuning
        if self.grows:
            tuning = grow_chunks(tuning, sent, local_ranks=self.local_ranks, weighted=message.weighted)
        return default_algorithm(self.options.mode, tuning, self.learners, message)

    def _explore(
        self, cache: autotune.AutotuneCache, name: str, message: MessageClass, measure: autotune.Measure
    ) -> AllreduceAlgorithm:
        space = AlgorithmSpace(
            # Sized blocks are used if they are faster indeed: measured rates may be wrong.
            default=self._default(message._replace(weighted=False)),
            chunked=self._default(message._replace(blocking=False)),
            learners=self.learners,
            size=message.size,
            blocking=message.blocking,
            connections=self.connections,
        )
        result = autotune.search(space, measure, self.tuning.explore)
        is_writer = self.comm.rank == 0
        written = cache.put(name, result.algorithm, write=is_writer)
        if is_writer and (self.options.dbg_level or result.seconds > 1):
            where = f", kept in {cache.path}" if written else ""
            sys.stderr.write(
                f"ddlrun.ddl: explored {name}: {result.algorithm} after {result.runs} reductions, "
                f"{result.seconds:.1f} s{where}\n"
            )
        return result.algorithm


def make_selector(grid: Grid, options: Options, tuning: Tuning, environ: Mapping[str, str]) -> AlgorithmSelector:
    """Return the selector of a grid. All ranks call it together; rank 0 reads the cache for all."""
    comm = grid.members(grid.axes)
    explores = comm.size > 1 and options.mode == "p" and tuning.explore > 0
    return AlgorithmSelector(
        options=options,
        tuning=tuning,
        learners=grid.topology.dims,
        comm=comm,
        cache=_load_cache(grid, comm, tuning.connections, environ) if explores else None,
    )


def _load_cache(grid: Grid, comm: Communicator, connections: int, environ: Mapping[str, str]) -> autotune.AutotuneCache:
    names = comm.gather(os.uname().nodename)
    arguments = None
    if names is not None:
        key = {
            "hosts": list(dict.fromkeys(names)),
            "topology": str(grid.topology),
            "order": grid.order.value,
            "mpi": comm.library,
            "connections": connections,
        }
        path = autotune.cache_path(environ, key)
        arguments = path, key, autotune.read_file(path)
    return autotune.AutotuneCache(*comm.bcast(arguments))
