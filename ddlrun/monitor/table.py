"""The table of ddlrun top: ranks in the order of their troubles, and their hosts, in lines of up to 80 columns."""

from collections.abc import Mapping, Sequence

from ddlrun.monitor.diagnosis import Finding
from ddlrun.monitor.history import History
from ddlrun.monitor.samples import HostSample, RankSample
from ddlrun.units import render_bytes

COLUMNS = 80
BARS = "▁▂▃▄▅▆▇█"
SPARKS = 10
HEADER = "RANK   HOST         CPU % BEFORE       MEMORY STATE              READ/s QUEUE%"
MOST_FINDINGS = 4
MOST_HOSTS = 4
# States of ps -> words.
STATES = {"R": "runs", "S": "waits", "D": "blocked", "T": "stopped", "t": "debugged", "Z": "ended", "I": "idle"}


def render_table(history: History, findings: Sequence[Finding], most_rows: int | None = None) -> list[str]:
    """Return the lines: the other findings, the ranks in trouble first, and the hosts.

    Args:
        history: The samples.
        findings: The findings; the first of them is left out, as it is in the summary.
        most_rows: The number of lines for ranks; None: all of them.
    """
    ranks = history.ranks()
    names = sort_by_trouble(ranks, findings)
    lines = [f"also: {finding.text}"[:COLUMNS] for finding in findings[1:MOST_FINDINGS]]
    lines += ["", HEADER, *(_rank_line(ranks[name]) for name in names[:most_rows])]
    if most_rows is not None and len(names) > most_rows:
        lines.append(f"... and {len(names) - most_rows} more")
    hosts = list(history.hosts(1).values())
    lines += ["", *(_host_line(samples[-1]) for samples in hosts[:MOST_HOSTS])]
    return [*lines, f"... and {len(hosts) - MOST_HOSTS} more hosts"] if len(hosts) > MOST_HOSTS else lines


def sort_by_trouble(ranks: Mapping[str, Sequence[RankSample]], findings: Sequence[Finding]) -> list[str]:
    """Return the names of ranks: those with the most severe finding first, then those with the longest queue."""
    severity = {
        (finding.host, rank): finding.severity for finding in reversed(findings) for rank in _expand(finding.ranks)
    }

    def key(name: str) -> tuple[float, float, int]:
        last = ranks[name][-1]
        first = _expand(name)[0]
        return -severity.get((last.host, first), 0.0), -round(last.queue, 1), int(first)

    return sorted(ranks, key=key)


def _expand(ranks: str) -> list[str]:
    """Return the single ranks of a list.

    >>> _expand("0-2,7")
    ['0', '1', '2', '7']
    """
    spans = [part.partition("-") for part in ranks.split(",") if part]
    return [str(rank) for first, _, last in spans for rank in range(int(first), int(last or first) + 1)]


def _rank_line(samples: Sequence[RankSample]) -> str:
    last = samples[-1]
    state = STATES.get(last.state, last.state) if last.function == "-" else last.function
    cells = (
        f"{last.ranks:<6.6}",
        f"{last.host:<11.11}",
        f"{last.cpu * 100:>6.0f}",
        f"{spark_line([sample.cpu for sample in samples]):<10}",
        f"{render_bytes(last.rss):>8}",
        f"{state:<16.16}",
        f"{render_bytes(last.read):>8}",
        f"{last.queue * 100:>6.0f}",
    )
    return " ".join(cells)[:COLUMNS].rstrip()


def spark_line(values: Sequence[float]) -> str:
    """Render the last values as bars; the tallest is the largest of them, and at least 1.

    >>> spark_line([0, 0.5, 1])
    '▁▅█'
    """
    largest = max(1.0, *values)
    return "".join(BARS[round(value / largest * (len(BARS) - 1))] for value in values[-SPARKS:])


def _host_line(host: HostSample) -> str:
    used = host.memory - host.available
    line = f"{host.host}: {host.cpu:.1f} of {host.cores} CPUs, {render_bytes(used)} of {render_bytes(host.memory)}"
    nics = (f"{nic.name} in {render_bytes(nic.received)}/s out {render_bytes(nic.sent)}/s" for nic in host.nics)
    return ", ".join([line, *nics])[:COLUMNS]
