"""Export of a run's samples to OpenTelemetry, by its own library, which need not be installed."""

from collections.abc import Sequence
from itertools import groupby

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ddlrun.errors import UnreachableError
from ddlrun.monitor.gauges import GaugeValue

# Unit of OpenMetrics -> that of OpenTelemetry.
UNITS = {"": "", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel", "hertz": "Hz"}


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
        for gauge, group in groupby(sorted(values, key=_gauge_name), key=lambda value: value.gauge):
            points = [export.NumberDataPoint(dict(value.labels), now, now, value.value) for value in group]
            metrics.append(export.Metric(gauge.name, gauge.help, UNITS[gauge.unit], export.Gauge(points)))
        scopes = [export.ScopeMetrics(self._scope, metrics, "")]
        data = export.MetricsData([export.ResourceMetrics(self._resource, scopes, "")])
        if self._exporter.export(data) is not export.MetricExportResult.SUCCESS:
            raise UnreachableError("the endpoint for OTLP did not take the metrics; set OTEL_EXPORTER_OTLP_ENDPOINT")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def _gauge_name(value: GaugeValue) -> str:
    return value.gauge.name
