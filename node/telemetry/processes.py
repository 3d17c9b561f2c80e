"""The processes of a node: the daemon itself, its worker and its miners, as far as they are processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.consensus.mining.miner import Miner, MinerProcess
from node.training.trainer import Trainer
from node.training.worker import WorkerProcess


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """The processes of one node at the time of the call. A trainer or a miner within the daemon has none."""

    trainer: Trainer
    miner: Miner

    @property
    def worker_pid(self) -> int | None:
        return self.trainer.pid if isinstance(self.trainer, WorkerProcess) else None

    @property
    def miner_pids(self) -> Sequence[int]:
        return self.miner.pids if isinstance(self.miner, MinerProcess) else ()

    def get_all(self) -> Iterator[tuple[str, int]]:
        """Yields the name and the process id of each."""
        yield "daemon", os.getpid()
        if (worker_pid := self.worker_pid) is not None:
            yield "worker", worker_pid
        yield from ((f"miner{i}", pid) for i, pid in enumerate(self.miner_pids))
