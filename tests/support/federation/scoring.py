"""A federation whose first member is asked to score what was contributed, over memory and in virtual time.

    run(tmp_path, story, trainers=make_trainers(Scoring()))

`story` gets the federation after its last round.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.admin.json_view import to_json
from node.admin.offline import OfflineNode
from node.admin.view import NodeView
from node.admin.wiring import make_view
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.pb import admin_pb2 as pb
from node.training.trainer import RunTask, Trainer, TrainerInfo
from support.federation.asked import make_book, make_config
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual

LONG_S = 600.0  # of virtual time


@dataclass
class ViewedFederation:
    """A federation, and the view of its first member."""

    net: Cluster
    service: RoundService
    context: NodeContext
    view: NodeView

    async def score(self, number: int, within_s: float = LONG_S) -> pb.Round:
        """Returns the scores of a round as the view shows them, which can be written as JSON."""
        shown = await self.view.get_round(number, within_s)
        json.dumps(to_json(shown), allow_nan=False)
        return shown


@asynccontextmanager
async def asking(path: Path, n: int = 4, *, rounds: int = 2, **settings: Any) -> AsyncIterator[ViewedFederation]:
    """Runs a federation to its last round, until all nodes have written their records."""
    contexts: list[NodeContext] = []

    def make_service(context: NodeContext) -> RoundService:
        contexts.append(context)
        return make_round_service(context)

    async with cluster(path, n, rounds=rounds, start=(), **settings) as net:
        for name in net.nodes:
            net.start(name, make_service)
        await net.wait_for_height(rounds)
        stores = [node.store for node in net.nodes.values()]
        await net.wait_for(lambda: all(store and store.get_round(rounds) for store in stores), "the last records")
        service = net["node0"].service
        assert service is not None
        view = make_view(service, contexts[0], make_config(path), make_book())
        yield ViewedFederation(net, service, contexts[0], view)


def run(
    path: Path, story: Callable[[ViewedFederation], Coroutine[Any, Any, None]], n: int = 4, **settings: Any
) -> None:
    async def main() -> None:
        async with asking(path, n, **settings) as fed:
            await story(fed)

    run_virtual(main())


def get_numbers(shown: pb.Round, what: str) -> dict[str, float]:
    """Returns the known numbers, by member."""
    return {score.name: getattr(score, what) for score in shown.scores if score.HasField(what)}


def read_offline(path: Path, number: int, within_s: float | None = None) -> pb.Round:
    with OfflineNode(path / "node0") as node:
        return node.get_round(number, within_s)


class Scoring(ScriptedTrainer):
    """A trainer that keeps the requests for scores, and answers when allowed to, with losses that count the
    requests."""

    def __init__(self, num_test: int = 1) -> None:
        super().__init__(0)
        self.num_test = num_test
        self.asked: list[tuple[int, int]] = []
        self.at_work = self.most_at_work = 0
        self.answers: Callable[[int], Sequence[float] | Exception] = lambda count: [1.0 + count, 1.0]
        self.may_answer = asyncio.Semaphore(1 << 20)

    async def start(self, task: RunTask) -> TrainerInfo:
        return TrainerInfo(1, self.num_test, "cpu", 1, 1)

    async def score(self, height: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await self.may_answer.acquire()
            await asyncio.sleep(0.01)
        finally:
            self.at_work -= 1
        self.asked.append((height, len(aggregates)))
        answer = self.answers(len(self.asked))
        if isinstance(answer, Exception):
            raise answer
        return answer


def make_trainers(first: Trainer, n: int = 4) -> Sequence[Trainer]:
    return [first, *(ScriptedTrainer(i) for i in range(1, n))]
