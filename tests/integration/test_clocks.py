"""Clocks that are wrong, and members that lie about the time: what hangs on a clock is held and looked at again, so
that nobody's clock stops the others (PROTOCOL §3)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from chain.block import ZERO, Block, Body, Digest, Header, Phase
from chain.codec import compute_body_digest
from chain.tip import Tip
from node.consensus import wiring
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_parts
from support.data.chains import mine
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, cluster
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
SLOW = {"difficulty": 100_000, "min": 100_000, "max": 100_000, "target_ms": 200}  # 10 s for each at the usual rate


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


async def vote_for_ever(net: Cluster, liar: Liar, block: Block, *names: str) -> None:
    """For the block in every view, to those named; nothing in the first, so that there is a second."""
    said = set[int]()
    while liar.height == block.height:
        for name in names:
            service = net[name].service
            view = service.machine.view if service is not None and service.machine is not None else 0
            if view not in said:
                said.add(view)
                for phase in (Phase.PREVOTE, Phase.PRECOMMIT) if view == 0 else (Phase.PREVOTE,):
                    liar.send(liar.make_vote(phase, block.id if view else ZERO, view=view), *names)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("limit_ms", [10_000, 3_600_000])
def test_a_candidate_at_the_edge_of_what_clocks_allow_locks_nobody_for_good(tmp_path: Path, limit_ms: int) -> None:
    """One sees it 25 ms too early; the other two, in time, precommit it."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, pow=SLOW) as net, lying(net, "node3") as liar:
            await net.wait_for(lambda: len(liar.get_contributions()) == 3, "the honest to contribute")
            block = liar.make_candidate(liar.get_contributions().values(), ahead_ms=limit_ms + 20)
            liar.send(block, "node0")
            await asyncio.sleep(0.025)
            liar.send(block, "node1", "node2")
            voting = asyncio.create_task(vote_for_ever(net, liar, block, "node1", "node2"))
            await net.wait_for_height(block.height + 2, *HONEST, timeout_s=600.0)
            voting.cancel()
            net.check_agreement()

    run_virtual(story())


async def measure_pace_s(path: Path, skews_ms: dict[str, int], rounds: int = 24) -> float:
    """Seconds a round, with some members' clocks set ahead or behind."""
    async with cluster(path, 4, train_s=0.2) as net:
        for name, skew_ms in skews_ms.items():
            net[name].clock.skew_ms = skew_ms
        await net.wait_for_height(4)
        began_s = asyncio.get_running_loop().time()
        await net.wait_for_height(4 + rounds)
        net.check_agreement()
        return (asyncio.get_running_loop().time() - began_s) / rounds


@pytest.mark.parametrize("skew_s", [300, *(pytest.param(skew_s, marks=pytest.mark.slow) for skew_s in (60, -300))])
@pytest.mark.slow
def test_one_clock_that_is_wrong_does_not_slow_the_others(tmp_path: Path, skew_s: int) -> None:
    usual_s = run_virtual(measure_pace_s(tmp_path / "right", {}))
    wrong_s = run_virtual(measure_pace_s(tmp_path / "wrong", {"node3": skew_s * 1000}))
    print(f"{usual_s:.3f} s a round, with one clock {skew_s} s off {wrong_s:.3f}")
    assert wrong_s < 2 * usual_s


class Claimer(RoundService):
    """Finds its blocks at once, and says that it took no time, or as long as it is told to."""

    claim_ms = 0

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wiring, "mine_block", self._claim)
            super().__init__(make_round_parts(context))

    async def _claim(self, tip: Tip, body: Body, aggregate: Digest, **_: object) -> Block:
        time_ms = max(self.context.clock.now_ms(), tip.header.time_ms + 1 + self.claim_ms)
        header = Header(
            version=tip.state.protocol,
            height=tip.height + 1,
            prev=tip.id,
            body=compute_body_digest(body),
            aggregate=aggregate,
            state_next=tip.state.digest,
            miner=self.context.me,
            start_ms=time_ms - self.claim_ms,
            time_ms=time_ms,
            difficulty=tip.next_difficulty,
        )
        return mine(self.context.genesis, header, body.contributions, self.context.key)


@pytest.mark.parametrize("claim_ms", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_one_miners_word_does_not_make_mining_harder(tmp_path: Path, claim_ms: int) -> None:
    """It has every second block or more. The others take 20 ms, which is what mining should take."""

    async def story() -> None:
        rules = {"difficulty": 200, "min": 3, "max": 12_800, "target_ms": 20}
        async with cluster(tmp_path, 4, start=HONEST, pow=rules, hash_rate=10_000.0) as net:
            net.start("node3", type("Claiming", (Claimer,), {"claim_ms": claim_ms}))
            await net.wait_for_height(50)
            blocks = [net["node0"].get_block(height) for height in range(1, 51)]
            won = sum(block.header.miner == net.id("node3") for block in blocks)
            print(f"{won} of 50 blocks; difficulties {sorted({block.header.difficulty for block in blocks})}")
            assert won > 20
            assert max(block.header.difficulty for block in blocks) <= 400

    run_virtual(story())


@pytest.mark.slow
def test_everybody_names_the_member_whose_clock_is_wrong(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            net["node2"].clock.skew_ms = 300_000
            line = "is 300.0 s ahead of the median of 4 members' clocks"
            expected = {f"node{i}": [f"the clock of {'this node' if i == 2 else 'node2'} {line}"] for i in range(4)}

            def get_told() -> dict[str, list[str]]:
                services = {name: node.service for name, node in net.nodes.items()}
                return {name: each.clocks.describe_wrong() for name, each in services.items() if each is not None}

            await net.wait_for(lambda: get_told() == expected, "all to name node2", timeout_s=20.0)
            net["node2"].clock.skew_ms = 0
            await net.wait_for(lambda: not any(get_told().values()), "nobody to be named", timeout_s=60.0)

    run_virtual(story())
