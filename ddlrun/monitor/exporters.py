"""Exporters: the samples of a run for OpenTelemetry, TensorBoard and MLflow, by the libraries of these programs."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Protocol

from ddlrun.errors import InputError, UnreachableError
from ddlrun.monitor.gauges import GaugeValue

# Unit of OpenMetrics -> that of OpenTelemetry.
OTLP_UNITS = {"": "", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel", "hertz": "Hz"}
# MLflow accepts so many values at once, and no other characters in the names of metrics.
MOST_MLFLOW_VALUES = 1000
FOREIGN_CHARACTERS = r"[^\w./: -]"


class Exporter(Protocol):
    """A destination of gauges."""

    def export(self, time: float, values: Sequence[GaugeValue]) -> None:
        """Export the values at a time, in seconds since 1970. Raises UnreachableError."""

    def close(self) -> None:
        """Write what is left."""


def scalar_name(value: GaugeValue) -> str:
    """Return the name of a gauge with its labels, for programs without labels.

    >>> from ddlrun.monitor.gauges import Gauge
    >>> scalar_name(GaugeValue(Gauge("cpus", "", "", ""), {"run": "toka", "rank": "0,2", "host": "n1"}, 1.0))
    'cpus/0_2/n1'
    """
    labels = (label for name, label in value.labels.items() if name != "run" and label)
    return re.sub(FOREIGN_CHARACTERS, "_", "/".join([value.gauge.name, *labels]), flags=re.ASCII)


class OtlpExporter:
    """Sends values to the endpoint that the variables OTEL_EXPORTER_OTLP_... name."""

    def __init__(self, _run: str) -> None:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.metrics import export  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - optional

        self._types = export
        self._exporter = metric_exporter.OTLPMetricExporter()
        self._resource, self._scope = Resource.create({"service.name": "ddlrun"}), InstrumentationScope("ddlrun")

    def export(self, time: float, values: Sequence[GaugeValue]) -> None:
        """Send the values; the library repeats what fails for some seconds."""
        types, now = self._types, round(time * 1e9)
        metrics = []
        for gauge, group in groupby(sorted(values, key=_gauge_name), key=lambda value: value.gauge):
            points = [types.NumberDataPoint(dict(labels), now, now, value) for _, labels, value in group]
            metrics.append(types.Metric(gauge.name, gauge.help, OTLP_UNITS[gauge.unit], types.Gauge(points)))
        scopes = [types.ScopeMetrics(self._scope, metrics, "")]
        data = types.MetricsData([types.ResourceMetrics(self._resource, scopes, "")])
        if self._exporter.export(data) is not types.MetricExportResult.SUCCESS:
            raise UnreachableError("the endpoint for OTLP did not take the metrics; set OTEL_EXPORTER_OTLP_ENDPOINT")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


class TensorBoardExporter:
    """Writes event files to runs/RUN, as scripts write theirs to runs/."""

    def __init__(self, run: str) -> None:
        from tensorboard.summary import Writer  # noqa: PLC0415 - optional

        self._writer = Writer(f"runs/{run}")
        self._start: float | None = None

    def export(self, time: float, values: Sequence[GaugeValue]) -> None:
        """Write the values; the step is the number of seconds since the first ones."""
        self._start = time if self._start is None else self._start
        for value in values:
            self._writer.add_scalar(
                scalar_name(value), value.value, int(time - self._start), wall_time=time, description=value.gauge.help
            )
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class MlflowExporter:
    """Logs metrics to the MLflow run of the variable MLFLOW_RUN_ID, or to a new one; other variables are MLflow's."""

    def __init__(self, run: str) -> None:
        import mlflow  # noqa: PLC0415 - optional
        from mlflow.environment_variables import MLFLOW_RUN_ID  # noqa: PLC0415 - optional

        self._mlflow = mlflow
        variable: Any = MLFLOW_RUN_ID  # its methods have no types
        given = variable.get()
        with self._errors():
            self._client = mlflow.MlflowClient()
            self._run_id = given or mlflow.start_run(run_name=run).info.run_id
        self._is_own = not given
        self._start: float | None = None

    def export(self, time: float, values: Sequence[GaugeValue]) -> None:
        """Log the values; the step is the number of seconds since the first ones."""
        self._start = time if self._start is None else self._start
        step, now, metric = int(time - self._start), round(time * 1000), self._mlflow.entities.Metric
        metrics = [metric(scalar_name(value), value.value, now, step) for value in values]
        with self._errors():
            for first in range(0, len(metrics), MOST_MLFLOW_VALUES):
                self._client.log_batch(self._run_id, metrics=metrics[first : first + MOST_MLFLOW_VALUES])

    def close(self) -> None:
        """End the run, unless it is another program's."""
        if self._is_own:
            self._mlflow.end_run()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn MLflow's errors into ours."""
        try:
            yield
        except self._mlflow.MlflowException as error:
            raise UnreachableError(f"MLflow: {str(error).rstrip('.')}; set MLFLOW_TRACKING_URI") from error


def _gauge_name(value: GaugeValue) -> str:
    return value.gauge.name


EXPORTERS: Mapping[str, Callable[[str], Exporter]] = {
    "otlp": OtlpExporter,
    "tensorboard": TensorBoardExporter,
    "mlflow": MlflowExporter,
}

PACKAGES = {
    "otlp": "opentelemetry-exporter-otlp-proto-http", "tensorboard": "tensorboard", "mlflow": "mlflow-skinny",
}  # fmt: skip


def open_exporter(name: str, run: str) -> Exporter:
    """Return the exporter of a name in EXPORTERS. Raises InputError without its packages, or a folder for its files."""
    try:
        return EXPORTERS[name](run)
    except ImportError as error:
        raise InputError(f"--to {name}: {error}; {sys.executable} -m pip install {PACKAGES[name]}") from error
    except OSError as error:
        raise InputError(f"--to {name}: {error}; change to a folder in which you may create files") from error
