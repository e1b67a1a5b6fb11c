"""The text and JSON of ddlrun top: ranks in the order of their troubles, and their hosts, in up to 80 columns."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ddlrun.metrics.diagnosis import diagnose, summarize
from ddlrun.metrics.findings import Finding
from ddlrun.metrics.gpu_samples import GpuSample
from ddlrun.metrics.history import History
from ddlrun.metrics.samples import HostSample, RankSample
from ddlrun.ranges import parse_ranges
from ddlrun.units import render_byte_rate, render_bytes
from ddlrun.wording import counted, kernel_wait

COLUMNS = 80
BARS = "▁▂▃▄▅▆▇█"
SPARKS = 10
# Column -> its width, and < or > for the side to which it is aligned.
WIDTHS = {
    "RANK": "<6", "HOST": "<11", "CPU %": ">6", "BEFORE": "<10", "MEMORY": ">8", "GPU %": ">5", "STATE": "<16",
    "READ/s": ">8", "QUEUE%": ">6",
}  # fmt: skip
# The width of the column STATE where there is less room.
NARROW_STATE = "<10"
# The columns that a narrow terminal does not show, in this order.
LESS_IMPORTANT = ("BEFORE", "READ/s", "MEMORY", "QUEUE%", "HOST")
MOST_FINDINGS = 4
# A host with GPUs has two lines.
MOST_HOST_LINES = 4
# States of ps -> words.
STATES = {"R": "runs", "S": "waits", "D": "blocked", "T": "stopped", "t": "debugged", "Z": "ended", "I": "idle"}


def render_top(
    title: str, started: float | None, history: History, most_rows: int | None = None, columns: int = COLUMNS
) -> list[str]:
    """Return the lines to show of a run, up to `most_rows` for ranks; None: all.

    The title is its name and state; it `started` so many seconds after 1970, None: not known.
    """
    if not history.time:
        return [title, "no samples: sampling starts after 2 s; --sample-interval 0 disables it"]
    columns = min(columns, COLUMNS)
    findings = diagnose(history)
    seconds = "" if started is None else f", {history.time - started:.0f} s after its start"
    head = (f"{title}{seconds}", f"limit: {summarize(history, findings)}")
    wrapped = [part for line in head for part in textwrap.wrap(line, columns, subsequent_indent="  ")]
    return [line[:columns] for line in (*wrapped, *render_table(history, findings, most_rows, columns))]


def top_record(folder: str, history: History) -> dict[str, Any]:
    """Return the latest samples of a run folder and the findings as JSON can carry them."""
    findings = diagnose(history)
    ranks = history.ranks()
    return {
        "run_dir": folder,
        "time": history.time,
        "limit": summarize(history, findings),
        "findings": [
            {"cause": it.cause.value, "ranks": it.ranks, "host": it.host, "severity": it.severity, "text": it.text}
            for it in findings
        ],
        "ranks": [asdict(ranks[name][-1]) for name in sort_by_trouble(ranks, findings)],
        "hosts": [asdict(samples[-1]) for samples in history.hosts(1).values()],
    }


def render_table(
    history: History, findings: Sequence[Finding], most_rows: int | None = None, columns: int = COLUMNS
) -> list[str]:
    """Return the lines: the findings but the first, up to `most_rows` ranks (None: all), and the hosts."""
    ranks, gpus = history.ranks(), history.gpu_utilization()
    names = sort_by_trouble(ranks, findings)
    lines = [f"also: {finding.text}"[:COLUMNS] for finding in findings[1:MOST_FINDINGS]]
    widths = _fit(columns, gpus=bool(gpus))
    cells = (_rank_cells(ranks[name], gpus.get(name)) for name in names[:most_rows])
    lines += ["", *(_row(row, widths) for row in ({name: name for name in widths}, *cells))]
    if most_rows is not None and len(names) > most_rows:
        lines.append(f"... and {len(names) - most_rows} more")
    hosts = [samples[-1] for samples in history.hosts(1).values()]
    shown = hosts[: MOST_HOST_LINES // (2 if any(host.gpus for host in hosts) else 1)]
    lines += ["", *(line for host in shown for line in _host_lines(host))]
    more = len(hosts) - len(shown)
    return [*lines, f"... and {counted(more, 'more host')}"] if more else lines


def sort_by_trouble(ranks: Mapping[str, Sequence[RankSample]], findings: Sequence[Finding]) -> list[str]:
    """Return the names of ranks: those with the most severe finding first, then those with the longest queue."""
    severity = {
        (finding.host, rank): finding.severity for finding in reversed(findings) for rank in parse_ranges(finding.ranks)
    }

    def key(name: str) -> tuple[float, float, int]:
        last = ranks[name][-1]
        first = min(parse_ranges(name))
        return -severity.get((last.host, first), 0.0), -round(last.queue, 1), first

    return sorted(ranks, key=key)


def _fit(columns: int, *, gpus: bool) -> dict[str, str]:
    """Return the columns of the table that fit, with their widths."""
    widths = {name: width for name, width in WIDTHS.items() if gpus or name != "GPU %"}
    if gpus or columns < COLUMNS:
        widths["STATE"] = NARROW_STATE
    for name in LESS_IMPORTANT:
        if sum(int(width[1:]) + 1 for width in widths.values()) - 1 > columns:
            del widths[name]
    return widths


def _row(cells: Mapping[str, str], widths: Mapping[str, str]) -> str:
    return " ".join(f"{cells.get(name, '')[: int(width[1:])]:{width}}" for name, width in widths.items()).rstrip()


def describe_state(sample: RankSample) -> str:
    """Return the state of a rank in words."""
    return STATES.get(sample.state, sample.state) if sample.function == "-" else kernel_wait(sample.function)


def _rank_cells(samples: Sequence[RankSample], gpu: float | None) -> dict[str, str]:
    last = samples[-1]
    return {
        "RANK": last.ranks,
        "HOST": last.host,
        "CPU %": f"{last.cpu * 100:.0f}",
        "BEFORE": spark_line([sample.cpu for sample in samples]),
        "MEMORY": render_bytes(last.rss),
        "GPU %": "-" if gpu is None else f"{gpu * 100:.0f}",
        "STATE": describe_state(last),
        "READ/s": render_bytes(last.read),
        "QUEUE%": f"{last.queue * 100:.0f}",
    }


def spark_line(values: Sequence[float]) -> str:
    """Render the last values as bars; the tallest is the largest of them, and at least 1.

    >>> spark_line([0, 0.5, 1])
    '▁▅█'
    """
    largest = max(1.0, *values)
    return "".join(BARS[round(value / largest * (len(BARS) - 1))] for value in values[-SPARKS:])


def _host_lines(host: HostSample) -> Iterator[str]:
    used = host.memory - host.available
    line = f"{host.host}: {host.cpu:.1f} of {host.cores} CPUs, {render_bytes(used)} of {render_bytes(host.memory)}"
    nics = (f"{nic.name} in {render_byte_rate(nic.received)} out {render_byte_rate(nic.sent)}" for nic in host.nics)
    yield ", ".join([line, *nics])[:COLUMNS]
    if host.gpus:
        yield f"{host.host}: {_describe_gpus(host.gpus)}"[:COLUMNS]


def _describe_gpus(gpus: Sequence[GpuSample]) -> str:
    shares = [f"{gpu.utilization * 100:.0f}" for gpu in gpus if gpu.utilization is not None]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    heat = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    used = sum(gpu.memory_used or 0 for gpu in gpus)
    parts = [f"GPUs {render_bytes(used)} of {render_bytes(sum(gpu.memory or 0 for gpu in gpus))}"]
    parts += [f"{sum(watts):.0f} W"] if watts else []
    parts += [f"up to {max(heat):.0f} °C"] if heat else []
    parts += [f"{' '.join(shares)} % busy"] if shares else []
    return ", ".join(parts)
