"""Gauges for an OpenTelemetry collector, over HTTP. The standard variables of OpenTelemetry name its address."""

from __future__ import annotations

import logging

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from node.telemetry.sinks.base import Point, SinkFailed
from node.telemetry.sinks.point import list_scalars

SEND_S = 10.0

_LOG = logging.getLogger("opentelemetry.exporter.otlp")
_UNITS = {"beta_s": "s", "train/seconds": "s", "train/alpha_s": "s", "payload_bytes": "By", "pulled_bytes": "By"}
_UNITS_BELOW = {"seconds": "s", "bytes_sent": "By"}  # by the first part of a number's place


class _Reasons(logging.Handler):
    """Keeps the exporter's last error, which it only logs, so that a failure is reported once and not every round."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class OtlpSink:
    """The sink for OpenTelemetry: the values of a point become gauges `fednode.round.seconds.train` and so on; each
    round is sent as it ends."""

    def __init__(self, *, node: str, node_id: str, chain_id: str) -> None:
        resource = Resource.create(
            {
                "service.name": "fednode",
                "service.instance.id": node_id,
                "fednode.node": node,
                "fednode.chain_id": chain_id,
            }
        )
        self._reader = InMemoryMetricReader()
        self._exporter = OTLPMetricExporter(timeout=SEND_S)
        self._reasons = _Reasons()
        _LOG.propagate = False
        _LOG.addHandler(self._reasons)
        self._provider = MeterProvider(resource=resource, metric_readers=[self._reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("fednode")

    def write(self, point: Point) -> None:
        for name, value in [("number", float(point["round"])), *list_scalars(point)]:
            self._meter.create_gauge(f"fednode.round.{name.replace('/', '.')}", _get_unit(name)).set(value)
        measured = self._reader.get_metrics_data()
        self._reasons.last = None
        if measured is not None and self._exporter.export(measured) is not MetricExportResult.SUCCESS:
            raise SinkFailed(self._reasons.last or "the collector does not answer, or refuses")

    def close(self) -> None:
        self._provider.shutdown(timeout_millis=1000)
        self._exporter.shutdown(timeout_millis=1000)
        _LOG.removeHandler(self._reasons)


def _get_unit(name: str) -> str:
    """Returns the unit in UCUM, as OpenTelemetry has it; empty for counts and shares."""
    return _UNITS.get(name) or _UNITS_BELOW.get(name.partition("/")[0], "")
