"""Samples of GPUs, parsed from the lines of keepers, which have the cells of nvidia-smi."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import mean
from typing import Annotated

from ddlrun.keeper.protocol import ProtocolError, parse_number
from ddlrun.keeper.usage.gpus import GPU_FIELDS
from ddlrun.ranges import parse_ranges, render_ranges

LONGEST_UUID = 64
MIB = 1 << 20
MEGAHERTZ = 1_000_000
MOST_NUMBER = 1 << 31
# Linux's notation of a PCI address has four digits for the domain, nvidia-smi's has eight.
ADDRESS = r"[0-9A-Fa-f]{0,4}([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"


class ClockLimit(Enum):
    """What lowers the clock of a GPU."""

    HEAT = "heat"
    POWER_BRAKE = "power-brake"
    """A signal of the power supply."""
    HARDWARE = "hardware"
    """The hardware, for another reason."""
    POWER_CAP = "power-cap"
    """The limit of the power, as usual at full load."""


# Bits of clocks_event_reasons.active, which are those of NVML.
LIMIT_BITS = {ClockLimit.HEAT: 0x60, ClockLimit.POWER_BRAKE: 0x80, ClockLimit.HARDWARE: 0x8, ClockLimit.POWER_CAP: 0x4}


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The use of a GPU by all processes; null where the driver reports none."""

    number: int
    """Its number: that of nvidia-smi, or its place among the PCI addresses of AMD GPUs."""
    uuid: str
    address: str
    """The PCI address."""
    ranks: str
    """The ranks that compute on it, such as 3 or 0-1; empty if there are none, or they are unknown."""
    utilization: float | None
    """The share of the time in which a kernel ran."""
    memory_used: int | None
    """Bytes."""
    memory: int | None
    """Bytes."""
    power: float | None
    """Watts."""
    power_limit: float | None
    """Watts."""
    temperature: float | None
    """Degrees Celsius."""
    clock: float | None
    """The clock of the multiprocessors, in hertz."""
    highest_clock: float | None
    """The highest value of `clock`."""
    limits: tuple[Annotated[str, ClockLimit], ...]
    """What lowers the clock."""


def parse_gpu_sample(line: str) -> GpuSample:
    """Parse a line of a keeper. Raises ProtocolError."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(GPU_FIELDS):
        raise ProtocolError("its report of a GPU cannot be read")
    cells = dict(zip(GPU_FIELDS, words, strict=True))
    address = re.fullmatch(ADDRESS, cells["pci.bus_id"])
    return GpuSample(
        number=parse_number(cells["index"], MOST_NUMBER),
        uuid=cells["uuid"][:LONGEST_UUID],
        address=address[1].lower() if address else "",
        ranks=render_ranges(parse_number(word, MOST_NUMBER) for word in cells["ranks"].split()),
        utilization=_scale(cells, "utilization.gpu", 0.01),
        memory_used=_scale_whole(cells, "memory.used", MIB),
        memory=_scale_whole(cells, "memory.total", MIB),
        power=_scale(cells, "power.draw", 1),
        power_limit=_scale(cells, "power.limit", 1),
        temperature=_scale(cells, "temperature.gpu", 1),
        clock=_scale_whole(cells, "clocks.sm", MEGAHERTZ),
        highest_clock=_scale_whole(cells, "clocks.max.sm", MEGAHERTZ),
        limits=tuple(limit.value for limit in parse_limits(cells["reasons"])),
    )


def _scale(cells: Mapping[str, str], name: str, factor: float) -> float | None:
    """Return a number times a factor; None for a text such as [N/A]."""
    match = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", cells[name])
    return round(float(match[0]) * factor, 3) if match else None


def _scale_whole(cells: Mapping[str, str], name: str, factor: int) -> int | None:
    number = _scale(cells, name, factor)
    return None if number is None else round(number)


def parse_limits(reasons: str) -> list[ClockLimit]:
    """Parse the bits of what lowers the clock; none where the driver does not report them.

    The bit of the hardware accompanies those of heat and of the power brake.

    >>> parse_limits("0x0000000000000048"), parse_limits("0x0000000000000008"), parse_limits("[N/A]")
    ([<ClockLimit.HEAT: 'heat'>], [<ClockLimit.HARDWARE: 'hardware'>], [])
    """
    bits = int(reasons, 16) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", reasons) else 0
    limits = [limit for limit, mask in LIMIT_BITS.items() if bits & mask]
    causes = {ClockLimit.HEAT, ClockLimit.POWER_BRAKE}
    return [limit for limit in limits if limit is not ClockLimit.HARDWARE or not causes.intersection(limits)]


def utilization_by_rank(gpus: Iterable[GpuSample]) -> dict[int, float]:
    """Return the utilization of the GPU of each rank, where it is known."""
    known = ((gpu.ranks, gpu.utilization) for gpu in gpus if gpu.utilization is not None)
    return {rank: utilization for ranks, utilization in known for rank in parse_ranges(ranks)}


def mean_utilization(ranks: str, by_rank: Mapping[int, float]) -> float | None:
    """Return the mean over ranks; None if it is known for none of them.

    >>> mean_utilization("0-2", {0: 0.5, 1: 1.0}), mean_utilization("3", {})
    (0.75, None)
    """
    values = [by_rank[rank] for rank in sorted(parse_ranges(ranks)) if rank in by_rank]
    return mean(values) if values else None
