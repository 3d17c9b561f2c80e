"""A node's Prometheus metrics agree with its own state, whatever its peers do."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chain.block import Phase
from chain.signing import encode_id
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.events import NodeEvent
from node.telemetry.metrics import SETTLED_EVERY, CallTimes, NodeMetrics
from node.telemetry.monitor import Monitor, make_metrics
from node.telemetry.sinks.base import SinkThread
from node.telemetry.sinks.jsonl import METRICS, JsonlSink
from support.data.chains import make_digest, make_keys
from support.faults.liar import lying
from support.federation.cluster import Cluster, cluster
from support.federation.virtual_time import run_virtual
from support.machines.scrape import NAMES, Scraped, list_expressions, list_unknown


@dataclass
class Observed:
    """The federation, and the account that is kept of its first member."""

    net: Cluster
    metrics: NodeMetrics
    service: RoundService

    def scrape(self) -> Scraped:
        return Scraped.read(self.metrics.encode("")[0].decode())

    def count_records(self) -> int:
        return len(list(self.net["node0"].get_context().store.rounds(1, self.service.tip.height)))


@asynccontextmanager
async def observed(
    path: Path, *names: str, sinks: tuple[SinkThread, ...] = (), **options: Any
) -> AsyncIterator[Observed]:
    contexts: list[NodeContext] = []

    def make_service(context: NodeContext) -> RoundService:
        contexts.append(context)
        return make_round_service(context)

    async with cluster(path, 4, start=(), **options) as net:
        for name in names or net.nodes:
            net.start(name, make_service)
        service = net["node0"].service
        assert service is not None
        metrics = make_metrics(CallTimes(), service, contexts[0], "hospital-a")
        running = asyncio.create_task(Monitor(service.events, metrics, sinks, "hospital-a").run())
        try:
            yield Observed(net, metrics, service)
        finally:
            running.cancel()
            await asyncio.wait({running})


@pytest.mark.parametrize(
    ("privacy", "shown"),
    [
        ({"epsilon": 2.5}, 2.5),
        ({"epsilon": None, "guessable": 3, "set_aside": False}, math.inf),
        ({"epsilon": 2.5, "guessable": 3, "set_aside": True}, 2.5),
    ],
)
def test_epsilon_is_infinite_while_noise_is_counted_that_can_be_guessed(
    tmp_path: Path, privacy: dict[str, Any], shown: float
) -> None:
    async def story() -> None:
        async with observed(tmp_path) as one:
            await one.net.wait_for_height(2)
            ((_, record),) = one.net["node0"].get_context().store.rounds(1, 1)
            one.metrics.on_event(NodeEvent(1, 0, "training", {**record, "privacy": privacy}))
            assert one.scrape().get("fednode_privacy_epsilon") == shown

    run_virtual(story())


def test_every_promised_name_is_there_with_its_type_and_labels(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path) as one:
            await one.net.wait_for_height(3)
            scraped = one.scrape()
            assert {name: scraped.types.get(name) for name in NAMES} == {
                name: kind for name, (kind, _) in NAMES.items()
            }
            for name, (kind, labels) in NAMES.items():
                if name != "fednode_rpc_seconds":  # in memory nobody calls
                    found = scraped.labels[name + "_count" if kind == "histogram" else name]
                    assert found == labels, name

    run_virtual(story())


def test_counts_are_those_of_the_chain(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path, rounds=12) as one:
            await one.net.wait_for_height(12)
            await one.net.wait_for(
                lambda: one.scrape().get("fednode_round_phase_seconds_count", phase="apply") == 12, "12"
            )
            scraped, node0 = one.scrape(), one.net["node0"]
            blocks = [node0.get_block(height) for height in range(13)]
            contributions = sum(len(block.contributions) for block in blocks)
            assert scraped.get("fednode_chain_height") == scraped.get("fednode_round") == 12
            assert scraped.get("fednode_chain_blocks_total", result="finalised") == 12
            assert scraped.get("fednode_contributions_total", result="accepted", reason="") == contributions
            assert scraped.sum("fednode_contributions_total") == 12 * 4
            passed_ms = blocks[12].header.time_ms - blocks[1].header.time_ms
            assert scraped.get("fednode_block_interval_seconds_count") == 11  # block 0 was not mined
            assert scraped.get("fednode_block_interval_seconds_sum") == pytest.approx(passed_ms / 1000)
            assert (scraped.get("fednode_rounds_done"), scraped.get("fednode_stalled")) == (1, 0)
            assert scraped.get("fednode_eval_accuracy", split="test") == 0.5
            settled = {f"{height}": blocks[height].id.hex()[:16] for height in (0, SETTLED_EVERY)}
            chain = one.net.genesis.chain_id.hex()[:8]
            for height, block in settled.items():
                assert scraped.get("fednode_chain_settled_info", chain=chain, height=height, block=block) == 1
            assert scraped.get("fednode_peers", state="connected") == 3
            counters = one.net.network.find(node0.key.id)
            assert counters is not None
            for peer, traffic in counters.counters().items():
                short = encode_id(peer)[:8]
                assert scraped.get("fednode_peer_bytes_total", peer=short, direction="sent") == traffic.bytes_sent > 0

    run_virtual(story())


def test_a_restart_goes_on_from_what_is_stored(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path, rounds=2) as one:
            await one.net.wait_for(lambda: one.count_records() == 2, "both records")
            context = one.net["node0"].get_context()
            scraped = Scraped.read(
                make_metrics(CallTimes(), make_round_service(context), context, "x").encode("")[0].decode()
            )
            assert scraped.get("fednode_chain_height") == 2
            assert scraped.get("fednode_train_loss") == 0
            assert scraped.get("fednode_eval_accuracy", split="test") == 0.5
            assert scraped.get("fednode_chain_blocks_total", result="finalised") == 0
            assert scraped.sum("fednode_chain_settled_info", height="0") == 1

    run_virtual(story())


def test_what_a_liar_does_is_counted(tmp_path: Path) -> None:
    """Two votes for one slot, a candidate whose aggregate is another, and bytes that are no message."""

    async def story() -> None:
        honest = ("node0", "node1", "node2")
        async with observed(tmp_path, *honest, train_s=0.2) as one, lying(one.net, "node3") as liar:
            for text in ("a", "b"):
                liar.send(liar.make_vote(Phase.PREVOTE, make_digest(text)))
            await one.net.wait_for(lambda: one.scrape().get("fednode_evidence_total", kind="vote") == 1, "evidence")
            contributions: list[Any] = []

            def has_enough() -> bool:
                contributions[:] = liar.get_contributions().values()
                return len(contributions) >= 3

            await one.net.wait_for(has_enough, "contributions")
            liar.send(liar.make_candidate(contributions, aggregate=make_digest("c")))
            await one.net.wait_for(
                lambda: one.scrape().get("fednode_chain_blocks_total", result="rejected") == 1, "an objection"
            )
            await one.net.wait_for_height(one.net["node0"].height + 2, *honest)
            scraped = one.scrape()
            assert scraped.get("fednode_evidence_total", kind="vote") == 1
            assert scraped.get("fednode_chain_blocks_total", result="rejected") == 1  # not once more by the record
            assert scraped.get("fednode_messages_rejected_total", reason="signed_twice") == 1
            assert scraped.get("fednode_messages_rejected_total", reason="aggregate") == 1
            assert scraped.get("fednode_contributions_total", result="left_out", reason="not_sent") >= 1

    run_virtual(story())


def test_a_member_that_has_gone_is_missing_and_its_quorum_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path) as one:
            await one.net.wait_for_height(1)
            await one.net.crash("node3")
            await asyncio.sleep(2)  # until the others say no more that they are connected with it
            assert one.scrape().get("fednode_peers", state="missing") == 1
            assert one.scrape().get("fednode_stalled") == 0
            await one.net.crash("node2")
            await one.net.wait_for(lambda: one.service.stall is not None, "a stall")
            assert one.scrape().get("fednode_stalled") == 1
            assert one.scrape().get("fednode_peers", state="connected") == 1

    run_virtual(story())


def test_every_round_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / METRICS

    async def story() -> None:
        sink = SinkThread("jsonl", JsonlSink(file))
        async with observed(tmp_path, rounds=3, sinks=(sink,)) as one:
            await one.net.wait_for(lambda: one.count_records() == 3, "all records")
            await asyncio.sleep(0.1)
        sink.close(60)

    run_virtual(story())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["round"], line["height"], line["node"]) for line in lines] == [
        (n, n, "hospital-a") for n in (1, 2, 3)
    ]
    for line in lines:
        assert (line["loss"], line["accuracy"]) == (0.0, 0.5)
        assert line["seconds"]["wall"] == pytest.approx(sum(line["seconds"][phase] for phase in line["seconds"]) / 2)
        assert line["bytes_sent"]["vote"] > 0


def test_the_rules_and_the_dashboard_ask_for_nothing_that_a_node_does_not_tell(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path) as one:
            await one.net.wait_for_height(2)
            scraped = one.scrape()
            labels = {**scraped.labels, "fednode_rpc_seconds_bucket": frozenset({"method", "code", "le"})}
            scraped = Scraped(scraped.types, labels, scraped.values)
            found = {place: list_unknown(expression, scraped) for place, expression in list_expressions()}
            assert len(found) > 20
            assert {place: unknown for place, unknown in found.items() if unknown} == {}

    run_virtual(story())


def test_an_expression_that_asks_for_something_else_is_found_out() -> None:
    scraped = Scraped({}, {"fednode_round": frozenset({"a"})}, {})
    assert list_unknown('sum by (a, b) (fednode_round{a="fednode_x", job="y"}) / fednode_rounds', scraped) == [
        "fednode_rounds",
        "b",
    ]


def test_a_guest_that_is_connected_counts_as_a_guest(tmp_path: Path) -> None:
    async def story() -> None:
        async with observed(tmp_path) as one:
            guest = make_keys(1, "guest")[0].id
            one.service.peers.on_guests({guest: "hospital-e"})
            peer = one.service.peers.get(guest)
            assert peer is not None
            peer.connected = True
            assert one.scrape().get("fednode_peers", state="guest") == 1
            assert one.scrape().get("fednode_peers", state="observer") == 0

    run_virtual(story())
