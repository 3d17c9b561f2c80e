"""Nodes that come and go, on virtual time: joiners, those that leave, those whose key was lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chain.block import Block, Evidence, EvidenceKind, Phase
from chain.changes.members import Pardon, RemoveMember, ReplaceKey
from chain.changes.rules import SetRules
from chain.checkpoint import Checkpoint
from chain.codec import encode_block, encode_certificate, encode_vote
from chain.errors import InvalidChange
from chain.tip import Tip
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.signing.keys import make_rotation
from node.consensus.wiring import make_round_service
from node.errors import InvalidRequest
from node.p2p.refusals import Reason
from node.training.trainer import RunTask, TrainerInfo
from support.data.chains import make_digest, make_keys
from support.data.changes import certify, extend_with, make_round
from support.faults.liar import lying
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster
from support.federation.joining import TRAIN_S, add, follow_keys, growing, make_checkpoint, start_joiner
from support.federation.proposing import (
    approve,
    check_chains,
    find_change_heights,
    get_open,
    get_seat,
    get_service,
    get_state,
    propose,
    wait_for_state,
    wait_until_open,
)
from support.federation.virtual_time import run_virtual

FOUNDERS = ("node0", "node1", "node2")
RULES = SetRules({"keep_heights": (2, 3)})


async def admit(net: Cluster, name: str, *approvers: str) -> int:
    """Has a newcomer that runs admitted. The height of its block."""
    change_id = await propose(net, approvers[0], add(net, name))
    await approve(net, change_id, *approvers[1:])
    await wait_for_state(net, f"{name} to be admitted", lambda state: state.index_of(net.id(name)) is not None)
    member = get_state(net, name).get_member(net.id(name))
    assert member is not None
    return member.since


def find_authors(net: Cluster, height: int) -> set[bytes]:
    return {contribution.author for contribution in net["node0"].get_block(height).contributions}


def test_three_become_four_and_the_fourth_contributes_within_three_heights(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            await net.wait_for_height(5, *FOUNDERS)
            checkpoint = make_checkpoint(net, "node0")
            start_joiner(net, "node3", checkpoint)
            await net.wait_for_height(checkpoint.height + 2, "node3")
            joiner = get_service(net, "node3")
            assert joiner.own_membership.describe() == "an observer: follows the chain, and signs nothing"
            height = await admit(net, "node3", *FOUNDERS)
            assert joiner is get_service(net, "node3")  # without a restart
            assert joiner.own_membership.describe() is None
            await net.wait_for_height(height + 6)
            heights = range(height + 1, height + 7)
            assert any(net.id("node3") in find_authors(net, at) for at in heights[:3])
            assert get_state(net, "node0").q == get_state(net, "node3").q == 3
            check_chains(net)

    run_virtual(story())


class LateTrainer(ScriptedTrainer):
    """Takes its time to begin, and for each round more than the others."""

    START_S = 5.0

    is_warm = False

    async def warm_up(self) -> None:
        if not self.is_warm:
            await asyncio.sleep(self.START_S)
            self.is_warm = True

    async def start(self, task: RunTask) -> TrainerInfo:
        await self.warm_up()
        return await super().start(task)


@pytest.mark.slow
def test_who_trains_for_longer_than_the_others_is_waited_for_once_its_worker_is_there(tmp_path: Path) -> None:
    """Others wait for who is at work, and it does not overtake itself by mining without its own contribution."""

    async def story() -> None:
        async with growing(tmp_path, 4, ["node4"]) as net:
            net["node4"].trainer = LateTrainer(4, train_s=4 * TRAIN_S)
            await net.wait_for_height(3, *FOUNDERS, "node3")
            start_joiner(net, "node4")
            since = await admit(net, "node4", *FOUNDERS, "node3")
            await asyncio.sleep(LateTrainer.START_S)
            begun = net["node4"].height
            assert begun > since
            await net.wait_for_height(begun + 8)
            contributed = [at for at in range(begun, begun + 8) if net.id("node4") in find_authors(net, at)]
            assert len(contributed) >= 5
            check_chains(net)

    run_virtual(story())


def test_a_joiner_that_stands_ready_contributes_at_once_however_long_its_worker_takes_to_start(tmp_path: Path) -> None:
    """Rounds take a fraction of what starting the worker takes."""

    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            net["node3"].trainer = trainer = LateTrainer(3)
            await net.wait_for_height(3, *FOUNDERS)
            start_joiner(net, "node3")
            change_id = await propose(net, "node0", add(net, "node3"))
            await wait_until_open(net, change_id, "node1")
            book = get_service(net, "node1").proposals
            await net.wait_for(lambda: any(proposal.readiness for proposal in book), "it to stand ready")
            joiner = get_service(net, "node3")
            assert joiner.learner.info is not None
            assert (trainer.applied, trainer.trained) == ({}, [])  # it is given no blobs yet
            await approve(net, change_id, "node1", "node2")
            since = await wait_until_member(net, "node3")
            await net.wait_for_height(since + 3)
            assert any(net.id("node3") in find_authors(net, at) for at in range(since + 1, since + 4))
            check_chains(net)

    run_virtual(story())


def test_a_joiner_without_the_initial_model_contributes_at_once_too(tmp_path: Path) -> None:
    """It is given the model once it is let in, and all else that takes long is done by then."""

    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            net["node3"].trainer = trainer = LateTrainer(3)

            def join(context: NodeContext) -> RoundService:
                context.store.delete_blob(context.genesis.run.initial_model)
                return make_round_service(context)

            await net.wait_for_height(3, *FOUNDERS)
            net.start("node3", join)
            change_id = await propose(net, "node0", add(net, "node3"))
            await wait_until_open(net, change_id, "node1")
            book = get_service(net, "node1").proposals
            await net.wait_for(lambda: any(proposal.readiness for proposal in book), "it to stand ready")
            await net.wait_for(lambda: trainer.is_warm, "what it can do by now")
            assert get_service(net, "node3").learner.info is None
            await approve(net, change_id, "node1", "node2")
            since = await wait_until_member(net, "node3")
            await net.wait_for_height(since + 3)
            assert any(net.id("node3") in find_authors(net, at) for at in range(since + 1, since + 4))
            check_chains(net)

    run_virtual(story())


def test_the_fourth_s_vote_is_needed_once_it_is_a_member(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            start_joiner(net, "node3")
            await net.wait_for_height(2)
            height = await admit(net, "node3", *FOUNDERS)
            await net.wait_for_height(height + 1)
            await net.crash("node1")
            await net.wait_for_height(net["node0"].height + 4, "node0", "node2", "node3")  # q = 3 of 4
            net.check_agreement()

    run_virtual(story())


@pytest.mark.slow
def test_nobody_joins_whose_node_does_not_live(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            await net.wait_for_height(2, *FOUNDERS)
            change_id = await propose(net, "node0", add(net, "node3"))
            await approve(net, change_id, "node1", "node2")
            await net.wait_for_height(net["node0"].height + 5, *FOUNDERS)
            assert get_state(net, "node0").n == 3
            start_joiner(net, "node3")
            await wait_for_state(net, "four members", lambda state: state.n == 4)
            check_chains(net)

    run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("step", ["synced", "open", "ready", "admitted"])
def test_a_joiner_that_is_killed_at_any_step_goes_on_from_there(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            await net.wait_for_height(3, *FOUNDERS)
            checkpoint = make_checkpoint(net, "node0")

            async def kill() -> None:
                await net.crash("node3")
                await net.wait_for_height(net["node0"].height + 2, *FOUNDERS)
                start_joiner(net, "node3", checkpoint)

            start_joiner(net, "node3", checkpoint)
            await net.wait_for_height(checkpoint.height, "node3")
            if step == "synced":
                await kill()
            change_id = await propose(net, "node0", add(net, "node3"))
            await wait_until_open(net, change_id, "node3")
            if step == "open":
                await kill()

            def is_ready(name: str) -> bool:
                proposals = get_service(net, name).proposals
                return any(proposal.readiness is not None for proposal in proposals)

            await net.wait_for(lambda: all(is_ready(name) for name in net.nodes), "the joiner's readiness everywhere")
            if step == "ready":
                await kill()
            await approve(net, change_id, "node1", "node2")
            await wait_for_state(net, "four members", lambda state: state.n == 4)
            if step == "admitted":
                await kill()
            await net.wait_for_height(net["node0"].height + 4)
            assert net.id("node3") in find_authors(net, net["node0"].height)
            check_chains(net)

    run_virtual(story())


def test_readiness_is_renewed_in_good_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.consensus.governance.readiness.RENEW_HEIGHTS", 3)

    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            start_joiner(net, "node3")
            await net.wait_for_height(1)
            await wait_until_open(net, await propose(net, "node0", add(net, "node3")), "node1")

            def get_ready() -> int:
                (proposal,) = get_service(net, "node1").proposals
                return -1 if proposal.readiness is None else proposal.readiness.height

            await net.wait_for(lambda: get_ready() >= 0, "readiness")
            first = get_ready()
            await net.wait_for(lambda: get_ready() >= first + 6, "readiness that was renewed twice")

    run_virtual(story())


# ---- the way to the checkpoint


def test_a_joiner_adopts_nothing_of_another_history(tmp_path: Path) -> None:
    """All that its peers show is signed by a quorum; it does not lead to the block that people told it of."""

    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            await net.wait_for_height(8, *FOUNDERS)
            start_joiner(net, "node3", Checkpoint(5, make_digest("what a member read out")))
            service = get_service(net, "node3")
            await net.wait_for(
                lambda: any(peer.refusals[Reason.RULE] for peer in service.peers), "the joiner to refuse a block"
            )
            await net.wait_for_height(net["node0"].height + 5, *FOUNDERS)
            assert net["node3"].height == 0
            assert net["node3"].failure is None
            await net.crash("node3")
            start_joiner(net, "node3", make_checkpoint(net, "node0", 5))
            await net.wait_for_height(net["node0"].height, "node3")

    run_virtual(story())


def test_a_joiner_goes_as_far_as_the_marks_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chain.checkpoint.LEG_HEIGHTS", 4)

    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"]) as net:
            await net.wait_for_height(14, *FOUNDERS)
            good = make_checkpoint(net, "node0", 13)
            assert len(good.marks) == 3
            bad = Checkpoint(13, good.id, (good.marks[0], make_digest("another history"), good.marks[2]))
            start_joiner(net, "node3", bad)
            await net.wait_for_height(4, "node3")
            await net.wait_for_height(net["node0"].height + 5, *FOUNDERS)
            assert net["node3"].height == 4
            await net.crash("node3")
            start_joiner(net, "node3", good)
            await net.wait_for_height(net["node0"].height, "node3")
            check_chains(net)

    run_virtual(story())


def test_a_member_signs_nothing_before_its_checkpoint(tmp_path: Path) -> None:
    """A member that begins anew from a join file, with an empty store: it votes and approves from the checkpoint on."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            far = Checkpoint(10_000, make_digest("far ahead"))
            for name in ("node0", "node1", "node2"):
                net.start(name)
            start_joiner(net, "node3", far)
            await net.wait_for_height(6, "node0", "node1", "node2")
            assert net["node3"].store is not None
            assert net["node3"].store.get_signed_height() == 0
            with pytest.raises(InvalidRequest, match="has not reached the checkpoint"):
                await propose(net, "node3", RULES)

    run_virtual(story())


# ---- another history

ALL = ("node0", "node1", "node2", "node3")


async def show_other_block(net: Cluster, depth: int) -> Block:
    """A liar shows another certified block, so far below the others' heads. It waits until somebody has seen it."""
    async with lying(net, "node4") as liar:
        await net.wait_for_height(6, *ALL)
        await net.wait_for(lambda: net["node0"].height == net["node1"].height, "two at one height")
        height = net["node0"].height - depth
        tips = Tip.at(net.genesis.state, [net["node0"].get_block(at) for at in range(height)])
        keys = [node.key for node in net.nodes.values()]
        other = extend_with(tips, make_round(tips, keys), keys[1], time_ms=tips.header.time_ms + 1, start_ms=0)
        certified = encode_block(other), encode_certificate(certify(net.genesis.state, other, keys))
        liar.blocks = lambda first, count: [certified] if first == height else []
        liar.send(liar.make_status(head_height=height, head_id=other.id, height=height + 1), "node0")
        service = get_service(net, "node0")
        await net.wait_for(
            lambda: (
                net["node0"].failure is not None or any(event.kind == "divergence" for event in service.events.kept)
            ),
            "node0 to see another history",
        )
        return other


def test_another_certificate_below_the_head_is_told_and_ends_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 5, start=ALL) as net:
            other = await show_other_block(net, depth=3)
            (event,) = [event for event in get_service(net, "node0").events.kept if event.kind == "divergence"]
            assert event.data == {"height": other.height, "peer": net.id("node4").hex(), "block": other.id.hex()}
            await net.wait_for_height(net["node0"].height + 3, *ALL)
            net.check_agreement()

    run_virtual(story())


# ---- going


def test_who_leaves_contributes_no_more_and_votes_until_that_is_final(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(3)
            change_id = await propose(net, "node3", RemoveMember(get_seat(net, "node3")))
            began = net["node3"].height + 1
            await wait_until_open(net, change_id, "node0")
            await net.wait_for_height(began + 2)
            await net.crash("node3")
            net.start("node3")  # the change is open still: so it leaves still
            await net.wait_for_height(began + 5)
            for height in range(began + 1, began + 6):
                assert net.id("node3") not in find_authors(net, height)
            service = get_service(net, "node3")
            assert service.own_membership.is_leaving
            assert net["node3"].store is not None
            assert net["node3"].store.get_signed_height() >= began + 5  # it votes
            await approve(net, change_id, "node0", "node1", "node2")
            await wait_for_state(net, "three members", lambda state: state.n == 3)
            (height,) = find_change_heights(net, "node0")
            assert service.own_membership.describe() == (
                f"removed at height {height}: signs nothing any more, and goes on to serve the chain"
            )
            await net.wait_for_height(height + 4)  # it stays up, and follows
            assert net["node3"].store is not None
            assert net["node3"].store.get_signed_height() <= height
            await net.crash("node3")
            net.start("node3")
            await net.wait_for_height(net["node0"].height + 2)
            assert get_service(net, "node3").own_membership.describe() is not None
            check_chains(net)

    run_virtual(story())


def test_later_votes_of_a_removed_member_count_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            await approve(net, await propose(net, "node0", RemoveMember(get_seat(net, "node3"))), "node1", "node2")
            await wait_for_state(net, "three members", lambda state: state.n == 3)
            await net.crash("node3")
            async with lying(net, "node3") as liar:
                for _ in range(3):
                    height = net["node0"].height + 1
                    liar.send(liar.make_vote(Phase.PRECOMMIT, make_digest("a block"), height=height), "node0", "node1")
                    await net.wait_for_height(height, *FOUNDERS)
            assert net["node0"].store is not None
            final = net["node0"].store.head()
            assert final.certificate is not None
            assert all(index < 3 for index, _ in final.certificate.signatures)
            await net.wait_for_height(net["node0"].height + 2, *FOUNDERS)

    run_virtual(story())


# ---- keys


def test_a_lost_key_is_replaced_and_its_seat_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        (key,) = make_keys(1, "spare")
        async with cluster(tmp_path, 4) as net:
            net.nodes["spare"] = Node("spare", key, tmp_path / "spare", ScriptedTrainer(9))
            await net.wait_for_height(2, *FOUNDERS, "node3")
            await net.crash("node3")
            start_joiner(net, "spare", make_checkpoint(net, "node0"))
            seat = get_seat(net, "node3")
            change_id = await propose(net, "node0", ReplaceKey(seat, net.id("spare")))
            await approve(net, change_id, "node1", "node2")
            running = (*FOUNDERS, "spare")
            await wait_for_state(
                net, "the new key to be in force", lambda state: state.index_of(net.id("spare")) is not None, *running
            )
            (height,) = find_change_heights(net, "node0")
            member = get_state(net, "node0").get_seat(seat)
            assert member is not None
            assert (member.name, member.key) == ("node3", net.id("spare"))
            await net.wait_for_height(height + 4, *running)
            assert any(net.id("spare") in find_authors(net, at) for at in range(height + 1, height + 4))
            net.check_agreement()

    run_virtual(story())


def test_a_key_is_rotated_under_load_and_the_seat_goes_on(tmp_path: Path) -> None:
    """Nobody but the member agrees; rounds go on meanwhile, and it contributes with its new key."""

    async def story() -> None:
        async with cluster(tmp_path, 4, train_s=TRAIN_S) as net:
            (spare,) = make_keys(1, "spare")
            old = net.id("node3")
            seat = get_seat(net, "node3")
            await net.wait_for_height(3)
            following = asyncio.create_task(follow_keys(net, "node3", spare))
            get_service(net, "node3").signer.take_spare(spare)
            await get_service(net, "node3").proposals.propose(
                make_rotation(get_service(net, "node3").tip, old, spare.id)
            )
            await wait_for_state(net, "the new key", lambda state: state.index_of(spare.id) is not None, *FOUNDERS)
            (height,) = find_change_heights(net, "node0")
            await asyncio.wait_for(following, 60)
            await net.wait_for_height(height + 6)
            assert net["node0"].get_block(height).change is not None
            assert {index for index, _, _ in net["node0"].get_block(height).body.change.answers} == {  # type: ignore[union-attr]
                net.genesis.state.index_of(old)
            }
            member = get_state(net, "node0").get_seat(seat)
            assert member is not None
            assert (member.key, member.name) == (spare.id, "node3")
            authors = set[bytes]().union(*(find_authors(net, at) for at in range(height + 1, height + 6)))
            assert spare.id in authors
            assert old not in authors
            with pytest.raises(InvalidRequest, match="once in 1000 heights"):
                make_rotation(get_service(net, "node3").tip, spare.id, old)
            check_chains(net)

    run_virtual(story())


def test_a_node_stands_ready_for_its_own_seat_alone(tmp_path: Path) -> None:
    """Who sees the new key of another could name it for a seat of its own, and so have it out of the way."""

    async def story() -> None:
        async with cluster(tmp_path, 4, train_s=TRAIN_S) as net:
            (spare,) = make_keys(1, "spare")
            await net.wait_for_height(3)
            get_service(net, "node3").signer.take_spare(spare)
            seat = get_seat(net, "node2")
            await wait_until_open(net, await propose(net, "node2", ReplaceKey(seat, spare.id)), "node3")
            await net.wait_for_height(net["node0"].height + 8)
            member = get_state(net, "node0").get_seat(seat)
            assert member is not None
            assert member.key == net.id("node2")
            assert [proposal.readiness for proposal in get_service(net, "node3").proposals] == [None]

    run_virtual(story())


# ---- liars


def test_a_member_that_signs_twice_is_convicted_once_and_can_be_pardoned(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=FOUNDERS) as net:
            async with lying(net, "node3") as liar:
                await net.wait_for_height(2, *FOUNDERS)
                for what in ("one block", "another"):
                    liar.send(liar.make_vote(Phase.PREVOTE, make_digest(what)), *FOUNDERS)
                await wait_for_state(
                    net, "node3 to be suspended", lambda state: not state.is_active(net.id("node3")), *FOUNDERS
                )
            await net.wait_for_height(net["node0"].height + 3, *FOUNDERS)
            assert len(find_change_heights(net, "node0")) == 1
            assert all(get_open(net, name) == [] for name in FOUNDERS)
            seat = get_seat(net, "node3")
            await approve(net, await propose(net, "node0", Pardon(seat)), "node1", "node2")
            await wait_for_state(net, "node3 to be pardoned", lambda state: state.is_active(net.id("node3")), *FOUNDERS)
            await net.wait_for_height(net["node0"].height + 6, *FOUNDERS)
            assert len(find_change_heights(net, "node0")) == 2  # the old evidence counts no more
            with pytest.raises(InvalidChange):
                await propose(net, "node0", Pardon(seat))

    run_virtual(story())


@pytest.mark.slow
def test_evidence_of_heights_to_come_delays_no_conviction(tmp_path: Path) -> None:
    """A liar can accuse itself at any height: then no older evidence is news, and the newest cannot be executed."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=FOUNDERS) as net, lying(net, "node3") as liar:
            await net.wait_for_height(2, *FOUNDERS)
            height = liar.height
            for at in range(height, height + 100):
                votes = (liar.make_vote(Phase.PREVOTE, make_digest(what), height=at) for what in ("one", "other"))
                liar.send(Evidence(EvidenceKind.VOTE, *sorted(map(encode_vote, votes))), *FOUNDERS)
            await wait_for_state(
                net, "node3 to be suspended", lambda state: not state.is_active(net.id("node3")), *FOUNDERS
            )
            assert net["node0"].height < height + 40

    run_virtual(story())


@pytest.mark.slow
def test_where_the_first_in_turn_is_away_another_convicts(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 5, start=(*FOUNDERS, "node3")) as net, lying(net, "node4") as liar:
            await net.wait_for_height(2, *FOUNDERS)
            height = net["node0"].height + 1
            for what in ("one block", "another"):
                liar.send(liar.make_vote(Phase.PREVOTE, make_digest(what)), *FOUNDERS)
            await asyncio.sleep(0.01)
            first = get_state(net, "node0").active_ids[(height + 1) % 5]
            for name in ("node0", "node1", "node2", "node3"):
                if net.id(name) == first:
                    await net.crash(name)
            others = [name for name in ("node0", "node1", "node2", "node3") if net[name].service is not None]
            await wait_for_state(
                net, "node4 to be suspended", lambda state: not state.is_active(net.id("node4")), *others
            )

    run_virtual(story())


@pytest.mark.slow
def test_an_observer_that_stands_ready_is_not_refused_by_who_has_not_approved(tmp_path: Path) -> None:
    """Nor once it is a member: three of four are enough."""

    async def story() -> None:
        async with growing(tmp_path, 4, ["node4"]) as net:
            net.start("node4")
            await net.wait_for_height(2)
            change_id = await propose(net, "node0", add(net, "node4"))
            await approve(net, change_id, "node1")
            await asyncio.sleep(10.0)  # in which it says that it stands ready
            assert not is_banned(net, "node3", net.id("node4"))
            await approve(net, change_id, "node2")
            height = await wait_until_member(net, "node4")
            await net.wait_for_height(height + 4)
            assert not is_banned(net, "node3", net.id("node4"))
            net.check_agreement()

    run_virtual(story())


def is_banned(net: Cluster, name: str, peer: bytes) -> bool:
    transport = net.network.find(net.id(name))
    return transport is not None and transport.bans.is_banned(peer)


async def wait_until_member(net: Cluster, name: str) -> int:
    await wait_for_state(net, f"{name} to be a member", lambda state: state.get_member(net.id(name)) is not None)
    return net[name].height
