"""Members that lie, one story each: the honest go on finalising, nobody forks, and nothing grows without bound (I6)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain import codec
from chain.beacon import make_reveal
from chain.block import ZERO, Block, Certificate, Contribution, Id, Phase
from chain.errors import InvalidAggregate
from chain.evidence import make_evidence, validate_evidence
from chain.signing import SigningKey, encode_id
from chain.validation import validate_aggregate
from ml import payload
from node.consensus.context import NodeContext
from node.consensus.gossip.authenticator import MAX_KNOWN
from node.consensus.height.halted import Halted
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_parts
from node.p2p.transport.base import BlobNotFound, Message, MessageKind, PeerFault
from support.data.blobs import lose_blob
from support.data.chains import make_certificate, make_digest
from support.faults.liar import Liar, Signed, flip, lying, make_arrays, make_message
from support.federation.cluster import DIM, Cluster, cluster
from support.federation.virtual_time import run_virtual


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


HONEST = ("node0", "node1", "node2")
SLOW = {"difficulty": 2000, "min": 1, "max": 2**32, "target_ms": 200}  # 0.2 s at the cluster's hash rate


@asynccontextmanager
async def federation(path: Path, **options: Any) -> AsyncIterator[tuple[Cluster, Liar]]:
    """Three honest members at work, and node3, which lies."""
    async with cluster(path, 4, start=HONEST, **options) as net, lying(net, "node3") as liar:
        yield net, liar


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


async def go_on(net: Cluster, blocks: int = 3, names: Sequence[str] = HONEST) -> None:
    """The honest finalise more blocks, the same ones, and hold no more than they may."""
    height = max(net[name].height for name in names)
    await net.wait_for_height(height + blocks, *names)
    net.check_agreement()
    for name in names:
        check_bounded(net, name)


def check_bounded(net: Cluster, name: str) -> None:
    """I6, with the numbers of PROTOCOL §4 and §5."""
    service, n = get_service(net, name), net.genesis.state.n
    known = service.parts.gossip.authenticator.count_known()
    assert set(known) == set(net.genesis.state.member_ids)
    assert max(known.values()) <= MAX_KNOWN
    assert service.handler.num_kept <= n * (2 + 2 * 9)
    assert len(service.records) <= 4
    assert len(service.blobs.wanted) <= 2 * n * n + n + 1
    assert service.current.num_waiting < 1000
    if service.machine is not None:
        assert len(service.machine.contributions) <= n
        assert len(service.machine.candidates) <= 2 * n
        assert len(service.machine.voting.get_votes()) <= 2 * 2 * 17 * n + 3 * n
        assert len(service.tasks) < 10 * n


async def wait_for_contributions(net: Cluster, liar: Liar, least: int = 3) -> list[Contribution]:
    """Those of the height in hand, with payloads that somebody holds."""
    await net.wait_for(lambda: len(liar.get_contributions()) >= least, "the honest to contribute")
    return list(liar.get_contributions().values())


def get_rejections(net: Cluster, name: str) -> list[str]:
    return [event.data["reason"] for event in get_service(net, name).events.kept if event.kind == "rejected"]


def get_accused(net: Cluster, name: str) -> set[Id]:
    store = net[name].store
    assert store is not None
    return {stored.author for stored in store.get_evidence()}


# Bad bytes and bad signatures


def make_badly_signed(liar: Liar, kind: str) -> Message:
    match kind:
        case "contribution":
            return make_message(replace(liar.make_contribution(), signature=bytes(64)))
        case "vote":
            return make_message(replace(liar.make_vote(Phase.PREVOTE, ZERO), signature=bytes(64)))
        case "block":
            return make_message(replace(liar.make_candidate([liar.make_contribution()]), signature=bytes(64)))
        case "body":
            good = liar.make_contribution()
            return make_message(liar.make_candidate([replace(good, signature=bytes(64))]))
        case "evidence":
            votes = [liar.make_vote(Phase.PREVOTE, block_id) for block_id in (ZERO, make_digest("b"))]
            return make_message(make_evidence(votes[0], replace(votes[1], signature=bytes(64))))
        case "stranger":
            key = SigningKey.from_private_bytes(make_digest("a stranger"))
            return make_message(liar.make_contribution(key=key))
        case "garbage":
            return Message(MessageKind.VOTE, b"garbage")
        case "status":
            return Message(MessageKind.STATUS, b"\xff" * 100)
        case "other chain":
            return make_message(liar.make_status(chain_id=make_digest("another chain")))
        case "replay from another chain":
            return make_message(liar.make_contribution(chain_id=make_digest("another chain")))
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "contribution",
        "vote",
        "block",
        "evidence",
        "stranger",
        "garbage",
        "status",
        "other chain",
        "replay from another chain",
    ],
)
def test_who_sends_bad_bytes_is_refused(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        async with federation(tmp_path, min_contributions=1) as (net, liar):
            liar.send(make_badly_signed(liar, kind), "node0")
            await net.wait_for(lambda: liar.is_refused_by("node0"), "node0 to refuse node3")
            assert not liar.is_refused_by("node1")
            await go_on(net, 2)

    run_virtual(story())


def test_what_a_refused_peer_signed_still_counts_when_others_relay_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.5) as (net, liar):
            liar.send(Message(MessageKind.VOTE, b"garbage"), "node0")
            await net.wait_for(lambda: liar.is_refused_by("node0"), "node0 to refuse node3")
            liar.send(liar.make_contribution(), "node1")
            height = liar.height
            await net.wait_for_height(height, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 4

    run_virtual(story())


@pytest.mark.parametrize("what", ["contribution", "vote", "block"])
def test_no_object_with_a_flipped_bit_is_taken_in(tmp_path: Path, what: str) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=1e3) as (net, liar):
            service = get_service(net, "node0")
            if what == "vote":
                message = make_message(liar.make_vote(Phase.PREVOTE, make_digest("b")))
            elif what == "contribution":
                message = make_message(liar.make_contribution())
            else:
                contributions = [liar.make_contribution(key=net[name].key) for name in net.nodes]
                message = make_message(liar.make_candidate(contributions, aggregate=make_digest("a")))
            before = service.current.num_waiting
            bits = range(0, 8 * len(message.data), 1 if what != "block" else 7)
            faults = 0
            for bit in bits:
                try:
                    service.handler.on_message(liar.key.id, Message(message.kind, flip(message.data, bit)))
                except PeerFault:
                    faults += 1
            assert service.current.num_waiting == before
            assert service.handler.num_kept == 0
            assert faults > 0.8 * len(bits)  # the others say that they are of another height
            service.handler.on_message(liar.key.id, message)
            assert service.current.num_waiting == before + 1

    run_virtual(story())


# Candidates


def test_a_wrong_aggregate_gets_no_honest_vote(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, pow=SLOW) as (net, liar):
            contributions = await wait_for_contributions(net, liar)
            wrong = liar.make_candidate(contributions, aggregate=make_digest("wrong"))
            liar.send(wrong)
            await go_on(net, 2)
            assert net["node0"].get_block(wrong.height).id != wrong.id
            assert any("aggregate" in reason for reason in get_rejections(net, "node0"))
            assert not liar.is_refused_by("node0")

    run_virtual(story())


def test_an_aggregate_that_is_one_ulp_off_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, pow=SLOW) as (net, liar):
            contributions = await wait_for_contributions(net, liar)
            right = payload.decode_arrays(liar.compute_aggregate(contributions).data, 1 << 20)
            rows = right["prototypes/prototypes"].copy()
            rows[0, 0] = np.nextafter(rows[0, 0], np.float32(np.inf))
            data = payload.encode_arrays({**right, "prototypes/prototypes": rows})
            digest = hashlib.sha256(data).digest()
            liar.blobs[digest] = data
            wrong = liar.make_candidate(contributions, aggregate=digest)
            liar.send(wrong)
            await go_on(net, 2)
            assert net["node0"].get_block(wrong.height).id != wrong.id
            assert any("aggregate" in reason for reason in get_rejections(net, "node0"))

    run_virtual(story())


def test_a_candidate_that_leaves_somebody_out_loses_to_one_that_does_not(tmp_path: Path) -> None:
    """node3 contributes late, so that all cut off then, and has its own block ready before anybody else can mine."""

    async def story() -> None:
        async with federation(tmp_path, pow=SLOW, train_s=0.3) as (net, liar):
            await net.wait_for_height(1, *HONEST)
            liar.send(liar.make_status())  # whoever says that it contributes is awaited
            contributions = await wait_for_contributions(net, liar)
            await asyncio.sleep(4 * net.genesis.rules.waits.delta_s)
            own = liar.make_contribution()
            censoring = liar.make_candidate([own] + [c for c in contributions if c.author != net.id("node0")])
            liar.send(own)
            liar.send(censoring)
            await net.wait_for_height(censoring.height, *HONEST)
            block = net["node1"].get_block(censoring.height)
            assert net.id("node0") in {contribution.author for contribution in block.contributions}
            await go_on(net, 2)

    run_virtual(story())


@pytest.mark.parametrize("ahead_ms", [60_000, 10 * 3_600_000])
def test_a_candidate_from_the_future_is_passed_over(tmp_path: Path, ahead_ms: int) -> None:
    async def story() -> None:
        async with federation(tmp_path, pow=SLOW) as (net, liar):
            contributions = await wait_for_contributions(net, liar)
            early = liar.make_candidate(contributions, ahead_ms=ahead_ms)
            liar.send(early)
            await go_on(net, 2)
            assert net["node0"].get_block(early.height).id != early.id

    run_virtual(story())


@pytest.mark.parametrize("lie", ["past", "difficulty", "no work", "old height", "bad contribution"])
def test_a_candidate_that_breaks_a_rule_is_not_stored(tmp_path: Path, lie: str) -> None:
    async def story() -> None:
        async with federation(tmp_path, pow=SLOW) as (net, liar):
            await net.wait_for_height(1, *HONEST)
            contributions = await wait_for_contributions(net, liar)
            match lie:
                case "past":
                    block = liar.make_candidate(contributions, time_ms=liar.tip.header.time_ms)
                case "difficulty":
                    block = liar.make_candidate(contributions, difficulty=1)
                case "no work":
                    block = liar.make_candidate(contributions)
                    while (
                        codec.compute_block_id(codec.compute_seal(net.genesis.chain_id, block.header), block.nonce)[0]
                        < 2
                    ):
                        block = replace(block, nonce=block.nonce + 1)
                    block = codec.make_block(net.genesis.chain_id, block.header, block.nonce, block.body, liar.key)
                case "old height":
                    header = replace(net["node0"].get_block(1).header, miner=liar.key.id)
                    block = codec.make_block(net.genesis.chain_id, header, 0, net["node0"].get_block(1).body, liar.key)
                case _:
                    bad = replace(contributions[0], signature=bytes(64))
                    block = liar.make_candidate([bad, *contributions[1:]], aggregate=make_digest("any"))
            liar.send(block)
            height = max(net[name].height for name in HONEST)
            await net.wait_for(
                lambda: (
                    net["node0"].height > height
                    or liar.is_refused_by("node0")
                    or any(peer.num_rejected for peer in get_service(net, "node0").peers)
                ),
                "node0 to have seen it",
            )
            for name in HONEST:
                machine = get_service(net, name).machine
                assert machine is not None
                assert block.id not in machine.candidates
            if lie in ("no work", "bad contribution"):
                await net.wait_for(lambda: liar.is_refused_by("node0"), "node3 to be refused")
            await go_on(net, 2)

    run_virtual(story())


# Contributions


BAD_PAYLOADS: dict[str, tuple[Callable[[Liar], Contribution], str]] = {
    "nan": (lambda liar: liar.make_contribution(make_arrays(value=float("nan"))), "finite"),
    "infinite": (lambda liar: liar.make_contribution(make_arrays(value=float("inf"))), "finite"),
    "wrong shape": (lambda liar: liar.make_contribution(make_arrays(dim=DIM + 1)), "prototypes"),
    "wrong dtype": (lambda liar: liar.make_contribution(make_arrays(dtype="float64")), "prototypes"),
    "class out of range": (lambda liar: liar.make_contribution(make_arrays(classes=(1, 10))), "classes"),
    "unsorted classes": (lambda liar: liar.make_contribution(make_arrays(classes=(2, 1))), "classes"),
    "other arrays": (
        lambda liar: liar.make_contribution(payload.encode_arrays({"x": np.zeros(1, dtype=np.float32)})),
        "prototypes",
    ),
    "not arrays at all": (lambda liar: liar.make_contribution(b"\x80\x04pickle"), "prototypes"),
    "header of 2^63": (lambda liar: liar.make_contribution(b"\xff" * 7 + b"\x7f" + b"{}" * 40), "prototypes"),
    "declared too large": (lambda liar: liar.make_contribution(size=16 << 20), "at most"),
    "declared longer than it is": (lambda liar: liar.make_contribution(make_arrays(), size=300), "declared"),
    "wrong weight": (lambda liar: liar.make_contribution(weight=2), "weight"),
    "unknown kind": (lambda liar: liar.make_contribution(kind=200), "kind"),
    "another kind": (lambda liar: liar.make_contribution(kind=2), "kind"),
}


@pytest.mark.parametrize("lie", BAD_PAYLOADS)
def test_a_contribution_that_does_not_fit_is_dropped_with_a_reason(tmp_path: Path, lie: str) -> None:
    async def story() -> None:
        make, reason = BAD_PAYLOADS[lie]
        async with federation(tmp_path, train_s=0.3) as (net, liar):
            contribution = make(liar)
            liar.send(contribution)
            height = liar.height
            await net.wait_for_height(height + 1, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 3
            for name in HONEST:
                store = net[name].store
                assert store is not None
                record = store.get_round(height)
                assert record is not None
                assert reason in record["rejected"][encode_id(liar.key.id)]
            assert not liar.is_refused_by("node0")
            net.check_agreement()

    run_virtual(story())


def test_the_author_of_a_refused_contribution_keeps_its_votes(tmp_path: Path) -> None:
    """Two honest members and the liar's votes are a quorum of four."""

    async def story() -> None:
        async with federation(tmp_path, train_s=0.3, min_contributions=2) as (net, liar):
            await net.crash("node2")
            liar.send(liar.make_contribution(make_arrays(value=float("nan"))))
            height = liar.height
            await asyncio.sleep(1.0)
            assert len(get_service(net, "node0").machine.verified) == 2  # type: ignore[union-attr]
            # Below q nothing is mined here, but a candidate of two contributions is valid, and may be voted in.
            block = liar.make_candidate([c for c in liar.get_contributions().values() if c.author != liar.key.id])
            liar.send(block)
            liar.send(liar.make_vote(Phase.PREVOTE, block.id))
            liar.send(liar.make_vote(Phase.PRECOMMIT, block.id))
            await net.wait_for_height(height, "node0", "node1")
            assert net["node0"].get_block(height).id == block.id

    run_virtual(story())


def test_a_blob_given_to_one_reaches_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.3) as (net, liar):
            honest_serve = liar.serve
            liar.serve = lambda peer, digest, offset: (
                honest_serve(peer, digest, offset) if peer == net.id("node1") else None
            )
            liar.send(liar.make_contribution())
            height = liar.height
            await net.wait_for_height(height, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 4
            await go_on(net, 2)

    run_virtual(story())


@pytest.mark.parametrize("how", ["not found", "empty", "endless", "flipped", "too long for its size"])
def test_a_blob_that_is_not_to_be_had_leaves_its_author_out(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.3) as (net, liar):
            honest_serve = liar.serve
            liar.serve = lambda peer, digest, offset: {
                "not found": None,
                "empty": b"",
                "endless": bytes(5 << 20),
                "flipped": flip(honest_serve(peer, digest, offset) or b"0", 5),
            }.get(how, honest_serve(peer, digest, offset))
            size = 200 if how == "too long for its size" else None
            liar.send(liar.make_contribution(size=size))
            height = liar.height
            await net.wait_for_height(height, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 3
            await go_on(net, 2)

    run_virtual(story())


def test_a_peer_that_never_ends_a_transfer_does_not_keep_a_blob_from_us(tmp_path: Path) -> None:
    """node1 and node2 cannot reach each other, and node0 answers first, with silence."""
    honest = ("node1", "node2", "node3")

    async def story() -> None:
        async with cluster(tmp_path, 4, start=honest, train_s=0.3) as net, lying(net, "node0") as liar:
            net.cut("node1", "node2")

            async def hang(peer: Id, digest: bytes, offset: int) -> AsyncIterator[bytes]:
                await asyncio.sleep(1e6)
                yield b""

            liar.on_blob_request = hang  # type: ignore[method-assign]
            await go_on(net, 2, honest)
            assert len(net["node1"].get_block(1).contributions) == 3

    run_virtual(story())


def test_a_smaller_size_declared_for_anothers_blob_does_not_keep_it_from_us(tmp_path: Path) -> None:
    """The liar copies node0's digest, says that it is one byte long, and is heard first."""

    async def story() -> None:
        async with federation(tmp_path, train_s=0.3) as (net, liar):
            net.cut("node0", "node1")
            net.network.cut(net.id("node2"), net.id("node1"), one_way=True)  # node2's pushes come late to node1
            await net.wait_for(lambda: net.id("node0") in liar.get_contributions(), "node0 to contribute", timeout_s=10)
            victim = liar.get_contributions()[net.id("node0")]
            ref = victim.payloads[0]
            copied = codec.sign_contribution(
                liar.key,
                net.genesis.chain_id,
                height=victim.height,
                prev=victim.prev,
                weight=1,
                payloads=(replace(ref, size=1),),
                reveal=make_reveal(liar.key, net.genesis.chain_id, liar.tip.block, liar.tip.state.protocol),
            )
            liar.send(copied, "node1")
            service = get_service(net, "node1")
            await net.wait_for(lambda: ref.digest in service.blobs.wanted, "node1 to look for one byte")
            net.network.heal(net.id("node2"), net.id("node1"))
            machine = service.machine
            assert machine is not None
            await net.wait_for(lambda: net.id("node0") in machine.verified, "node1 to verify node0", timeout_s=10)
            await go_on(net, 2)

    run_virtual(story())


@pytest.mark.parametrize("lie", ["old height", "old prev", "height to come"])
def test_a_contribution_of_another_round_does_not_count(tmp_path: Path, lie: str) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.3) as (net, liar):
            await net.wait_for_height(2, *HONEST)
            await net.wait_for(lambda: len({net[name].height for name in HONEST}) == 1, "the honest to be level")
            height = liar.height
            match lie:
                case "old height":
                    stale = liar.make_contribution(height=height - 1, prev=net["node0"].get_block(height - 2).id)
                case "old prev":
                    stale = liar.make_contribution(prev=net["node0"].get_block(height - 2).id)
                case _:
                    stale = liar.make_contribution(height=height + 5)
            liar.send(stale)
            await net.wait_for_height(height, *HONEST)
            assert len(net["node0"].get_block(height).contributions) == 3
            assert not liar.is_refused_by("node0")
            await go_on(net, 2)

    run_virtual(story())


# Equivocation


async def equivocate(net: Cluster, liar: Liar, what: str) -> None:
    """Two objects for one slot, to different members."""
    things: list[Signed]
    match what:
        case "contribution":
            things = [liar.make_contribution(make_arrays(value=value)) for value in (1.0, 2.0)]
        case "candidate":
            contributions = await wait_for_contributions(net, liar)
            things = [liar.make_candidate(contributions, ahead_ms=-ms) for ms in (0, 1)]
        case _:
            things = [liar.make_vote(Phase.PREVOTE, block_id) for block_id in (ZERO, make_digest("b"))]
    liar.send(things[0], "node0")
    liar.send(things[1], "node0" if what == "vote" else "node1")
    if what == "contribution":
        liar.send(things[0], "node1")


@pytest.mark.parametrize("what", ["contribution", "candidate", "vote"])
def test_who_signs_two_things_for_one_slot_is_shown_to_all_and_left_out(tmp_path: Path, what: str) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.3, pow=SLOW) as (net, liar):
            await equivocate(net, liar, what)
            await net.wait_for(
                lambda: all(get_accused(net, name) == {liar.key.id} for name in HONEST), "everybody to hold evidence"
            )
            for name in HONEST:
                store = net[name].store
                assert store is not None
                for stored in store.get_evidence():
                    author, height = validate_evidence(net.genesis.state, stored.evidence)
                    assert (author, height) == (stored.author, stored.height)
            assert any(message.kind is MessageKind.EVIDENCE for _, message in liar.heard)
            await net.wait_for_height(max(net[name].height for name in HONEST) + 1, *HONEST)
            for _ in range(3):  # from now on it behaves; the honest leave it out all the same
                height = liar.height
                liar.send(liar.make_contribution())
                await net.wait_for_height(height, *HONEST)
                authors = {contribution.author for contribution in net["node0"].get_block(height).contributions}
                assert liar.key.id not in authors
            net.check_agreement()

    run_virtual(story())


def test_prevotes_that_an_equivocators_other_vote_hides_reach_everybody(tmp_path: Path) -> None:
    """It prevotes a block to one, and nothing to the other, who holds a vote of its and so seems to lack none."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net, lying(net, "node3") as liar:
            keys = net.genesis.state.member_ids
            coordinator = keys[(1 + 1) % 4]  # of view 1 at height 1: it would prove its proposal by itself
            one, other = sorted(("node0", "node1", "node2"), key=lambda name: net.id(name) == coordinator)[:2]
            for name in (one, other):
                net.start(name, Idle)
            await net.wait_for(lambda: len(liar.transport.connected()) == 2, "the two to be connected")
            await asyncio.sleep(0.2)
            liar.send(liar.make_status())  # it has nothing yet, and is given what there is
            contributions = await wait_for_contributions(net, liar, least=2)
            own = liar.make_contribution()
            block = liar.make_candidate([*contributions, own])
            for thing in (own, block):
                liar.send(thing)
            liar.send(liar.make_vote(Phase.PREVOTE, block.id), one)
            liar.send(liar.make_vote(Phase.PREVOTE, ZERO), other)
            machine = get_service(net, one).machine
            assert machine is not None
            await net.wait_for(lambda: machine.voting.lock == (0, block.id), f"{one} to be locked")
            liar.send(liar.make_vote(Phase.PRECOMMIT, ZERO))
            behind = get_service(net, other).machine
            assert behind is not None
            await net.wait_for(lambda: behind.view == machine.view == 1, "both to be in view 1")
            await net.wait_for(lambda: behind.voting.valid == (0, block.id), f"{other} to see the proof", 10.0)

    run_virtual(story())


class Idle(RoundService):
    """Mines nothing."""

    def __init__(self, context: NodeContext) -> None:
        super().__init__(make_round_parts(replace(context, mines=False)))


def test_evidence_outlives_a_restart_and_reaches_who_was_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.3) as (net, liar):
            net.partition(["node2"], ["node0", "node1", "node3"])
            await equivocate(net, liar, "vote")
            await net.wait_for(lambda: all(get_accused(net, name) for name in HONEST[:2]), "two to hold evidence")
            for name in HONEST[:2]:
                await net.crash(name)
                net.start(name)
            assert get_accused(net, "node2") == set()
            net.heal()
            await net.wait_for(lambda: get_accused(net, "node2") == {liar.key.id}, "node2 to hold evidence")
            await go_on(net, 2)

    run_virtual(story())


def test_after_evidence_heights_the_author_may_contribute_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, train_s=0.3, evidence_heights=2) as (net, liar):
            await equivocate(net, liar, "vote")
            await net.wait_for(lambda: all(get_accused(net, name) for name in HONEST), "everybody to hold evidence")
            taken_in = []
            for _ in range(5):
                height = liar.height
                liar.send(liar.make_contribution())
                await net.wait_for_height(height, *HONEST)
                authors = {contribution.author for contribution in net["node0"].get_block(height).contributions}
                taken_in.append(liar.key.id in authors)
            assert taken_in == [False, False, False, True, True]

    run_virtual(story())


# Floods: many signed objects from one member


def count_sent(net: Cluster, name: str, kind: str) -> int:
    transport = net.network.find(net.id(name))
    assert transport is not None
    return sum(
        counters.kinds[kind].messages_sent for counters in transport.counters().values() if kind in counters.kinds
    )


@pytest.mark.parametrize("what", ["views", "absurd views", "contributions", "candidates", "next height", "evidence"])
def test_a_flood_of_signed_objects_takes_no_more_room_than_a_few(tmp_path: Path, what: str) -> None:
    async def story() -> None:
        easy = {"difficulty": 8, "min": 1, "max": 8, "target_ms": 1}
        async with federation(tmp_path, train_s=0.5, pow=easy, network={"fifo": True}) as (net, liar):
            things: list[Signed] = []
            for i in range(150 if what in ("candidates", "evidence") else 300):
                match what:
                    case "views":
                        things.append(liar.make_vote(Phase(1 + i % 2), make_digest(str(i % 3)), view=i % 17))
                    case "absurd views":
                        things.append(liar.make_vote(Phase(1 + i % 2), make_digest(str(i)), view=2**32 - 1 - i // 2))
                    case "contributions":
                        things.append(liar.make_contribution(make_arrays(value=i)))
                    case "candidates":
                        contributions = [liar.make_contribution(key=node.key) for node in net.nodes.values()]
                        things.append(liar.make_candidate(contributions, ahead_ms=-i))
                    case "next height":
                        height, prev = liar.height + 1, make_digest(str(i))
                        things.append(liar.make_contribution(height=height, prev=prev))
                        things.append(liar.make_vote(Phase.PREVOTE, prev, view=i, height=height))
                    case _:
                        votes = [liar.make_vote(Phase.PREVOTE, make_digest(t), height=10 + 5 * i) for t in "ab"]
                        things.append(make_evidence(*votes))
            for thing in things:
                liar.send(thing)
            await asyncio.sleep(0.2)
            for name in HONEST:
                check_bounded(net, name)
                store = net[name].store
                assert store is not None
                bound = 30 if what == "evidence" else 3
                assert len(store.get_evidence()) <= bound
                assert count_sent(net, name, "evidence") <= 4 * bound
            assert not liar.is_refused_by("node0")
            await go_on(net, 3)

    run_virtual(story())


# Status and sync


@pytest.mark.parametrize("lie", ["far ahead", "elsewhere", "holds everything", "other views"])
def test_a_lying_status_costs_nobody_else_anything(tmp_path: Path, lie: str) -> None:
    async def story() -> None:
        async with federation(tmp_path) as (net, liar):
            for i in range(20):
                match lie:
                    case "far ahead":
                        status = liar.make_status(head_height=2**62, head_id=make_digest(str(i)), height=0)
                    case "elsewhere":
                        status = liar.make_status(head_id=make_digest(str(i)))
                    case "holds everything":
                        status = liar.make_status(contributions=15, candidates=(make_digest(str(i)),))
                    case _:
                        status = liar.make_status(view=2**32 - 1)
                liar.send(status)
                await asyncio.sleep(0.1)
            await go_on(net, 3)
            assert not liar.is_refused_by("node0")

    run_virtual(story())


def forge(net: Cluster, liar: Liar, signers: Sequence[str], *, bad: int = 0) -> tuple[Block, Certificate]:
    """A block on the honest head with its certificate, the last `bad` signatures of which are noughts."""
    contributions = [liar.make_contribution(key=net[name].key) for name in net.nodes]
    block = liar.make_candidate(contributions, aggregate=make_digest("forged"))
    votes = [liar.make_vote(Phase.PRECOMMIT, block.id, key=net[name].key, height=block.height) for name in signers]
    entries = sorted((net.genesis.state.index_of(vote.voter) or 0, vote.signature) for vote in votes)
    entries[len(entries) - bad :] = [(index, bytes(64)) for index, _ in entries[len(entries) - bad :]]
    return block, Certificate(0, tuple(entries))


@pytest.mark.parametrize(("signers", "bad"), [(("node1", "node3"), 0), (("node1", "node2", "node3"), 1)])
def test_a_forged_chain_is_not_followed(tmp_path: Path, signers: tuple[str, ...], bad: int) -> None:
    async def story() -> None:
        async with federation(tmp_path) as (net, liar):
            await net.wait_for_height(2, *HONEST)
            await net.crash("node2")
            await net.wait_for(lambda: net["node0"].height == net["node1"].height, "the others to be level")
            await asyncio.sleep(5.0)
            block, certificate = forge(net, liar, signers, bad=bad)
            forged = (codec.encode_block(block), codec.encode_certificate(certificate))
            asked: list[int] = []

            def serve(first: int, count: int) -> list[tuple[bytes, bytes]]:
                asked.append(first)
                return [forged]

            liar.blocks = serve
            net.start("node2")
            net.partition(["node2", "node3"], ["node0", "node1"])

            def lie() -> bool:
                liar.send(liar.make_status(head_height=block.height, head_id=block.id))
                return block.height in asked

            await net.wait_for(lie, "node2 to ask the liar")
            await asyncio.sleep(1.0)
            assert net["node2"].height < block.height
            net.heal()
            await go_on(net, 2)
            assert net["node2"].get_block(block.height).id != block.id

    run_virtual(story())


@pytest.mark.slow
def test_a_peer_that_never_answers_does_not_hold_up_sync(tmp_path: Path) -> None:
    honest = tuple(f"node{i}" for i in range(6))

    async def story() -> None:
        async with cluster(tmp_path, 7, start=honest) as net, lying(net, "node6") as liar:

            async def hang(peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
                await asyncio.sleep(1e6)
                return []

            liar.on_blocks_request = hang  # type: ignore[method-assign]
            net.partition(["node5"], honest[:5])
            height = net["node5"].height
            await net.wait_for_height(height + 3, *honest[:5])
            liar.send(liar.make_status(head_height=2**40, height=0), "node5")
            await asyncio.sleep(1.0)
            net.heal()
            await go_on(net, 3, honest)

    run_virtual(story())


def test_two_certificates_at_one_height_halt_and_are_written_down(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, rounds=1) as (net, liar):
            await net.wait_for_height(1, *HONEST)
            ours = net["node0"].get_block(1)
            theirs = replace(ours.header, miner=liar.key.id, aggregate=make_digest("forged"))
            block = codec.make_block(net.genesis.chain_id, theirs, 0, ours.body, liar.key)
            certificate = make_certificate(net.genesis, block, [node.key for node in net.nodes.values()])
            liar.blocks = lambda first, count: [(codec.encode_block(block), codec.encode_certificate(certificate))]
            for life in range(2):
                liar.send(liar.make_status(head_height=1, head_id=block.id, height=0), "node0")
                await wait_for_halt(net, "node0")
                store = net["node0"].store
                assert store is not None
                written = store.get_meta("divergence")
                assert written["height"] == 1
                assert {written["ours"], written["theirs"]} == {
                    codec.encode_block(one).hex() for one in (ours, block)
                }, life
                assert written["their_certificate"] == codec.encode_certificate(certificate).hex()
                await net.crash("node0")
                net.start("node0")  # started again, it halts again
            await wait_for_halt(net, "node0")
            await net.crash("node0")

    run_virtual(story())


async def wait_for_halt(net: Cluster, name: str) -> None:
    task = net[name].task
    assert task is not None
    await asyncio.wait({task}, timeout=30)
    failure = net[name].failure
    assert isinstance(failure, Halted) or (isinstance(failure, BaseExceptionGroup) and failure.subgroup(Halted))


def test_a_certified_block_with_a_wrong_aggregate_halts(tmp_path: Path) -> None:
    async def story() -> None:
        async with federation(tmp_path, pow=SLOW) as (net, liar):
            contributions = await wait_for_contributions(net, liar)
            wrong = liar.make_candidate(contributions, aggregate=make_digest("wrong"))
            liar.send(wrong, "node0")
            for name in ("node1", "node2", "node3"):
                liar.send(liar.make_vote(Phase.PRECOMMIT, wrong.id, key=net[name].key), "node0")
            await wait_for_halt(net, "node0")
            assert net["node0"].store is not None
            assert net["node0"].store.head().block.height < wrong.height
            with pytest.raises(InvalidAggregate):
                validate_aggregate(wrong, liar.compute_aggregate(sorted(contributions, key=lambda c: c.author)).digest)
            await net.crash("node0")

    run_virtual(story())


def test_a_candidate_kept_for_the_next_height_cannot_bring_a_node_down(tmp_path: Path) -> None:
    """It was signed over a contribution with a bad signature, before node0 could see its parent."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=["node0"], train_s=1e3) as net, lying(net, "node3") as liar:
            keys = [net[name].key for name in net.nodes]
            block = liar.make_candidate([liar.make_contribution(key=key) for key in keys])
            contributions = [
                codec.sign_contribution(
                    key,
                    net.genesis.chain_id,
                    height=2,
                    prev=block.id,
                    weight=1,
                    payloads=block.contributions[0].payloads,
                    reveal=make_reveal(key, net.genesis.chain_id, block, block.header.version),
                )
                for key in keys
            ]
            poisoned = make_on(
                net, block, [replace(contributions[0], signature=bytes(64)), *contributions[1:]], liar.key
            )
            liar.send(poisoned)
            await net.wait_for(lambda: bool(get_service(net, "node0").handler.num_kept), "node0 to keep it")
            liar.send(block)
            for key in keys[1:]:
                liar.send(liar.make_vote(Phase.PRECOMMIT, block.id, key=key))
            await net.wait_for_height(1, "node0")
            machine = get_service(net, "node0").machine
            assert machine is not None
            assert machine.height == 2
            await asyncio.sleep(0.1)
            assert poisoned.id not in machine.candidates
            assert net["node0"].failure is None

    run_virtual(story())


def make_on(net: Cluster, parent: Block, contributions: Sequence[Contribution], key: SigningKey) -> Block:
    """A mined candidate on a block that is not final yet."""
    from support.data.chains import make_candidate

    return make_candidate(
        net.genesis, parent, [key], contributions=contributions, difficulty=net.genesis.rules.pow.difficulty
    )


# Blobs


@pytest.mark.parametrize("serve", ["flipped", "broken off"])
def test_a_bad_copy_of_an_aggregate_is_refused_and_fetched_elsewhere(tmp_path: Path, serve: str) -> None:
    """node0 comes first in the order of ids and lies about every blob; node1 needs an aggregate that only node2 has."""
    honest = ("node1", "node2", "node3")

    async def story() -> None:
        async with cluster(tmp_path, 4, start=honest, rounds=3) as net, lying(net, "node0") as liar:
            served: list[bytes] = []

            async def lie(peer: Id, digest: bytes, offset: int) -> AsyncIterator[bytes]:
                source = net["node2"].store
                assert source is not None
                if not source.has_blob(digest):
                    raise BlobNotFound(digest.hex())
                served.append(digest)
                if serve == "flipped":
                    yield flip(source.get_blob(digest), 13)[offset:]
                else:  # what comes next from elsewhere must not be appended to this
                    yield b"rubbish"[offset:]
                    raise BlobNotFound("no more of it")

            liar.on_blob_request = lie  # type: ignore[method-assign]
            await net.wait_for_height(3, *honest)
            await net.crash("node1")
            await net.crash("node3")
            block = net["node2"].get_block(3)
            digest = block.header.aggregate
            for lost in (digest, block.contributions[0].payloads[0].digest):  # nor can it be computed
                lose_blob(net["node1"].path, lost)
            net.start("node1")
            store = net["node1"].store
            assert store is not None
            await net.wait_for(lambda: store.has_blob(digest), "node1 to have the aggregate")
            assert hashlib.sha256(store.get_blob(digest)).digest() == digest
            assert digest in served

    run_virtual(story())
