"""The consent of sites to train, on virtual time: what goes on without one that did not approve, and how it joins."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from chain.approvals import encode_readiness, sign_readiness
from chain.block import Answer
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.members import AddMember
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.store.sqlite import SqliteStore
from node.consensus.service import RoundService
from node.errors import InvalidRequest, NotFound
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_keys
from support.federation.cluster import Cluster, cluster
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

ALL = ("node0", "node1", "node2", "node3")
BUT_THE_LAST = ("node0", "node1", "node2")
SHARING = {"name": "fededs", "warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 4, "share_max": 100}


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_authors(net: Cluster, height: int) -> set[str]:
    authors = {contribution.author for contribution in net["node0"].get_block(height).contributions}
    return {name for name in net.nodes if net.id(name) in authors}


def ask_all(net: Cluster) -> None:
    for node in net.nodes.values():
        node.asks_to_train = True


async def agree(net: Cluster, kind: Kind, *names: str, without_training: Collection[str] = ()) -> bytes:
    """A change that the first of `names` proposes and the others approve. Its id, once it is executed."""
    proposer = get_service(net, names[0])
    member = proposer.tip.state.get_member(net.id(names[0]))
    assert member is not None
    made = proposer.tip.height
    change_id = (await proposer.proposals.propose(Change(kind, member.seat, made, made + 1, made + 100))).id
    for name in names[1:]:
        await net.wait_for(
            lambda name=name: change_id in [proposal.id for proposal in get_service(net, name).proposals],  # type: ignore[misc]
            f"the change to be open at {name}",
        )
        answer = Answer.YES_WITHOUT_TRAINING if name in without_training else Answer.YES
        await get_service(net, name).proposals.approve(change_id, answer)
    await net.wait_for(
        lambda: all(change_id in get_service(net, name).tip.state.executed for name in running(net)),
        "the change to be executed",
    )
    return change_id


def running(net: Cluster) -> Iterable[str]:
    return [name for name, node in net.nodes.items() if node.service is not None]


def make_next_run(net: Cluster, rounds: int = 0, **terms: Any) -> StartRun:
    run = net.genesis.run
    given = {**run.to_terms(), "rounds": rounds, **terms}
    del given["initial_model"]
    return StartRun(2, given, None)


async def wait_for_trained(net: Cluster, *names: str) -> int:
    """A height above all there are now that is final with contributions of these."""
    first = net["node0"].height + 1
    await net.wait_for(
        lambda: any(get_authors(net, h) >= set(names) for h in range(first, net["node0"].height + 1)),
        f"a round of {names}",
    )
    return next(h for h in range(first, net["node0"].height + 1) if get_authors(net, h) >= set(names))


async def refrain(net: Cluster, name: str, rounds: int = 3) -> None:
    """So many rounds are made without contributions of `name`, which votes in them."""
    service = get_service(net, name)
    await net.wait_for(lambda: service.consent.reason is not None, f"{name} to say that it does not train")
    first = service.tip.height + 2  # it may have contributed to the one in hand
    await net.wait_for_height(first + rounds, *running(net))
    store = net[name].store
    assert store is not None
    for height in range(first, first + rounds):
        assert name not in get_authors(net, height)
        assert any(vote.block_id == net[name].get_block(height).id for vote in store.get_votes(height))


def test_a_run_goes_on_without_a_site_that_did_not_approve_it_until_it_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await wait_for_trained(net, *ALL)  # genesis is agreed on by starting with it
            change_id = await agree(net, make_next_run(net), *BUT_THE_LAST)
            await refrain(net, "node3")
            late = get_service(net, "node3")
            assert late.consent.reason == f"run 2 is not approved here: fednode approve {change_id.hex()}"
            assert [event.data["reason"] for event in late.events.kept if event.kind == "consent"] == [
                late.consent.reason
            ]
            assert all(get_service(net, name).consent.reason is None for name in BUT_THE_LAST)
            await late.proposals.approve(change_id)
            await wait_for_trained(net, "node3")
            await net.crash("node3")
            net.start("node3")  # which knows it still
            await wait_for_trained(net, "node3")
            assert get_service(net, "node3").consent.reason is None
            net.check_agreement()

    run_virtual(story())


@pytest.mark.parametrize("answer", Answer)
def test_what_was_answered_after_a_run_began_outlives_a_reset(tmp_path: Path, answer: Answer) -> None:
    """Nobody else holds it: the chain that comes back from the peers has what the run began with."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await net.wait_for_height(1)
            others = ALL if answer is Answer.YES_WITHOUT_TRAINING else BUT_THE_LAST
            change_id = await agree(net, make_next_run(net), *others)
            await get_service(net, "node3").proposals.approve(change_id, answer)
            await net.crash("node3")
            SqliteStore.reset(net["node3"].path)
            net.start("node3")
            if answer is Answer.YES:
                await wait_for_trained(net, "node3")
            else:
                await net.wait_for_height(net["node0"].height + 1)  # it has the chain again
                await refrain(net, "node3")

    run_virtual(story())


def test_a_round_that_lacks_a_sites_consent_goes_on_with_it(tmp_path: Path) -> None:
    """Of four one is away and one has not approved: two contributions are too few, and no block comes."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await wait_for_trained(net, *ALL)
            change_id = await agree(net, make_next_run(net), *BUT_THE_LAST)
            await net.wait_for(lambda: get_service(net, "node3").consent.reason is not None, "node3 to abstain")
            await net.crash("node1")
            height = net["node3"].height
            await asyncio.sleep(20)
            assert net["node3"].height <= height + 1
            late = get_service(net, "node3")
            await late.proposals.approve(change_id)
            await late.resume()
            await wait_for_trained(net, "node3")

    run_virtual(story())


def test_rounds_of_fewer_than_a_quorum_go_on_with_one_abstaining_and_one_gone(tmp_path: Path) -> None:
    """Of four two contribute, which min_contributions allows, and three vote."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=(), min_contributions=2) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await wait_for_trained(net, *ALL)
            change_id = await agree(net, make_next_run(net), *BUT_THE_LAST)
            await refrain(net, "node3")
            await net.crash("node1")
            height = net["node0"].height
            await net.wait_for_height(height + 6, "node0", "node2", "node3")
            assert get_authors(net, height + 6) == {"node0", "node2"}
            net.start("node1")
            await wait_for_trained(net, "node0", "node1", "node2")
            await get_service(net, "node3").proposals.approve(change_id)
            await wait_for_trained(net, *ALL)
            net.check_agreement()

    run_virtual(story())


def test_what_was_not_approved_is_not_trained_in_after_a_restart_either(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=()) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await net.wait_for_height(1)
            await agree(net, make_next_run(net), *BUT_THE_LAST)
            await net.crash("node3")
            net.start("node3")
            await refrain(net, "node3")

    run_virtual(story())


def test_with_always_a_site_trains_in_what_others_have_approved(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            await agree(net, make_next_run(net), *BUT_THE_LAST)
            await wait_for_trained(net, "node3")

    run_virtual(story())


def test_with_always_too_a_site_may_approve_a_run_without_training(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            await agree(net, make_next_run(net), *ALL, without_training=("node1",))
            await refrain(net, "node1")

    run_virtual(story())


def test_a_site_may_approve_a_run_without_training_and_think_better_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=(), min_contributions=2) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await net.wait_for_height(1)
            change_id = await agree(net, make_next_run(net), *BUT_THE_LAST, without_training=("node2",))
            await refrain(net, "node2")
            assert get_service(net, "node2").consent.reason == "run 2 was approved here without training in it"
            await get_service(net, "node2").proposals.approve(change_id)
            await wait_for_trained(net, "node2")

    run_virtual(story())


def test_rounds_that_were_added_are_trained_in_by_sites_that_approved_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=4, start=()) as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await net.wait_for_height(1)
            change_id = await agree(net, SetRounds(1, 4, 0), *BUT_THE_LAST)
            late = get_service(net, "node3")
            await net.wait_for_height(8)
            assert "node3" in get_authors(net, 5)  # the fourth round: one height was the change's
            assert not any("node3" in get_authors(net, height) for height in (6, 7, 8))
            said = "run 1 is approved here up to round 4: fednode approve " + change_id.hex()
            assert late.consent.reason == said
            await late.proposals.approve(change_id)
            await wait_for_trained(net, "node3")

    run_virtual(story())


def test_a_site_does_not_train_beside_a_member_whose_joining_it_did_not_approve(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=(), quorum="majority") as net:
            ask_all(net)
            for name in ALL:
                net.start(name)
            await net.wait_for_height(1)
            change_id = await admit_newcomer(net)
            late = get_service(net, "node3")
            await net.wait_for(lambda: late.consent.reason is not None, "node3 to say that it does not train")
            assert (
                late.consent.reason
                == f"the joining of newcomer is not approved here: fednode approve {change_id.hex()}"
            )
            await refrain(net, "node3")
            await late.proposals.approve(change_id)
            await wait_for_trained(net, "node3")

    run_virtual(story())


async def admit_newcomer(net: Cluster) -> bytes:
    """A fifth member, which stands ready and never runs, with the approval of three."""
    (key,) = make_keys(1, "newcomer")
    for name in ALL:  # nobody runs it, and a member joins only while it is seen
        service = get_service(net, name)
        alive = service.peers.is_alive
        service.peers.is_alive = lambda one, alive=alive: one == key.id or alive(one)  # type: ignore[method-assign,misc]
    node = get_service(net, "node0")
    made = node.tip.height
    member = node.tip.state.get_member(net.id("node0"))
    assert member is not None
    kind = AddMember(key.id, "newcomer")
    change_id = (await node.proposals.propose(Change(kind, member.seat, made, made + 1, made + 100))).id
    for name in BUT_THE_LAST:
        service = get_service(net, name)
        await net.wait_for(
            lambda s=service: change_id in [proposal.id for proposal in s.proposals],  # type: ignore[misc]
            "the change to be open",
        )
        if name != "node0":
            await service.proposals.approve(change_id)
        tip = service.tip
        ready = sign_readiness(key, net.genesis.chain_id, change_id, height=tip.height, block_id=tip.id)
        sender = next(peer for peer in service.peers)
        service.proposals.on_message(sender, Message(MessageKind.READINESS, encode_readiness(ready)))
    await net.wait_for(
        lambda: all(change_id in get_service(net, name).tip.state.executed for name in ALL), "the newcomer to be in"
    )
    return change_id


def test_samples_are_shared_in_the_run_of_genesis_only_with_the_word_of_the_configuration(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=(), method=SHARING, rounds=3) as net:
            net["node3"].approves_genesis = False
            net.start("node3")
            service = get_service(net, "node3")
            await net.wait_for(lambda: service.consent.reason is not None, "node3 to say that it does not train")
            assert service.consent.reason == (
                "run 1, whose method shares transformed samples, is trained in only with consensus.approves_genesis: "
                "true in this site's configuration"
            )
            assert service.machine is not None
            assert service.machine.abstains
            net.start("node0")
            other = get_service(net, "node0")
            await net.wait_for(lambda: other.machine is not None, "node0 to begin")
            assert other.machine is not None
            assert other.machine.contributes

    run_virtual(story())


def test_nobody_can_approve_afterwards_a_run_that_has_shared_samples(tmp_path: Path) -> None:
    """Whatever the configuration says of runs in general."""

    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2) as net:
            await net.wait_for_height(1)
            change_id = await agree(net, make_next_run(net, rounds=3, method=SHARING), *BUT_THE_LAST)
            late = get_service(net, "node3")
            await net.wait_for(lambda: late.consent.reason is not None, "node3 to say that it does not train")
            assert late.consent.reason is not None
            assert late.consent.reason.endswith("was not approved here before it began")
            with pytest.raises(InvalidRequest, match="only sites that approved it before train in it"):
                await late.proposals.approve(change_id)
            assert get_service(net, "node0").consent.reason is None

    run_virtual(story())


def test_a_change_that_training_does_not_depend_on_is_not_approved_afterwards(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            change_id = await agree(net, EndRun(1), *BUT_THE_LAST)
            with pytest.raises(NotFound, match="no such change is open here"):
                await get_service(net, "node3").proposals.approve(change_id)

    run_virtual(story())
