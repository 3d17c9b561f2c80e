"""The monitor: passes a node's events to its metrics and its sinks. It loads only those that are configured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from node.boundary import Boundary
from node.config.node_config import NodeConfig
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.events import Events, NodeEvent
from node.telemetry.processes import Processes
from node.telemetry.sinks.base import SinkThread
from node.telemetry.sinks.point import make_point

if TYPE_CHECKING:
    from node.telemetry.metrics import CallTimes, NodeMetrics


def make_call_times(config: NodeConfig) -> CallTimes | None:
    """Makes the registry of call times; None where no metrics are served."""
    if not (config.http.is_on and config.http.metrics):
        return None
    from node.telemetry.metrics import CallTimes

    return CallTimes()


def make_metrics(calls: CallTimes, service: RoundService, context: NodeContext, name: str) -> NodeMetrics:
    """Makes the metrics of a node that people call `name`, and of its processes. Reads the store (`NodeMetrics`)."""
    from node.telemetry.metrics import NodeMetrics
    from node.telemetry.process_metrics import ProcessMetrics

    metrics = NodeMetrics(
        calls,
        service,
        context.genesis,
        context.store,
        me=context.me,
        name=name,
        miner=context.miner,
        transport=context.transport,
        bans=context.bans,
        boundary=context.boundary,
    )
    calls.registry.register(ProcessMetrics(Processes(context.trainer, context.miner), context.store.path))
    return metrics


class Monitor:
    """Passes every event to `metrics` and every round to `sinks`, which write it under the name `node`."""

    def __init__(
        self,
        events: Events,
        metrics: NodeMetrics | None,
        sinks: Sequence[SinkThread],
        node: str,
        boundary: Boundary | None = None,
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._sinks = sinks
        self._node = node
        self._boundary = boundary or Boundary()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="monitor")
            if self._metrics is not None:
                group.create_task(self._metrics.run(), name="lag")

    async def _follow(self) -> None:
        async with aclosing(self._events.follow(0)) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                with self._boundary.around("monitor"):
                    self._tell(event)

    def _tell(self, event: NodeEvent) -> None:
        if self._metrics is not None:
            self._metrics.on_event(event)
        if event.kind == "training" and self._sinks:
            point = make_point(event.data, self._node, event.at_ms)
            for sink in self._sinks:
                sink.put(point)
