"""Gauges for an OpenTelemetry collector, over HTTP. Where it is say the standard variables of OpenTelemetry."""

from __future__ import annotations

import math

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from node.sinks.base import Point, SinkFailed
from node.sinks.point import list_scalars

SEND_S = 10.0


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
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(timeout=SEND_S), export_interval_millis=math.inf)
        self._provider = MeterProvider(resource=resource, metric_readers=[reader], shutdown_on_exit=False)
        self._meter: Meter = self._provider.get_meter("fednode")

    def write(self, point: Point) -> None:
        for name, value in [("number", float(point["round"])), *list_scalars(point)]:
            self._meter.create_gauge(f"fednode.round.{name.replace('/', '.')}").set(value)
        if not self._provider.force_flush(timeout_millis=SEND_S * 1000):
            raise SinkFailed("the collector did not take it")

    def close(self) -> None:
        self._provider.shutdown(timeout_millis=1000)
