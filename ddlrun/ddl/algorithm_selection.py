"""Which way each reduction takes: the mode's usual one, or in mode p the one that was found best."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.allreduce_algorithms import AlgorithmSpace, AllreduceAlgorithm, MessageClass, usual_way
from ddlrun.ddl import autotune

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpi4py.MPI import Intracomm

    from ddlrun.allreduce_algorithms import Tuning
    from ddlrun.ddl.dimensions import Grid
    from ddlrun.ddl.options import Options


class AlgorithmSelector(NamedTuple):
    """Made by all ranks together; `comm` has them all, None where there is one learner."""

    options: Options
    tuning: Tuning
    learners: tuple[int, ...]
    comm: Intracomm | None
    memory: autotune.AutotuneCache | None

    def way(self, case: MessageClass, trial: Callable[[], autotune.Measure]) -> AllreduceAlgorithm:
        """Return the way of a case; `trial()` gives what measures one, in seconds that are the same on all ranks."""
        if self.memory is None or not case.whole or case.size <= autotune.SMALLEST:
            return self._usual(case)
        size = autotune.size_class(case.size)
        name = f"{case.dtype} {size} {'all_reduce' if case.blocking else 'start'}{case.wire and f' by {case.wire}'}"
        known = self.memory.get(name)
        return self._explored(name, case, trial()) if known is None else known

    def _usual(self, case: MessageClass) -> AllreduceAlgorithm:
        return usual_way(self.options.mode, self.tuning, self.learners, case)

    def _explored(self, name: str, case: MessageClass, measure: autotune.Measure) -> AllreduceAlgorithm:
        usual, chunks = (self._usual(case._replace(blocking=blocking)) for blocking in (case.blocking, False))
        space = AlgorithmSpace(usual, chunks, self.learners, case.size, case.blocking)
        found = autotune.search(space, measure, self.tuning.explore)
        if self.memory is not None and self.comm is not None:
            kept = self.memory.keep(name, found.way, write=self.comm.rank == 0)
            if self.comm.rank == 0 and (self.options.dbg_level or found.seconds > 1):
                where = f", kept in {self.memory.path}" if kept else ""
                sys.stderr.write(
                    f"ddlrun.ddl: explored {name}: {found.way} after {found.runs} reductions, "
                    f"{found.seconds:.1f} s{where}\n"
                )
        return found.way


def make_choice(
    grid: Grid, options: Options, tuning: Tuning, comm: Intracomm | None, environ: Mapping[str, str]
) -> AlgorithmSelector:
    """Return what chooses; all ranks call it together. Rank 0 reads what was explored before, for all."""
    explores = comm is not None and options.mode == "p" and tuning.explore > 0
    memory = _remembered(grid, comm, environ) if comm is not None and explores else None
    return AlgorithmSelector(options, tuning, grid.topology.dims, comm, memory)


def _remembered(grid: Grid, comm: Intracomm, environ: Mapping[str, str]) -> autotune.AutotuneCache:
    from mpi4py import MPI  # noqa: PLC0415 - it is loaded

    names = comm.gather(MPI.Get_processor_name())
    found = None
    if names is not None:
        key = {
            "hosts": list(dict.fromkeys(names)),
            "topology": str(grid.topology),
            "order": grid.order.value,
            "mpi": MPI.Get_library_version().split(",")[0],
        }
        path = autotune.memory_path(environ, key)
        found = path, key, autotune.read(path)
    return autotune.AutotuneCache(*comm.bcast(found))
