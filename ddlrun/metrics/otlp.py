"""Export of a run's samples to OpenTelemetry, by its own library, which need not be installed."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ddlrun.errors import UnreachableError
from ddlrun.metrics.gauges import GaugeValue, list_values
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import MetricsReader

# Unit of OpenMetrics -> that of OpenTelemetry.
UNITS = {"": "", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel", "hertz": "Hz"}
POLL_SECONDS = 1.0


class OtlpExporter:
    """Sends values to the endpoint that the variables OTEL_EXPORTER_OTLP_... name."""

    def __init__(self) -> None:
        self._exporter = OTLPMetricExporter()
        self._resource, self._scope = Resource.create({"service.name": "ddlrun"}), InstrumentationScope("ddlrun")

    def export(self, time: float, values: Sequence[GaugeValue]) -> None:
        """Send the values at a time, in seconds since 1970; the library repeats what fails for some seconds.

        Raises UnreachableError.
        """
        now = round(time * 1e9)
        metrics = []
        for gauge, group in groupby(sorted(values, key=lambda value: value.gauge.name), key=lambda value: value.gauge):
            points = [export.NumberDataPoint(dict(value.labels), now, now, value.value) for value in group]
            metrics.append(export.Metric(gauge.name, gauge.help, UNITS[gauge.unit], export.Gauge(points)))
        scopes = [export.ScopeMetrics(self._scope, metrics, "")]
        data = export.MetricsData([export.ResourceMetrics(self._resource, scopes, "")])
        if self._exporter.export(data) is not export.MetricExportResult.SUCCESS:
            raise UnreachableError("the endpoint for OTLP did not take the metrics; set OTEL_EXPORTER_OTLP_ENDPOINT")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def follow_values(path: str, name: str, may_run: Callable[[], bool]) -> Iterator[tuple[float, list[GaugeValue]]]:
    """Yield each time of samples in a file with the values of gauges, those of the past first, until the run ends.

    `may_run` returns False once the run has ended.
    """
    history, runs = History(), True
    with closing(MetricsReader(path, tail=sys.maxsize)) as reader:
        while runs:
            runs = may_run()
            for moment, samples in groupby(reader.read(), key=lambda sample: sample.time):
                if moment > history.time:  # a file that was thinned out is read again
                    history.add(samples)
                    yield moment, list_values(history, name)
            time.sleep(POLL_SECONDS if runs else 0)
