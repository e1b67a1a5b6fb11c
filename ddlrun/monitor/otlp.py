"""Export of a run's samples to OpenTelemetry, by its own library."""

import sys
from collections.abc import Sequence
from itertools import groupby

from ddlrun.errors import InputError, UnreachableError
from ddlrun.monitor.gauges import GaugeValue

# Unit of OpenMetrics -> that of OpenTelemetry.
UNITS = {"": "", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel", "hertz": "Hz"}
PACKAGE = "opentelemetry-exporter-otlp-proto-http"


class OtlpExporter:
    """Sends values to the endpoint that the variables OTEL_EXPORTER_OTLP_... name."""

    def __init__(self) -> None:
        """Load the library. Raises InputError where it is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415 - optional
            from opentelemetry.sdk.metrics import export  # noqa: PLC0415 - optional
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - optional
        except ImportError as error:
            raise InputError(f"--to otlp: {error}; {sys.executable} -m pip install {PACKAGE}") from error
        self._types = export
        self._exporter = metric_exporter.OTLPMetricExporter()
        self._resource, self._scope = Resource.create({"service.name": "ddlrun"}), InstrumentationScope("ddlrun")

    def export(self, time: float, values: Sequence[GaugeValue]) -> None:
        """Send the values at a time, in seconds since 1970; the library repeats what fails for some seconds.

        Raises UnreachableError.
        """
        types, now = self._types, round(time * 1e9)
        metrics = []
        for gauge, group in groupby(sorted(values, key=_gauge_name), key=lambda value: value.gauge):
            points = [types.NumberDataPoint(dict(labels), now, now, value) for _, labels, value in group]
            metrics.append(types.Metric(gauge.name, gauge.help, UNITS[gauge.unit], types.Gauge(points)))
        scopes = [types.ScopeMetrics(self._scope, metrics, "")]
        data = types.MetricsData([types.ResourceMetrics(self._resource, scopes, "")])
        if self._exporter.export(data) is not types.MetricExportResult.SUCCESS:
            raise UnreachableError("the endpoint for OTLP did not take the metrics; set OTEL_EXPORTER_OTLP_ENDPOINT")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def _gauge_name(value: GaugeValue) -> str:
    return value.gauge.name
