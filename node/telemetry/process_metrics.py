"""Metrics of a node's processes and of its disk, for Prometheus: what they use, and what is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chain.store.rows import DATABASE
from node.errors import NodeError
from node.host.procfs import read_cpu_s, read_memory
from node.telemetry.processes import Processes


class ProcessMetrics(Collector):
    """Measures the processes on request, and the disk that holds the store at `path`. A restarted process counts from
    zero."""

    def __init__(self, processes: Processes, path: Path) -> None:
        self._processes = processes
        self._path = path

    def collect(self) -> Iterable[Metric]:
        cpu = CounterMetricFamily(
            "fednode_process_cpu_seconds", "Seconds of CPU that a process of this node has used.", labels=("process",)
        )
        memory = GaugeMetricFamily(
            "fednode_process_resident_bytes", "Memory of a process of this node, shared pages too.", labels=("process",)
        )
        for name, pid in self._processes.get_all():
            try:
                cpu_s, resident = read_cpu_s(pid), read_memory(pid)["resident"]
            except NodeError:  # it has just ended
                continue
            cpu.add_metric((name,), cpu_s)
            memory.add_metric((name,), resident)
        yield cpu
        yield memory
        free = shutil.disk_usage(self._path).free
        yield GaugeMetricFamily("fednode_disk_free_bytes", "Room left where the node keeps its data.", value=free)
        sizes = (file.stat().st_size for name in (DATABASE, f"{DATABASE}-wal") if (file := self._path / name).exists())
        yield GaugeMetricFamily("fednode_database_bytes", "The chain's database and its log.", value=sum(sizes))
