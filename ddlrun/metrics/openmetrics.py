"""The latest samples in the text format of OpenMetrics, as Prometheus reads it."""

from collections.abc import Iterator, Sequence

from ddlrun.metrics.gauges import GAUGES, Gauge, GaugeValue, list_values
from ddlrun.metrics.history import History

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render_openmetrics(history: History, run: str) -> str:
    """Render the latest samples of a run."""
    by_gauge: dict[Gauge, list[GaugeValue]] = {gauge: [] for gauge in GAUGES}
    for value in list_values(history, run):
        by_gauge[value.gauge].append(value)
    lines = [line for gauge, values in by_gauge.items() for line in _render_gauge(gauge, values)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _render_gauge(gauge: Gauge, values: Sequence[GaugeValue]) -> Iterator[str]:
    yield f"# TYPE {gauge.name} gauge"
    if gauge.unit:
        yield f"# UNIT {gauge.name} {gauge.unit}"
    yield f"# HELP {gauge.name} {gauge.help}"
    for value in values:
        text = ",".join(f'{name}="{_escape(label)}"' for name, label in value.labels.items())
        yield f"{gauge.name}{{{text}}} {value.value}"


def _escape(label: str) -> str:
    r"""Escape the value of a label.

    >>> _escape('a"b')
    'a\\"b'
    """
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
