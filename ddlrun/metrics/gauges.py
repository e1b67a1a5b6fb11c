"""Gauges: the metrics of ranks and hosts, and their values in the latest samples of a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddlrun.metrics.diagnosis import diagnose
from ddlrun.metrics.gpu_samples import ClockLimit, GpuSample
from ddlrun.metrics.history import History
from ddlrun.metrics.samples import HostSample, NicSample, RankSample

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric, and the field of a sample that is its value."""

    name: str
    unit: str
    """The last part of the name; empty without a unit."""
    field: str
    help: str


RANK_GAUGES = (
    Gauge("ddlrun_rank_cpus", "", "cpu", "CPUs that are busy with the rank"),
    Gauge("ddlrun_rank_system_cpus", "", "system", "CPUs that are busy in the kernel for the rank"),
    Gauge("ddlrun_rank_queued_threads", "", "queue", "Threads that are ready to run and have no CPU"),
    Gauge("ddlrun_rank_threads", "", "threads", "Threads"),
    Gauge("ddlrun_rank_blocked_threads", "", "blocked", "Threads that wait for input or output in the kernel"),
    Gauge("ddlrun_rank_memory_bytes", "bytes", "rss", "Resident memory"),
    Gauge("ddlrun_rank_anonymous_memory_bytes", "bytes", "anonymous", "Resident memory without files"),
    Gauge("ddlrun_rank_page_faults_per_second", "", "faults", "Page faults that wait for storage"),
    Gauge("ddlrun_rank_context_switches_per_second", "", "switches", "Times that a thread gets a CPU"),
    Gauge("ddlrun_rank_input_bytes_per_second", "", "input", "Bytes that system calls read"),
    Gauge("ddlrun_rank_read_bytes_per_second", "", "read", "Bytes from storage"),
    Gauge("ddlrun_rank_written_bytes_per_second", "", "written", "Bytes to storage"),
    Gauge("ddlrun_rank_throttled_ratio", "ratio", "throttled", "Share of CPU quota periods that were used up"),
    Gauge("ddlrun_rank_reclaims_per_second", "", "reclaims", "Times that a cgroup reaches its limit of memory"),
)
HOST_GAUGES = (
    Gauge("ddlrun_host_cpus", "", "cpu", "CPUs that are busy with any process"),
    Gauge("ddlrun_host_cores", "", "cores", "CPUs"),
    Gauge("ddlrun_host_memory_bytes", "bytes", "memory", "Memory"),
    Gauge("ddlrun_host_available_memory_bytes", "bytes", "available", "Memory that programs can still get"),
    Gauge("ddlrun_host_swapped_in_bytes_per_second", "", "swapped_in", "Bytes from swap space"),
    Gauge("ddlrun_host_retransmitted_segments_per_second", "", "retransmitted", "TCP segments that were sent again"),
)
NIC_GAUGES = (
    Gauge("ddlrun_nic_received_bytes_per_second", "", "received", "Bytes that the network interface receives"),
    Gauge("ddlrun_nic_sent_bytes_per_second", "", "sent", "Bytes that the network interface sends"),
    Gauge("ddlrun_nic_errors_per_second", "", "errors", "Errors and dropped packets of the network interface"),
)
GPU_GAUGES = (
    Gauge("ddlrun_gpu_utilization_ratio", "ratio", "utilization", "Share of the time in which a kernel ran"),
    Gauge("ddlrun_gpu_memory_used_bytes", "bytes", "memory_used", "GPU memory in use"),
    Gauge("ddlrun_gpu_memory_bytes", "bytes", "memory", "GPU memory"),
    Gauge("ddlrun_gpu_power_watts", "watts", "power", "Power that the GPU draws"),
    Gauge("ddlrun_gpu_power_limit_watts", "watts", "power_limit", "Power that the GPU may draw"),
    Gauge("ddlrun_gpu_temperature_celsius", "celsius", "temperature", "Temperature of the GPU"),
    Gauge("ddlrun_gpu_clock_hertz", "hertz", "clock", "Clock of the multiprocessors"),
    Gauge("ddlrun_gpu_highest_clock_hertz", "hertz", "highest_clock", "Highest clock of the multiprocessors"),
)
GPU_LIMIT = Gauge("ddlrun_gpu_clock_limited", "", "limits", "1 where the cause of the label lowers the clock, else 0")
FINDING = Gauge("ddlrun_finding_severity_ratio", "ratio", "severity", "Share of time that is lost to a cause")
GAUGES = (*RANK_GAUGES, *HOST_GAUGES, *NIC_GAUGES, *GPU_GAUGES, GPU_LIMIT, FINDING)


@dataclass(frozen=True, slots=True)
class GaugeValue:
    """The value of a gauge for a rank, a host, a network interface or a finding."""

    gauge: Gauge
    labels: Labels
    value: float


def list_values(history: History, run: str) -> list[GaugeValue]:
    """Return the values of all gauges in the latest samples of a run."""
    ranks = [samples[-1] for samples in history.ranks(1).values()]
    hosts = [samples[-1] for samples in history.hosts(1).values()]
    values = list[GaugeValue]()
    for rank in ranks:
        values += _read_fields(RANK_GAUGES, {"run": run, "rank": rank.ranks, "host": rank.host}, rank)
    for host in hosts:
        values += _read_fields(HOST_GAUGES, {"run": run, "host": host.host}, host)
        for nic in host.nics:
            values += _read_fields(NIC_GAUGES, {"run": run, "host": host.host, "nic": nic.name}, nic)
        for gpu in host.gpus:
            values += _read_gpu({"run": run, "host": host.host, "gpu": str(gpu.number), "ranks": gpu.ranks}, gpu)
    for finding in diagnose(history):
        labels = {"run": run, "cause": finding.cause.value, "ranks": finding.ranks, "host": finding.host}
        values.append(GaugeValue(FINDING, labels, finding.severity))
    return values


def _read_gpu(labels: Labels, gpu: GpuSample) -> Iterator[GaugeValue]:
    yield from _read_fields(GPU_GAUGES, labels, gpu)
    for limit in ClockLimit:
        yield GaugeValue(GPU_LIMIT, {**labels, "limit": limit.value}, float(limit.value in gpu.limits))


def _read_fields(
    gauges: tuple[Gauge, ...], labels: Labels, sample: RankSample | HostSample | NicSample | GpuSample
) -> Iterator[GaugeValue]:
    values = ((gauge, getattr(sample, gauge.field)) for gauge in gauges)
    return (GaugeValue(gauge, labels, value) for gauge, value in values if value is not None)
