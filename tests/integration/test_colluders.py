"""Two and three of ten that act as one: what they can do to an honest member, and to everybody's rounds."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chain import codec
from chain.block import ZERO, Contribution, Id, Phase, Vote
from node.p2p.transport.base import MessageKind
from node.training.exchange import Exchange
from node.training.progress import OnProgress
from node.training.trainer import NOTHING_TAKEN, Trained, Trainer
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual

N, QUORUM = 10, 7
VICTIM = "node0"
pytestmark = pytest.mark.outer

HASH_RATE = 10_000.0  # of each member
TRAIN_S = 0.02
COLLECT_S = 2.0
POLL_S = 0.002


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class SlowTrainer(ScriptedTrainer):
    """Takes 0.6 to 1.0 `collect_s` longer than the others."""

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        await asyncio.sleep(COLLECT_S * Random(f"{self.seed} {height}").uniform(0.6, 1.0))
        return await super().train(height, beacon, num_iterations=num_iterations, shared=shared)


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of some rounds: how many hold the victim's contribution, how many colluders mined, virtual seconds of a
    round, how many views the heights took beyond the first, and at how many of the honest the victim is awaited."""

    kept: int
    mined: int
    round_s: float
    later_views: int
    awaited_at: int


@dataclass(slots=True)
class Colluder:
    """One of those that act as one, and what it has heard of the height in hand."""

    liar: Liar
    victim: Id
    turn: int
    heard: dict[Id, Contribution] = field(default_factory=dict)
    votes: list[Vote] = field(default_factory=list)

    def listen(self) -> None:
        liar, height = self.liar, self.liar.height
        while liar.heard:
            _, message = liar.heard.popleft()
            if message.kind is MessageKind.CONTRIBUTION:
                contribution = codec.decode_contribution(message.data)
                self.heard[contribution.author] = contribution
            elif message.kind is MessageKind.VOTE:
                self.votes.append(codec.decode_vote(message.data))
        self.heard = {author: each for author, each in self.heard.items() if each.height == height}
        self.votes = [vote for vote in self.votes if vote.height == height]

    def count_prevotes(self, view: int) -> Counter[Id]:
        """By block, of all that it has heard of in this view."""
        self.listen()
        found = {vote.voter: vote.block_id for vote in self.votes if vote.view == view and vote.phase is Phase.PREVOTE}
        return Counter(found.values())

    def is_over(self, view: int, block_id: Id | None, least: int) -> bool:
        """Whether so many have prevoted for this block, or for any, or others have gone on to the next view."""
        tally = self.count_prevotes(view)
        most = max(tally.values(), default=0) if block_id is None else tally[block_id]
        return most >= least or (bool(tally) and bool(self.count_prevotes(view + 1)))

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 (virtual)
            await asyncio.sleep(POLL_S)

    async def wait_for(self, least: int, *, without: Collection[Id] = ()) -> list[Contribution]:
        """The contributions of others, without some, once there are so many."""
        while True:
            self.listen()
            heard = [each for author, each in self.heard.items() if author not in without]
            if len(heard) >= least:
                return heard
            await asyncio.sleep(POLL_S)

    def contribute(self) -> Contribution:
        own = self.liar.make_contribution()
        self.liar.send(own)
        return own

    async def mine(self, contributions: Sequence[Contribution]) -> None:
        """Sends the block once it is found, and its vote for it."""
        liar = self.liar
        mining_s = Random(f"{liar.name} {liar.height}").expovariate(liar.net.hash_rate / liar.tip.next_difficulty)
        await asyncio.sleep(mining_s)
        block = liar.make_candidate(contributions)
        liar.send(block)
        liar.send(liar.make_vote(Phase.PREVOTE, block.id))


Plot = Callable[[Colluder], Coroutine[Any, Any, None]]  # of each at one height


async def measure(
    path: Path, num_liars: int, plot: Plot, rounds: int, *, is_slow: bool = False, hash_rate: float = HASH_RATE
) -> Figures:
    """The victim is slow, too, where it `is_slow`."""
    honest = [f"node{i}" for i in range(N - num_liars)]
    trainers: list[Trainer] = [(SlowTrainer if is_slow and i == 0 else ScriptedTrainer)(i, TRAIN_S) for i in range(N)]
    async with (
        cluster(path, N, start=honest, trainers=trainers, hash_rate=hash_rate) as net,
        AsyncExitStack() as stack,
    ):
        liars = [await stack.enter_async_context(lying(net, f"node{i}")) for i in range(len(honest), N)]
        first = net["node1"].height + 1
        plotting = [asyncio.create_task(go_on(Colluder(liar, net.id(VICTIM), i), plot)) for i, liar in enumerate(liars)]
        began_s = asyncio.get_running_loop().time()
        await net.wait_for_height(first + rounds, *honest, timeout_s=100_000.0)
        took_s = asyncio.get_running_loop().time() - began_s
        for task in plotting:
            task.cancel()
        await asyncio.wait(plotting)
        net.check_agreement()
        return sum_up(net, honest, range(first, first + rounds), took_s)


def sum_up(net: Cluster, honest: Sequence[str], heights: range, took_s: float) -> Figures:
    store, victim = net[honest[1]].store, net.id(VICTIM)
    assert store is not None
    ids = {net.id(name) for name in honest}
    blocks, views = [], 0
    for height in heights:
        stored = store.get_block(height)
        assert stored is not None
        assert stored.certificate is not None
        blocks.append(stored.block)
        views += stored.certificate.view
    return Figures(
        kept=sum(victim in {contribution.author for contribution in block.contributions} for block in blocks),
        mined=sum(block.header.miner not in ids for block in blocks),
        round_s=took_s / len(heights),
        later_views=views,
        awaited_at=sum(victim not in net[name].get_service().credits.get_overdrawn() for name in honest[1:]),
    )


async def go_on(colluder: Colluder, plot: Plot) -> None:
    """The plot at each height, until that is final."""
    while True:
        height = colluder.liar.height
        acting = asyncio.create_task(plot(colluder))
        while colluder.liar.height == height:
            await asyncio.sleep(POLL_S)
            if acting.done():
                acting.result()
        acting.cancel()
        await asyncio.wait({acting})


# ---- plots


async def leave_out(colluder: Colluder) -> None:
    """It contributes, mines a body of all but the victim once all are there, and votes for that alone."""
    own = colluder.contribute()
    await colluder.wait_for(N - 1)
    await colluder.mine([*await colluder.wait_for(N - 2, without=[colluder.victim]), own])


async def leave_out_at_once(colluder: Colluder) -> None:
    """The same as soon as there are enough without the victim."""
    own = colluder.contribute()
    await colluder.mine([*await colluder.wait_for(QUORUM - 1, without=[colluder.victim]), own])


async def wait_for_nobody_else(colluder: Colluder) -> None:
    """The same once all but the victim are there."""
    own = colluder.contribute()
    await colluder.mine([*await colluder.wait_for(N - 2, without=[colluder.victim]), own])


async def vote_never(colluder: Colluder) -> None:
    """It contributes, and neither mines nor votes."""
    colluder.contribute()


async def vote_in_turns(colluder: Colluder) -> None:
    """Each third height, another than the others, it votes never; else it votes for what most have voted for."""
    colluder.contribute()
    if colluder.liar.height % 3 == colluder.turn:
        return
    for view in count():
        await colluder.wait_until(lambda: bool(colluder.count_prevotes(view)))  # noqa: B023
        best = colluder.count_prevotes(view).most_common(1)[0][0]
        colluder.liar.send(colluder.liar.make_vote(Phase.PREVOTE, best, view=view))
        await colluder.wait_until(lambda: colluder.is_over(view, best, QUORUM - 1))  # noqa: B023
        colluder.liar.send(colluder.liar.make_vote(Phase.PRECOMMIT, best, view=view))


async def split(colluder: Colluder) -> None:
    """Where its prevote completes a quorum, it shows it to some alone, others at each height, and precommits nothing:
    these are locked, and the others are not."""
    liar = colluder.liar
    colluder.contribute()
    shown = [f"node{(liar.height + i) % 7}" for i in range(3)]
    for view in count():
        await colluder.wait_until(lambda: colluder.is_over(view, None, QUORUM - 3))  # noqa: B023
        best, prevotes = colluder.count_prevotes(view).most_common(1)[0]
        if prevotes >= QUORUM - 3:
            liar.send(liar.make_vote(Phase.PREVOTE, best, view=view), *shown)
            liar.send(liar.make_vote(Phase.PRECOMMIT, ZERO, view=view))


# ---- what comes of them


@pytest.mark.parametrize("num_liars", [2, 3])
@pytest.mark.parametrize(
    ("plot", "is_slow", "rounds"),
    [(leave_out, False, 200), (leave_out_at_once, True, 40), (wait_for_nobody_else, True, 40)],
)
def test_who_is_left_out_by_those_that_collude_keeps_its_rounds_and_its_credit(
    tmp_path: Path, num_liars: int, plot: Plot, is_slow: bool, rounds: int
) -> None:
    found = run_virtual(measure(tmp_path, num_liars, plot, rounds, is_slow=is_slow))
    print(f"{plot.__name__}, {num_liars} of {N}, {rounds} rounds: {found}")
    assert found.kept >= 0.95 * rounds
    assert found.awaited_at == N - num_liars - 1


@pytest.mark.parametrize("num_liars", [2, 3])
def test_where_mining_takes_long_they_leave_out_no_more_than_their_share(tmp_path: Path, num_liars: int) -> None:
    """Mining takes a second here, in the mean of all ten, and a body that leaves somebody out is held for 0.1 s."""
    rounds = 30
    found = run_virtual(measure(tmp_path, num_liars, leave_out, rounds, hash_rate=6.4))
    print(f"leave_out, {num_liars} of {N}, {rounds} rounds, slow mining: {found}")
    share = num_liars / N
    assert rounds - found.kept <= share * rounds + 2 * sqrt(rounds * share * (1 - share))


@pytest.mark.parametrize("num_liars", [2, 3])
@pytest.mark.parametrize("plot", [vote_never, vote_in_turns, split])
def test_votes_that_are_withheld_in_turns_or_shown_to_some_stop_no_round(
    tmp_path: Path, num_liars: int, plot: Plot
) -> None:
    rounds = 40
    found = run_virtual(measure(tmp_path, num_liars, plot, rounds))
    print(f"{plot.__name__}, {num_liars} of {N}, {rounds} rounds: {found}")
    assert found.kept == rounds
    assert found.round_s < 2.0  # a second view's, and some
