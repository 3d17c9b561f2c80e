"""Every attack a member can make, one by one: it is refused, counted, shown, and changes nothing for the others."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from chain.block import ZERO, Phase
from chain.evidence import make_evidence
from chain.signing import encode_id, verify
from chain.store.signed_slots import get_block_digests
from ml.payload import decode_arrays
from node.admin.wiring import make_view
from node.cli.federation.peers import describe_clocks, describe_not_awaited, describe_refusals
from node.cli.federation.rounds import describe_round
from node.ledger.reader import Ledger
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message
from node.pb import admin_pb2 as pb
from support.data.chains import make_digest, make_keys
from support.faults.attacks import ATTACKS, Attack
from support.faults.liar import Liar, lying, make_arrays, make_message
from support.federation.asked import make_book, make_config
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.sharing import get_trainer, make_list, sharing
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
AT, LAST = 3, 4  # the height the liar lies at, and the last that is compared
SETTINGS: dict[str, Any] = {
    "train_s": 0.2,
    "network": {"latency_s": (0.001, 0.001), "fifo": True},  # the same times whatever else is said
    "pow": {"difficulty": 64, "min": 1, "max": 2**32, "target_ms": 100},
}


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


async def wait_until_level(net: Cluster, height: int) -> None:
    await net.wait_for(lambda: all(net[name].height == height for name in HONEST), f"all at height {height}")


def get_outcome(net: Cluster, what: str) -> Sequence[object]:
    """The same for all the honest: their blocks, or what these are made of."""
    net.check_agreement()
    blocks = [net["node0"].get_block(height) for height in range(1, LAST + 1)]
    if what == "blocks":
        return [block.id for block in blocks]
    return [(block.header.aggregate, [c.author for c in block.contributions]) for block in blocks]


async def lie(net: Cluster, liar: Liar, attack: Attack | None) -> None:
    await wait_until_level(net, AT - 1)
    if attack is not None:
        await attack.act(net, liar)
    await net.wait_for_height(LAST - 1, *HONEST)
    for name in HONEST:
        trainer = net[name].trainer
        assert isinstance(trainer, ScriptedTrainer)
        trainer.train_s = 60.0  # from LAST + 1 on there is time to look
    await net.wait_for_height(LAST, *HONEST)


@cache
def get_usual_outcome(settings: str, what: str) -> Sequence[object]:
    """Of the same federation, in which the liar is there and says nothing."""
    outcome: list[object] = []

    async def story(path: Path) -> None:
        options = SETTINGS | json.loads(settings)
        async with cluster(path, 4, start=HONEST, **options) as net, lying(net, "node3") as liar:
            await lie(net, liar, None)
            outcome.extend(get_outcome(net, what))

    with TemporaryDirectory() as directory:
        run_virtual(story(Path(directory)))
    return outcome


def show_peer(net: Cluster, path: Path) -> pb.PeerView:
    """The liar as node0 shows it."""
    service = net["node0"].service
    assert service is not None
    peers = make_view(service, net["node0"].get_context(), make_config(path), make_book()).list_peers().peers
    return next(peer for peer in peers if peer.name == "node3")


def show_round(net: Cluster, height: int = AT) -> tuple[pb.Round, str]:
    """The round of the lie as node0 shows it, and as its operator reads it."""
    store = net["node0"].store
    assert store is not None
    shown = Ledger(net.genesis, store).get_round(height)
    return shown, "\n".join(f"{what}: {told}" for what, told in describe_round(shown, "step"))


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_refused_counted_and_shown_and_nobody_else_notices(tmp_path: Path, name: str) -> None:
    attack = ATTACKS[name]
    usual = get_usual_outcome(json.dumps(dict(attack.settings), sort_keys=True), attack.same)

    async def story() -> None:
        settings = SETTINGS | dict(attack.settings)
        async with cluster(tmp_path, 4, start=HONEST, **settings) as net, lying(net, "node3") as liar:
            await lie(net, liar, attack)
            if attack.same != "chain":
                assert get_outcome(net, attack.same) == usual

            assert liar.is_refused_by("node0") is attack.is_banned
            assert not liar.is_refused_by("node1")
            counted = dict(show_peer(net, tmp_path).not_taken)
            if attack.reason is None:
                assert set(counted) <= {"other_height"}
            else:
                assert counted[attack.reason.value] >= 1, counted
            for other in HONEST[1:]:  # and against nobody who is honest
                service = net["node0"].service
                assert service is not None
                assert set(service.get_refusals().get(net.id(other), {})) <= {Reason.OTHER_HEIGHT, Reason.NO_ROOM}

            await net.wait_for(lambda: has_record(net), "the round's record")
            shown, text = show_round(net)
            assert attack.told in text, text
            if attack.reason is not None and attack.told == "":
                (mine,) = [refused for refused in shown.not_taken if refused.name == "node3"]
                assert attack.reason.value in mine.counts
                assert "not taken of node3: " in text

            # Whatever it has done, its votes count; those who refuse it have them of others.
            await net.wait_for(vote_until_held(net, liar), "node0 to hold the liar's vote")

    run_virtual(story())


def vote_until_held(net: Cluster, liar: Liar) -> Callable[[], bool]:
    """Whether node0 holds a vote of the liar's for the height in hand. It votes at each: a conviction may take one."""
    voted = set[int]()

    def is_held() -> bool:
        service = net["node0"].service
        assert service is not None
        machine = service.machine
        if machine is None:
            return False
        vote = liar.make_vote(Phase.PREVOTE, ZERO, view=1)
        if vote.height == machine.height and vote.height not in voted:
            voted.add(vote.height)
            liar.send(vote, "node1")
        return vote in machine.voting.get_votes()

    return is_held


def has_record(net: Cluster, height: int = AT) -> bool:
    store = net["node0"].store
    return store is not None and store.get_round(height) is not None


# What it costs


def make_flood(liar: Liar, what: str) -> list[Message]:
    """A thousand objects that are all authentic, and all different."""
    match what:
        case "votes":
            signed = [liar.make_vote(Phase(1 + i % 2), make_digest(str(i)), view=i // 2) for i in range(1000)]
            return [make_message(vote) for vote in signed]
        case "contributions":
            return [make_message(liar.make_contribution(make_arrays(value=i))) for i in range(1000)]
        case "to come":
            height, at = liar.height + 1, range(1000)
            return [make_message(liar.make_contribution(height=height, prev=make_digest(str(i)))) for i in at]
        case _:
            pairs = [[liar.make_vote(Phase.PREVOTE, make_digest(t), view=i) for t in "ab"] for i in range(1000)]
            return [make_message(make_evidence(*pair)) for pair in pairs]


@pytest.mark.parametrize(("what", "most"), [("votes", 256 + 10), ("contributions", 2), ("to come", 1), ("evidence", 2)])
def test_a_flood_costs_no_more_signatures_than_its_authors_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, most: int
) -> None:
    checked = 0

    def count(*arguments: Any) -> None:
        nonlocal checked
        checked += 1
        verify(*arguments)

    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, train_s=60.0) as net, lying(net, "node3") as liar:
            service = net["node0"].service
            assert service is not None
            flood = make_flood(liar, what)
            for rules in ("validation", "evidence"):
                monkeypatch.setattr(f"chain.{rules}.verify", count)
            for message in flood:
                service.handler.on_message(liar.key.id, message)
                await asyncio.sleep(0)
            assert 0 < checked <= most
            assert service.current.num_waiting < 2
            vote = liar.make_vote(Phase.PREVOTE, ZERO, key=net["node1"].key)  # nobody else pays for it
            service.handler.on_message(liar.key.id, make_message(vote))
            assert service.machine is not None
            await net.wait_for(lambda: vote in service.machine.voting.get_votes(), "another member's vote")  # type: ignore[union-attr]  # as above
            if what == "votes":  # and its own share grows again
                await asyncio.sleep(5.0)
                late = liar.make_vote(Phase.PREVOTE, ZERO, view=3000)
                service.handler.on_message(liar.key.id, make_message(late))
                await net.wait_for(lambda: late in service.machine.voting.get_votes(), "its own, later")  # type: ignore[union-attr]  # as above

    run_virtual(story())


def test_what_refused_contributions_weighed_is_not_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, train_s=0.1) as net, lying(net, "node3") as liar:
            offered = set()
            for i in range(6):
                height = liar.height
                offered |= {ref.digest for ref in liar.make_contribution(bytes([i]) * 300).payloads}
                liar.send(liar.make_contribution(bytes([i]) * 300))
                await net.wait_for_height(height, *HONEST)
            await net.wait_for_height(liar.height + net.genesis.rules.keep_heights, *HONEST)
            for name in HONEST:
                store = net[name].store
                assert store is not None
                assert not [digest for digest in offered if store.has_blob(digest)]
                kept = {*store.held_blobs()}
                named = {net.genesis.run.initial_model}.union(
                    *(get_block_digests(b.block) for b in store.blocks(0, 99))
                )
                recent = store.referenced_blobs(store.head_height + 1)
                assert kept <= named | recent | get_offered(net)

    run_virtual(story())


def get_offered(net: Cluster) -> set[bytes]:
    """What the honest have offered for the height in hand."""
    return {
        ref.digest
        for name in HONEST
        if (service := net[name].service) is not None and service.machine is not None
        for contribution in service.machine.contributions.values()
        for ref in contribution.payloads
    }


def test_a_list_of_chunks_that_does_not_fit_its_set_is_counted_and_shown(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, method={"share_collect_s": 20.0}, num_samples=100) as net:
            liar = get_trainer(net, "node3")
            digests = decode_arrays(liar.made.list_data, len(liar.made.list_data))["digests"]
            liar.made = replace(liar.made, list_data=make_list(np.concatenate([digests, digests])))
            await net.wait_for_height(2)
            authors = [contribution.author for contribution in net["node0"].get_block(1).contributions]
            assert authors == [net.id(name) for name in HONEST]
            assert dict(show_peer(net, tmp_path).not_taken)["payload"] == 1
            await net.wait_for(lambda: has_record(net, 1), "the record")
            _, text = show_round(net, 1)
            assert "encrypted_set: expected 1 digests of chunks for" in text

    run_virtual(story())


# What an operator reads


def test_peers_are_listed_with_what_was_not_taken_of_them() -> None:
    peers = [
        pb.PeerView(name="node1"),
        pb.PeerView(name="node2", not_taken={"other_height": 2, "signature": 1}, waits=7),
    ]
    assert describe_refusals(peers) == [
        ("not taken of node2", "2 other height, 1 signature"),
        ("let wait node2", "7 times, as it came too fast"),
    ]


def test_peers_are_listed_with_why_they_are_not_awaited_and_whose_clock_is_wrong() -> None:
    up: dict[str, Any] = {"connected": True, "alive": True}
    peers = [
        pb.PeerView(name="node1", clock_ahead_s=-0.4, **up),
        pb.PeerView(name="node2", clock_ahead_s=-300.04, not_awaited="waited for in vain twice", **up),
        pb.PeerView(name="node3", not_awaited="it has not said that it would contribute"),  # it is seen to be away
    ]
    assert describe_not_awaited(peers) == [("not awaited node2", "waited for in vain twice")]
    assert describe_clocks(peers) == [("clock of node2", "300.0 s behind")]


def test_a_round_shows_who_was_left_out_refused_and_accused() -> None:
    author = encode_id(make_keys(1)[0].id)
    entry = pb.Round(
        round=7,
        left_out={author: "no contribution came"},
        rejected={author: "not a number"},
        candidates=[pb.CandidateView(id="ab" * 32, miner_name="node3", reason="it leaves out node0")],
        signed_twice={author: "vote"},
        not_taken=[pb.NotTaken(name="node3", counts={"rate": 5})],
        absent_names=["node3"],
    )
    facts = dict(describe_round(entry, "step"))
    assert facts["left out"] == "node3"
    assert facts[f"without {author[:8]}"] == "no contribution came"
    assert facts[f"refused {author[:8]}"] == "not a number"
    assert facts["candidate abababab"] == "of node3: it leaves out node0"
    assert facts[f"signed twice {author[:8]}"] == "vote"
    assert facts["not taken of node3"] == "5 rate"
