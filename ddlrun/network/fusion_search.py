"""Search for Horovod's fusion threshold and cycle time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddlrun.allreduce_algorithms import MIB

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import HorovodResult, HorovodSettingRecord

FUSIONS = tuple(mib * MIB for mib in (128, 64, 16, 4, 1))
CYCLES = (1.0, 3.5, 10.0)
# Horovod's defaults stay unless another setting takes less than this share of their time.
BETTER = 0.98


@dataclass(frozen=True, slots=True)
class FusionSetting:
    """Fusion threshold in bytes and cycle time in milliseconds; None: Horovod's default."""

    fusion: int | None = None
    cycle: float | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that Horovod reads."""
        values = {"HOROVOD_FUSION_THRESHOLD": self.fusion, "HOROVOD_CYCLE_TIME": self.cycle}
        return {name: f"{value:.12g}" for name, value in values.items() if value is not None}


def search_fusion(
    measure: Callable[[FusionSetting], float], gradient: int, has_time: Callable[[], bool]
) -> "HorovodResult":
    """Find the fastest setting for gradients of some bytes; `measure` returns the seconds of a step.

    `has_time` returns False once no further measurement may start.
    """
    default = FusionSetting()
    times = {default: measure(default)}

    def measure_all(settings: Iterable[FusionSetting]) -> bool:
        for setting in settings:
            if not has_time():
                return False
            times[setting] = measure(setting)
        return True

    def best() -> FusionSetting:
        return min(times, key=times.__getitem__)

    whole = next((fusion for fusion in sorted(FUSIONS) if fusion >= gradient), max(FUSIONS))
    complete = measure_all(FusionSetting(fusion) for fusion in FUSIONS if fusion <= whole)
    complete = measure_all([replace(best(), cycle=cycle) for cycle in CYCLES]) and complete
    complete = measure_all(dict.fromkeys((default, best()))) and complete  # measured twice, as one result may be lucky
    chosen = best() if times[best()] <= BETTER * times[default] else default
    rows: list[HorovodSettingRecord] = [
        {"variables": setting.variables, "seconds": seconds} for setting, seconds in times.items()
    ]
    return {
        "measured": sorted(rows, key=lambda row: row["seconds"]),
        "best": {"variables": chosen.variables, "seconds": times[chosen]},
        "default_seconds": times[default],
        "complete": complete,
    }
