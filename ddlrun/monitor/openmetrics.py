"""The latest samples in the text format of OpenMetrics, as Prometheus reads it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.monitor.diagnosis import diagnose
from ddlrun.monitor.history import History
from ddlrun.monitor.samples import HostSample, NicSample, RankSample

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Labels = Mapping[str, str]


class Gauge(NamedTuple):
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
FINDING = Gauge("ddlrun_finding_severity_ratio", "ratio", "severity", "Share of time that is lost to a cause")


def render_openmetrics(history: History, run: str) -> str:
    """Render the latest samples of a run."""
    ranks = [samples[-1] for samples in history.ranks(1).values()]
    hosts = [samples[-1] for samples in history.hosts(1).values()]
    findings = [
        ({"run": run, "cause": finding.cause.value, "ranks": finding.ranks, "host": finding.host}, finding.severity)
        for finding in diagnose(history)
    ]
    nics = [({"run": run, "host": host.host, "nic": nic.name}, nic) for host in hosts for nic in host.nics]
    lines = [
        *_render(RANK_GAUGES, [({"run": run, "rank": rank.ranks, "host": rank.host}, rank) for rank in ranks]),
        *_render(HOST_GAUGES, [({"run": run, "host": host.host}, host) for host in hosts]),
        *_render(NIC_GAUGES, nics),
        *_render_gauge(FINDING, findings),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _render(
    gauges: Sequence[Gauge], samples: Sequence[tuple[Labels, RankSample | HostSample | NicSample]]
) -> Iterator[str]:
    for gauge in gauges:
        yield from _render_gauge(gauge, [(labels, getattr(sample, gauge.field)) for labels, sample in samples])


def _render_gauge(gauge: Gauge, values: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# TYPE {gauge.name} gauge"
    if gauge.unit:
        yield f"# UNIT {gauge.name} {gauge.unit}"
    yield f"# HELP {gauge.name} {gauge.help}"
    for labels, value in values:
        text = ",".join(f'{name}="{_escape(label)}"' for name, label in labels.items())
        yield f"{gauge.name}{{{text}}} {value}"


def _escape(label: str) -> str:
    r"""Escape the value of a label.

    >>> _escape('a"b')
    'a\\"b'
    """
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
