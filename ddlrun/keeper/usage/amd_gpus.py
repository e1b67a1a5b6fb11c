"""The use of a host's AMD GPUs, from the files of their driver, amdgpu.

The kernel documents the files and their units in Documentation/gpu/amdgpu/thermal.rst. It defines the layout of
gpu_metrics in kgd_pp_interface.h, and the bits of indep_throttle_status in amdgpu_smu.h.
"""

from __future__ import annotations

import os
import time

from ddlrun.keeper.proc_files import list_folder, read_file, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DRIVER = "/sys/bus/pci/drivers/amdgpu"
MIB, MICROWATTS, MILLIDEGREES, MEGAHERTZ = 1 << 20, 1_000_000, 1000, 1_000_000
UNKNOWN = "[N/A]"
# What lowers the clock, as bits of NVML.
HEAT, POWER_CAP, HARDWARE = 0x20, 0x4, 0x8
# Revision 1.3 of gpu_metrics has indep_throttle_status at this offset; all bits are set if it is unknown. The bits are
# those of power and currents, of temperatures, and of the signal PROCHOT.
STATUS_REVISION, STATUS_OFFSET, NO_STATUS = (1, 3), 112, (1 << 64) - 1
THROTTLERS = ((0x0000_00FF_00FF, POWER_CAP), (0x3FFF_0000_0000, HEAT), (0xC000_0000_0000, HARDWARE))
# Later revisions count the time of throttling at these offsets, in 32-bit numbers: PROCHOT, power, and the temperatures
# of the package, of the voltage regulator and of the memory.
COUNTER_OFFSETS: dict[tuple[int, ...], int] = {(1, 6): 36, (1, 7): 44, (1, 8): 44}
COUNTERS = (HARDWARE, POWER_CAP, HEAT, HEAT, HEAT)


def list_gpus(driver: str = DRIVER) -> list[str]:
    """Return the folders of the GPUs whose use the driver reports, in the order of their PCI addresses."""
    folders = [os.path.join(driver, name) for name in sorted(list_folder(driver)) if ":" in name]
    return [folder for folder in folders if os.path.exists(f"{folder}/gpu_busy_percent")]


def print_samples(folders: list[str], interval: float) -> NoReturn:
    """Print a line per GPU to standard output every `interval` seconds, with the cells of nvidia-smi."""
    gpus = [AmdGpu(number, folder) for number, folder in enumerate(folders)]
    while True:
        os.write(1, "".join(f"{gpu.take()}\n" for gpu in gpus).encode())
        time.sleep(interval)


class AmdGpu:
    """A GPU with the driver amdgpu."""

    def __init__(self, number: int, folder: str) -> None:
        """Read what does not change, from the folder of a GPU in /sys."""
        self._folder = folder
        unique = read_text(f"{folder}/unique_id").strip()
        self._names = f"{number}, {f'GPU-{unique}' if unique else UNKNOWN}, {os.path.basename(folder)}"
        self._sensors = next((f"hwmon/{name}" for name in list_folder(f"{folder}/hwmon")), "")
        clocks = [word[: -len("Mhz")] for word in read_text(f"{folder}/pp_dpm_sclk").split() if word.endswith("Mhz")]
        self._highest_clock = max(clocks, key=int) if clocks and all(map(str.isdecimal, clocks)) else UNKNOWN
        self._counters = b""

    def take(self) -> str:
        """Return the cells of a line."""
        sensors = self._sensors
        cells = [
            self._names,
            self._scale(1, "gpu_busy_percent"),
            self._scale(MIB, "mem_info_vram_used"),
            self._scale(MIB, "mem_info_vram_total"),
            self._scale(MICROWATTS, f"{sensors}/power1_average", f"{sensors}/power1_input"),
            self._scale(MICROWATTS, f"{sensors}/power1_cap"),
            # That of the hottest place, else of the edge.
            self._scale(MILLIDEGREES, f"{sensors}/temp2_input", f"{sensors}/temp1_input"),
            self._scale(MEGAHERTZ, f"{sensors}/freq1_input"),
            self._highest_clock,
            self._take_limits(),
        ]
        return ", ".join(cells)

    def _scale(self, unit: int, *names: str) -> str:
        """Return the number of the first file that the driver reports, in units of nvidia-smi."""
        text = next(filter(None, (read_text(f"{self._folder}/{name}").strip() for name in names)), "")
        return f"{int(text) / unit:.2f}" if text.isdecimal() else UNKNOWN

    def _take_limits(self) -> str:
        """Return the bits of what lowers the clock now, or has done so since the last call."""
        metrics = read_file(f"{self._folder}/gpu_metrics")
        revision = tuple(metrics[2:4])
        if revision == STATUS_REVISION:
            status = int.from_bytes(metrics[STATUS_OFFSET:][:8], "little")
            limits = [limit for bits, limit in THROTTLERS if status & bits and status != NO_STATUS]
        elif revision in COUNTER_OFFSETS:
            counters = metrics[COUNTER_OFFSETS[revision] :][: 4 * len(COUNTERS)]
            before, self._counters = self._counters or counters, counters
            places = [slice(4 * place, 4 * place + 4) for place in range(len(COUNTERS))]
            limits = [limit for limit, at in zip(COUNTERS, places) if counters[at] != before[at]]  # noqa: B905 - of one length
        else:
            return UNKNOWN
        return f"{sum(set(limits)):#x}"
