"""Metrics of a node's processes and of its disk, for Prometheus: what they use of the machine, and what is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chain.store.rows import DATABASE
from node.consensus.context import NodeContext
from node.consensus.miner import MinerProcess
from node.errors import NodeError
from node.host.procfs import read_cpu_s, read_memory
from node.training.worker import WorkerProcess


class ProcessMetrics(Collector):
    """Looks at the daemon, its worker and its miners when somebody asks. One started anew counts from zero."""

    def __init__(self, context: NodeContext) -> None:
        self._c = context

    def collect(self) -> Iterable[Metric]:
        cpu = CounterMetricFamily(
            "fednode_process_cpu_seconds", "Seconds of CPU that a process of this node has used.", labels=("process",)
        )
        memory = GaugeMetricFamily(
            "fednode_process_resident_bytes", "Memory of a process of this node, shared pages too.", labels=("process",)
        )
        for name, pid in self._list_processes():
            try:
                cpu_s, resident = read_cpu_s(pid), read_memory(pid)["resident"]
            except NodeError:  # it has just ended
                continue
            cpu.add_metric((name,), cpu_s)
            memory.add_metric((name,), resident)
        yield cpu
        yield memory
        path = self._c.store.path
        yield GaugeMetricFamily(
            "fednode_disk_free_bytes", "Room left where the node keeps its data.", value=shutil.disk_usage(path).free
        )
        sizes = (file.stat().st_size for name in (DATABASE, f"{DATABASE}-wal") if (file := path / name).exists())
        yield GaugeMetricFamily("fednode_database_bytes", "The chain's database and its log.", value=sum(sizes))

    def _list_processes(self) -> Iterator[tuple[str, int]]:
        yield "daemon", os.getpid()
        trainer, miner = self._c.trainer, self._c.miner
        if isinstance(trainer, WorkerProcess) and trainer.pid is not None:
            yield "worker", trainer.pid
        if isinstance(miner, MinerProcess):
            yield from ((f"miner{i}", pid) for i, pid in enumerate(miner.pids))
