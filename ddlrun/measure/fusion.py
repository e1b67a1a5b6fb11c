"""Horovod's fusion threshold and cycle time, tried on all ranks: it reads them anew at each hvd.init()."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from ddlrun.allreduce_algorithms import MIB
from ddlrun.measure.tuning import BETTER

FUSIONS = tuple(mib * MIB for mib in (128, 64, 16, 4, 1))
CYCLES = (1.0, 3.5, 10.0)
# Gradients come as so many tensors, as those of a model of some 20 layers do.
TENSORS = 64
RUNS = 5


class FusionSetting(NamedTuple):
    """Bytes and milliseconds; None: as Horovod has it."""

    fusion: int | None = None
    cycle: float | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Return what Horovod reads."""
        values = {"HOROVOD_FUSION_THRESHOLD": self.fusion, "HOROVOD_CYCLE_TIME": self.cycle}
        return {name: f"{value:.12g}" for name, value in values.items() if value is not None}


def tune_horovod(comm: MPI.Intracomm, gradient: int, budget: float, say: Callable[[str, float], None]) -> Any:  # noqa: ANN401
    """Return what was measured, the best first, as JSON can carry it: variables, and the seconds of a step."""
    start = time.perf_counter()
    seen: dict[FusionSetting, float] = {}

    def measure(setting: FusionSetting) -> None:
        spent = float(comm.bcast((time.perf_counter() - start) / budget))
        if spent < 1 or not seen:
            say(f"Horovod {' '.join(setting.variables.values())}", min(spent, 1.0))
            seen[setting] = _seconds(comm, setting, gradient)

    whole = next((fusion for fusion in sorted(FUSIONS) if fusion >= gradient), max(FUSIONS))
    fusions = [fusion for fusion in FUSIONS if fusion <= whole]
    measure(FusionSetting())
    for fusion in fusions:
        measure(FusionSetting(fusion))
    best = min(seen, key=seen.__getitem__)
    for cycle in CYCLES:
        measure(best._replace(cycle=cycle))
    best = min(seen, key=seen.__getitem__)
    for setting in dict.fromkeys((FusionSetting(), best)):  # what was best by luck is so once only
        seen[setting] = _seconds(comm, setting, gradient)
    if seen[best] > BETTER * seen[FusionSetting()]:
        best = FusionSetting()
    rows = [{"variables": setting.variables, "seconds": took} for setting, took in seen.items()]
    return {
        "measured": sorted(rows, key=lambda row: float(str(row["seconds"]))),
        "best": {"variables": best.variables, "seconds": seen[best]},
        "usual": seen[FusionSetting()],
        "complete": len(seen) == 1 + len(fusions) + len(CYCLES),
    }


def _seconds(comm: MPI.Intracomm, setting: FusionSetting, gradient: int) -> float:
    """Return the median seconds of the slowest rank, for all gradients of a step."""
    import horovod.torch as hvd  # noqa: PLC0415 - where it is there
    import torch  # noqa: PLC0415

    for name in FusionSetting(1, 1).variables:
        os.environ.pop(name, None)
    os.environ.update(setting.variables)
    hvd.init()
    try:
        device = f"cuda:{hvd.local_rank() % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
        tensors = [torch.ones(max(gradient // 4 // TENSORS, 1), device=device) for _ in range(TENSORS)]
        samples = []
        for _ in range(RUNS + 1):
            comm.Barrier()
            start = time.perf_counter()
            handles = [hvd.allreduce_async_(tensor, name=f"g{number}") for number, tensor in enumerate(tensors)]
            for handle in handles:
                hvd.synchronize(handle)
            samples.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        return float(statistics.median(samples[1:]))
    finally:
        hvd.shutdown()
