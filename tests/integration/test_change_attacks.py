"""Changes with a liar among the members, with crashes at their height, and with members that are no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.approvals import encode_approval, encode_proposal, encode_readiness, sign_approval, sign_readiness
from chain.block import ZERO, ApprovedChange, Body, Phase
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.members import RemoveMember
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, SetRounds
from node.p2p.status import OpenChange
from node.p2p.transport.base import Message, MessageKind
from node.payloads.checks import Aggregate, RoundPayloads
from support.data.changes import extend_with
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, cluster
from support.federation.proposing import (
    RULES,
    approve,
    check_chains,
    find_change_heights,
    get_open,
    get_seat,
    get_service,
    propose,
    wait_for_state,
    wait_until_over,
)
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

HONEST = ("node0", "node1", "node2")


def make_proposal(liar: Liar, kind: Kind, *, made: int | None = None, span: int = 100) -> tuple[Change, Message]:
    """A change of the liar's, and the message that brings it."""
    member = liar.tip.state.get_member(liar.key.id)
    assert member is not None
    made = liar.tip.height if made is None else made
    change = Change(kind, member.seat, made, made + 1, made + span)
    chain_id = liar.net.genesis.chain_id
    approval = sign_approval(liar.key, chain_id, change.compute_id(chain_id))
    return change, Message(MessageKind.PROPOSAL, encode_proposal(change.data, approval))


async def wait_s(net: Cluster, seconds: float) -> None:
    clock = net["node0"].clock
    until_s = clock.monotonic() + seconds
    await net.wait_for(lambda: clock.monotonic() >= until_s, "that time to pass")


def count_rows(net: Cluster, name: str) -> int:
    store = net[name].store
    assert store is not None
    return len(store.get_changes())


def test_a_storm_of_changes_stops_no_change_of_the_honest(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST) as net, lying(net, "node3") as liar:
            await net.wait_for_height(2, *HONEST)
            for span in range(2, 102):
                liar.send(make_proposal(liar, RULES, span=span)[1])
                liar.send(make_proposal(liar, SetRules({"keep_heights": (7, 8)}), span=span)[1])
                liar.send(liar.make_status(open=()))
            change_id = await propose(net, "node0", SetRules({"evidence_heights": (100, 101)}))
            await approve(net, change_id, "node1", "node2")
            wanted = 101
            await wait_for_state(net, "the rule", lambda state: state.rules.evidence_heights == wanted, *HONEST)
            for name in HONEST:
                assert len([each for each in get_open(net, name) if each != change_id]) <= 8
                assert count_rows(net, name) <= 9
            assert not liar.is_refused_by("node0")
            check_chains(net)

    run_virtual(story())


def test_consent_to_nothing_known_and_bytes_of_nothing_end_no_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST) as net, lying(net, "node3") as liar:
            await net.wait_for_height(1, *HONEST)
            chain_id = net.genesis.chain_id
            change, message = make_proposal(liar, RULES)
            change_id = change.compute_id(chain_id)
            approval = encode_approval(sign_approval(liar.key, chain_id, change_id))
            ready = sign_readiness(liar.key, chain_id, change_id, height=0, block_id=net.genesis.block0.id)
            for _ in range(10):
                liar.send(Message(MessageKind.APPROVAL, approval))
                liar.send(Message(MessageKind.READINESS, encode_readiness(ready)))
            liar.send(message)
            liar.send(Message(MessageKind.READINESS, encode_readiness(ready)))  # of a key that it does not bring
            liar.send(Message(MessageKind.APPROVAL, approval[:32] + b"\2" + approval[33:]))
            await net.wait_for_height(net["node0"].height + 3, *HONEST)
            for name in HONEST:
                (held,) = get_service(net, name).proposals
                assert set(held.approvals) == {liar.key.id}
                assert held.readiness is None
            liar.send(Message(MessageKind.PROPOSAL, message.data[:137] + b'{"change":' + b"[" * 50_000))
            await net.wait_for_height(net["node0"].height + 3, *HONEST)
            assert liar.is_refused_by("node0")

    run_virtual(story())


@pytest.mark.parametrize("idle", [False, True])
def test_a_block_of_a_change_that_lacks_consent_or_is_for_another_height_is_refused(tmp_path: Path, idle: bool) -> None:
    async def story() -> None:
        rounds = 2 if idle else 0
        async with cluster(tmp_path, 4, start=HONEST, rounds=rounds) as net, lying(net, "node3") as liar:
            await net.wait_for_height(2, *HONEST)
            change, message = make_proposal(liar, RULES)
            liar.send(message)
            chain_id, tip = net.genesis.chain_id, liar.tip
            own = sign_approval(liar.key, chain_id, change.compute_id(chain_id))
            index = tip.state.index_of(liar.key.id)
            assert index is not None
            forged = tuple((i, own.answer, own.signature) for i in range(3))
            for answers in ((), ((index, own.answer, own.signature),), forged):
                body = Body(change=ApprovedChange(change.data, answers))
                time_ms = max(net["node0"].clock.now_ms(), tip.header.time_ms + 1)
                liar.send(extend_with(tip, body, liar.key, time_ms=time_ms, start_ms=time_ms))
            late, _ = make_proposal(liar, RULES, made=tip.height, span=1)
            body = Body(change=ApprovedChange(late.data, ()))
            block = extend_with(tip, body, liar.key, state_next=bytes(32))
            liar.send(block)
            await approve(
                net, await propose(net, "node0", SetRounds(1, rounds, 5) if idle else RULES), "node1", "node2"
            )
            await net.wait_for(lambda: find_change_heights(net, "node0") != [], "the change")
            await net.wait_for_height(5 if idle else net["node0"].height + 3, *HONEST)
            for height in range(1, net["node0"].height + 1):
                assert net["node0"].get_block(height).header.miner != liar.key.id
            check_chains(net)

    run_virtual(story())


def test_who_says_that_it_holds_nothing_is_given_changes_less_and_less_often(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, rounds=1) as net, lying(net, "node3") as liar:
            await net.wait_for_height(1, *HONEST)
            await propose(net, "node0", RULES)
            given = 0
            for _ in range(400):
                liar.heard.clear()
                liar.send(liar.make_status(open=()))
                await wait_s(net, 0.3)
                given += sum(message.kind is MessageKind.PROPOSAL for _, message in liar.heard)
            assert 1 <= given <= 40
            liar.send(liar.make_status(open=tuple(OpenChange(bytes([i]) * 32, 0b1111, 5) for i in range(64))))
            await approve(net, get_open(net, "node0")[0], "node1", "node2")
            await wait_for_state(net, "the rule", lambda state: state.rules.keep_heights == 3, *HONEST)

    run_virtual(story())


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("idle", [False, True])
def test_all_that_crash_while_a_change_is_decided_take_it_up_again(tmp_path: Path, after_s: float, idle: bool) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=1 if idle else 0) as net:
            await net.wait_for_height(1)
            await approve(net, await propose(net, "node0", RULES), "node1", "node2")
            await wait_s(net, after_s)
            for name in list(net.nodes):
                await net.crash(name)
            for name in list(net.nodes):
                net.start(name)
            await wait_for_state(net, "the rule to be in force", lambda state: state.rules.keep_heights == 3)
            if not idle:
                await net.wait_for_height(net["node0"].height + 2)
            assert len(find_change_heights(net, "node0")) == 1
            check_chains(net)
            await net.wait_for(lambda: all(count_rows(net, name) == 0 for name in net.nodes), "no row to be left")

    run_virtual(story())


@pytest.mark.parametrize("name", ["node0", "node1", "node2", "node3"])
def test_whoever_is_removed_follows_as_one_that_signs_nothing(tmp_path: Path, name: str) -> None:
    """Each in turn, so that the coordinator of the next height and whoever mines are among them."""

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            others = [other for other in net.nodes if other != name]
            change_id = await propose(net, name, RemoveMember(get_seat(net, name)))
            await approve(net, change_id, *others)
            await wait_for_state(net, "three members", lambda state: state.n == 3, *others)
            (height,) = find_change_heights(net, others[0])
            await net.wait_for_height(height + 3, *others)
            assert net[name].failure is None
            await net.wait_for_height(height + 2, name)
            assert find_signed_above(net, name, height) == []
            await net.crash(name)
            net.start(name)
            await net.wait_for_height(net[others[0]].height + 2, name)
            assert get_service(net, name).proposals is not None
            check_chains(net)

    run_virtual(story())


def find_signed_above(net: Cluster, name: str, height: int) -> list[int]:
    service, store = get_service(net, name), net[name].store
    assert store is not None
    return [at for at in range(height + 1, service.tip.height + 1) if store.get_votes(at)]


def test_one_that_comes_late_takes_up_an_idle_head_and_votes_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST, rounds=3) as net:
            await net.wait_for_height(3, *HONEST)
            net.start("node3")
            await net.wait_for_height(3, "node3")
            await net.crash("node0")
            await approve(net, await propose(net, "node3", SetRounds(1, 3, 4)), "node1", "node2")
            await net.wait_for_height(5, "node1", "node2", "node3")
            net.start("node0")
            await net.wait_for_height(5)
            await wait_until_over(net)
            assert [get_service(net, name).stall for name in net.nodes] == [None] * 4
            check_chains(net)

    run_virtual(story())


def test_an_idle_federation_rests(tmp_path: Path) -> None:
    """Nothing is mined, signed or counted as a stall, whatever a liar votes there."""

    async def story() -> None:

        async with cluster(tmp_path, 4, start=HONEST, rounds=1) as net, lying(net, "node3") as liar:
            await net.wait_for_height(1, *HONEST)
            for view in range(5):
                for phase in Phase:
                    liar.send(liar.make_vote(phase, ZERO, view=view * 1000))
            liar.send(liar.make_contribution())
            liar.send(liar.make_contribution(height=3))
            await wait_s(net, 60.0)
            for name in HONEST:
                service = get_service(net, name)
                assert service.is_done
                assert service.machine is None
                assert service.stall is None
                assert service.current.machine is not None
                assert service.current.machine.view == 0
                assert find_signed_above(net, name, 1) == []
                assert len(service.tasks) == 0

    run_virtual(story())


def test_a_run_whose_aggregate_nobody_can_compute_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contribution is here, and each tries again and again to make a candidate of them."""

    async def fail(payloads: RoundPayloads, contributions: object) -> Aggregate:
        raise ArithmeticError("it diverges")

    async def story() -> None:
        async with cluster(tmp_path, 4, may_fail=True) as net:
            await net.wait_for_height(2)
            monkeypatch.setattr(RoundPayloads, "aggregate", fail)
            await wait_s(net, 5.0)
            height = net["node0"].height
            await wait_s(net, 20.0)
            assert net["node0"].height == height
            await approve(net, await propose(net, "node0", EndRun(1)), "node1", "node2")
            await wait_for_state(net, "the run to be ended", lambda state: state.run.is_ended)
            assert all(get_service(net, name).is_done for name in net.nodes)
            check_chains(net)

    run_virtual(story())


def test_rounds_go_on_from_the_aggregate_before_many_changes_in_a_row(tmp_path: Path) -> None:
    """More of them than blocks are kept whole; one that was away takes up what was made before them, too."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=HONEST) as net:
            await net.wait_for_height(2, *HONEST)
            for name in HONEST:
                get_service(net, name).participation.is_paused = True
            await wait_s(net, 10.0)
            for old in range(2, 8):
                change_id = await propose(net, "node0", SetRules({"evidence_heights": (98 + old, 99 + old)}))
                await approve(net, change_id, "node1", "node2")
                await net.wait_for(lambda: len(find_change_heights(net, "node0")) > old - 2, "it")  # noqa: B023
            net.start("node3")
            height = net["node0"].height
            await net.wait_for_height(height, "node3")
            for name in HONEST:
                service = get_service(net, name)
                service.participation.is_paused = False
                await service.resume()
            await net.wait_for_height(height + 4)
            check_chains(net)

    run_virtual(story())
