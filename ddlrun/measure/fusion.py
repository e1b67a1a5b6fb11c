"""Search for Horovod's fusion threshold and cycle time; Horovod reads them at each hvd.init()."""

import os
import statistics
import time
from typing import NamedTuple

from mpi4py import MPI

from ddlrun.allreduce_algorithms import MIB
from ddlrun.measure.messages import Progress
from ddlrun.measure.tuning import BETTER
from ddlrun.network.measurements import HorovodResult, HorovodSettingRecord

FUSIONS = tuple(mib * MIB for mib in (128, 64, 16, 4, 1))
CYCLES = (1.0, 3.5, 10.0)
# The number of tensors that hold the gradients, as in a model of about 20 layers.
TENSORS = 64
RUNS = 5


class FusionSetting(NamedTuple):
    """Fusion threshold in bytes and cycle time in milliseconds; None: Horovod's default."""

    fusion: int | None = None
    cycle: float | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that Horovod reads."""
        values = {"HOROVOD_FUSION_THRESHOLD": self.fusion, "HOROVOD_CYCLE_TIME": self.cycle}
        return {name: f"{value:.12g}" for name, value in values.items() if value is not None}


def tune_horovod(comm: MPI.Intracomm, gradient: int, budget: float, progress: Progress) -> HorovodResult:
    """Return the measurements as JSON, the best first: variables, and the seconds of a step."""
    start = time.perf_counter()
    times: dict[FusionSetting, float] = {}

    def measure(setting: FusionSetting) -> None:
        spent = float(comm.bcast((time.perf_counter() - start) / budget))
        if spent < 1 or not times:
            progress(f"Horovod {' '.join(setting.variables.values())}", min(spent, 1.0))
            times[setting] = _seconds(comm, setting, gradient)

    whole = next((fusion for fusion in sorted(FUSIONS) if fusion >= gradient), max(FUSIONS))
    fusions = [fusion for fusion in FUSIONS if fusion <= whole]
    measure(FusionSetting())
    for fusion in fusions:
        measure(FusionSetting(fusion))
    best = min(times, key=times.__getitem__)
    for cycle in CYCLES:
        measure(best._replace(cycle=cycle))
    best = min(times, key=times.__getitem__)
    for setting in dict.fromkeys((FusionSetting(), best)):  # a second measurement removes luck
        times[setting] = _seconds(comm, setting, gradient)
    if times[best] > BETTER * times[FusionSetting()]:
        best = FusionSetting()
    rows: list[HorovodSettingRecord] = [
        {"variables": setting.variables, "seconds": seconds} for setting, seconds in times.items()
    ]
    return {
        "measured": sorted(rows, key=lambda row: row["seconds"]),
        "best": {"variables": best.variables, "seconds": times[best]},
        "default_seconds": times[FusionSetting()],
        "complete": len(times) == 1 + len(fusions) + len(CYCLES),
    }


def _seconds(comm: MPI.Intracomm, setting: FusionSetting, gradient: int) -> float:
    """Return the median over runs of the slowest rank's seconds for all gradients of a step."""
    import horovod.torch as hvd  # noqa: PLC0415 - where it is installed
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
