"""The view of a node's process: the chain it is on, the processes it consists of, its traffic and its disk."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from chain.block import Id
from chain.genesis import Genesis
from chain.schema import format_time
from chain.signing import encode_id
from chain.store.rows import DATABASE
from node.clock import Clock
from node.p2p.transport.base import Transport
from node.pb import admin_pb2 as pb
from node.telemetry.processes import Processes
from node.version import get_version


class ProcessView:
    """Shows the process of one node, which started at `started_ms` and keeps its store at `path`."""

    def __init__(
        self,
        genesis: Genesis,
        me: Id,
        processes: Processes,
        transport: Transport,
        path: Path,
        *,
        clock: Clock,
        started_ms: int,
    ) -> None:
        self._genesis = genesis
        self._me = me
        self._processes = processes
        self._transport = transport
        self._path = path
        self._clock = clock
        self._started_ms = started_ms
        self._started_s = clock.monotonic()

    def show(self, name: str) -> pb.NodeStatus:
        """Returns this part of the status of the node, which is called `name`."""
        genesis, processes = self._genesis, self._processes
        counters = self._transport.counters().values()
        return pb.NodeStatus(
            id=encode_id(self._me),
            name=name,
            version=get_version(),
            chain_id=genesis.chain_id.hex(),
            chain_name=genesis.chain_name,
            time=format_time(self._clock.now_ms()),
            started_at=format_time(self._started_ms),
            uptime_s=self._clock.monotonic() - self._started_s,
            pid=os.getpid(),
            worker_pid=processes.worker_pid,
            miner_pids=processes.miner_pids,
            hashes=processes.miner.hashes,
            bytes_sent=sum(traffic.bytes_sent for traffic in counters),
            bytes_received=sum(traffic.bytes_received for traffic in counters),
        )

    def read_disk(self) -> tuple[int, int]:
        """Returns the bytes of the chain's database with its log, and the bytes free on the disk."""
        num_bytes = 0
        for name in (DATABASE, f"{DATABASE}-wal"):
            with suppress(FileNotFoundError):
                num_bytes += (self._path / name).stat().st_size
        return num_bytes, shutil.disk_usage(self._path).free
