"""Gauges for an OpenTelemetry collector, over HTTP. Where it is say the standard variables of OpenTelemetry."""

from __future__ import annotations

import logging

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from node.sinks.base import Point, SinkFailed
from node.sinks.point import list_scalars

SEND_S = 10.0

logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)  # said here, and not every round


class OtlpSink:
    """What a point holds becomes gauges `fednode.round.seconds.train` and so on; each round is sent as it ends."""

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
        self._provider = MeterProvider(resource=resource, metric_readers=[self._reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("fednode")

    def write(self, point: Point) -> None:
        for name, value in [("number", float(point["round"])), *list_scalars(point)]:
            self._meter.create_gauge(f"fednode.round.{name.replace('/', '.')}").set(value)
        measured = self._reader.get_metrics_data()
        if measured is not None and self._exporter.export(measured) is not MetricExportResult.SUCCESS:
            raise SinkFailed("the collector does not answer, or refuses")

    def close(self) -> None:
        self._provider.shutdown(timeout_millis=1000)
        self._exporter.shutdown(timeout_millis=1000)
