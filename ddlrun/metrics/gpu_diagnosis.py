"""Diagnosis of GPUs: those that the hardware slows down, and those that wait for their ranks.

GPUs on which no rank computes, or of which that is unknown, are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from ddlrun.metrics.findings import Finding, SlownessCause
from ddlrun.metrics.gpu_samples import MEGAHERTZ, ClockLimit, GpuSample
from ddlrun.metrics.history import History
from ddlrun.metrics.samples import HostSample, RankSample
from ddlrun.ranges import parse_ranges, render_ranges
from ddlrun.units import render_byte_rate
from ddlrun.wording import kernel_wait

LEAST_SAMPLES = 5
# A short disturbance is not throttling: so large a share of so many samples must have it.
WINDOW = 10
MAJORITY = 0.6
# A clock above this share of the highest one is not slow.
MOST_CLOCK = 0.9
THROTTLING = {
    ClockLimit.HEAT.value: "heat",
    ClockLimit.POWER_BRAKE.value: "the power brake",
    ClockLimit.HARDWARE.value: "its hardware",
}
# Programs that start read data and compile for a time, and others wait for them.
START_SECONDS = 300.0
IDLE_SECONDS = 30.0
MOST_IDLE = 0.01
LEAST_BUSY = 0.2
STARVED_SECONDS = 50.0
MOST_STARVED = 0.1
# Ranks that read, or use a CPU, do not wait for each other: for them this time is enough.
ACTIVE_SECONDS = 8.0
LEAST_CPU = 0.5
LEAST_INPUT = 1e6
# Ranks that write so many bytes per second may write a checkpoint.
MOST_WRITTEN = 1e6
# A GPU that a process has opened has more memory in use.
LEAST_MEMORY = 100 << 20


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU in the last seconds, with the ranks that compute on it."""

    host: str
    gpu: GpuSample
    """The latest sample."""
    utilization: tuple[float, ...]
    ranks: tuple[RankSample, ...]
    """The samples of all its ranks."""

    @property
    def is_idle(self) -> bool:
        """Whether it did not compute, nor its ranks start or write."""
        return max(self.utilization) <= MOST_IDLE and self.is_judged

    @property
    def is_judged(self) -> bool:
        """Whether its ranks have started, and do not write."""
        return min(rank.age for rank in self.ranks) >= START_SECONDS and self.mean("written") < MOST_WRITTEN

    @property
    def is_active(self) -> bool:
        """Whether its ranks read or use a CPU."""
        return self.reads or self.mean("cpu") >= LEAST_CPU

    @property
    def reads(self) -> bool:
        """Whether its ranks read much."""
        return self.mean("input") >= LEAST_INPUT

    def mean(self, field: str) -> float:
        """Return the mean of a field of the samples of its ranks, per rank."""
        return float(mean(getattr(rank, field) / rank.size for rank in self.ranks))


def find_gpu_causes(history: History) -> list[Finding]:
    """Return the findings on GPUs."""
    hosts = history.hosts()
    if not any(samples[-1].gpus for samples in hosts.values()):
        return []
    findings = [finding for host, samples in hosts.items() for finding in find_throttled(host, samples[-WINDOW:])]
    recent = list_uses(history, ACTIVE_SECONDS)
    idle = {finding.ranks: finding for finding in find_idle(recent, ACTIVE_SECONDS, active=True)}
    idle |= {finding.ranks: finding for finding in find_idle(list_uses(history, IDLE_SECONDS), IDLE_SECONDS)}
    starved = find_starved(list_uses(history, STARVED_SECONDS), MOST_STARVED)
    if not starved and all(use.reads for use in recent):
        starved = find_starved(recent, MOST_IDLE)
    return [*findings, *idle.values(), *starved]


def find_throttled(host: str, samples: Sequence[HostSample]) -> Iterator[Finding]:
    """Yield a finding if heat, the power supply or the hardware lowers the clocks of a host's GPUs."""
    slow: list[tuple[float, GpuSample]] = []
    for gpus in _by_gpu(samples).values():
        slowed = [gpu for gpu in gpus if not THROTTLING.keys().isdisjoint(gpu.limits)]
        clocks = [gpu.clock for gpu in slowed if gpu.clock is not None]
        highest = gpus[-1].highest_clock
        often = len(slowed) >= MAJORITY * WINDOW
        if often and clocks and highest and mean(clocks) <= MOST_CLOCK * highest:
            slow.append((1 - mean(clocks) / highest, replace(slowed[-1], clock=mean(clocks))))
    if slow:
        severity, slowest = max(slow, key=lambda pair: pair[0])
        more = f"; the slowest of {len(slow)} such GPUs" if len(slow) > 1 else ""
        details = _describe_throttling(slowest) + more
        yield _finding(SlownessCause.GPU_THROTTLED, host, [gpu for _, gpu in slow], severity, details)


def _describe_throttling(gpu: GpuSample) -> str:
    cause = next(words for limit, words in THROTTLING.items() if limit in gpu.limits)
    temperature = "" if gpu.temperature is None else f", {gpu.temperature:.0f} °C"
    clocks = f"{(gpu.clock or 0) / MEGAHERTZ:.0f} of {(gpu.highest_clock or 0) / MEGAHERTZ:.0f} MHz"
    return f"GPU {gpu.number} is throttled by {cause}: {clocks}{temperature}"


def list_uses(history: History, seconds: float) -> list[GpuUse]:
    """Return the use of the GPUs of ranks in the last seconds; none of those with fewer samples."""
    by_rank = {
        rank: [sample for sample in samples if sample.time > history.time - seconds]
        for name, samples in history.ranks().items()
        for rank in parse_ranges(name)
    }
    uses = []
    for host, samples in history.hosts().items():
        if history.time - samples[0].time + samples[0].seconds < seconds:
            continue
        recent = [sample for sample in samples if sample.time > history.time - seconds]
        for gpus in _by_gpu(recent).values():
            utilization = tuple(gpu.utilization for gpu in gpus if gpu.utilization is not None)
            ranks = tuple(sample for rank in sorted(parse_ranges(gpus[-1].ranks)) for sample in by_rank.get(rank, ()))
            if len(utilization) >= max(LEAST_SAMPLES, MAJORITY * len(recent)) and ranks:
                uses.append(GpuUse(host, gpus[-1], utilization, ranks))
    return uses


def find_idle(uses: Sequence[GpuUse], seconds: float, *, active: bool = False) -> Iterator[Finding]:
    """Yield the GPUs that are idle while most of the others compute; with `active`, only those whose ranks are active.

    Of two GPUs, one is reported if its rank reads: the other one may work for both, as in a validation by one rank.
    """
    idle = [use for use in uses if use.is_idle]
    busy = [mean(use.utilization) for use in uses if mean(use.utilization) >= LEAST_BUSY]
    for use in idle:
        if active and not use.is_active:
            continue
        if len(busy) > len(idle) or (len(busy) == len(idle) and use.reads):
            idleness = f"GPU {use.gpu.number} is idle, {max(use.utilization):.0%} for {seconds:.0f} s"
            details = f"{idleness}, while the rank {_describe_work(use)}; {len(busy)} of {len(uses)} GPUs compute"
            yield _finding(SlownessCause.GPU_IDLE, use.host, [use.gpu], mean(busy), details)


def _describe_work(use: GpuUse) -> str:
    if use.reads:
        return f"reads {render_byte_rate(use.mean('input'))}"
    if use.mean("cpu") >= LEAST_CPU:
        return f"uses {use.mean('cpu'):.2f} CPUs"
    function = use.ranks[-1].function
    return "waits" if function == "-" else f"waits in {kernel_wait(function)}"


def find_starved(uses: Sequence[GpuUse], most: float) -> list[Finding]:
    """Return a finding per host if all GPUs compute at most a share of the time, and the ranks use CPUs."""
    if not uses or not all(use.is_judged and (use.gpu.memory_used or 0) >= LEAST_MEMORY for use in uses):
        return []
    if max(mean(use.utilization) for use in uses) > most or mean(use.mean("cpu") for use in uses) < LEAST_CPU:
        return []
    findings = []
    by_host: dict[str, list[GpuUse]] = {}
    for use in uses:
        by_host.setdefault(use.host, []).append(use)
    for host, own in by_host.items():
        share = mean(mean(use.utilization) for use in own)
        cpus, read = (mean(use.mean(field) for use in own) for field in ("cpu", "input"))
        work = f"each rank uses {cpus:.2f} CPUs and reads {render_byte_rate(read)}"
        details = f"GPUs compute {share:.0%} of the time, while {work}: the input pipeline is too slow"
        findings.append(_finding(SlownessCause.GPU_STARVED, host, [use.gpu for use in own], 1 - share, details))
    return findings


def _by_gpu(samples: Sequence[HostSample]) -> Mapping[int, list[GpuSample]]:
    """Return the samples of each GPU of a host that has ranks."""
    by_gpu: dict[int, list[GpuSample]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            if gpu.ranks:
                by_gpu.setdefault(gpu.number, []).append(gpu)
    return by_gpu


def _finding(cause: SlownessCause, host: str, gpus: Sequence[GpuSample], severity: float, details: str) -> Finding:
    ranks = render_ranges({rank for gpu in gpus for rank in parse_ranges(gpu.ranks)})
    return Finding(cause=cause, ranks=ranks, host=host, severity=round(severity, 3), details=details)
