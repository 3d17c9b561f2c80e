"""Changes that two or three of ten cannot bring about, and the race of a member with the thief of its key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from chain.approvals import (
    compute_change_id,
    encode_approval,
    encode_proposal,
    encode_readiness,
    sign_approval,
    sign_readiness,
)
from chain.block import Answer, ApprovedChange, Body, Phase
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.members import Pardon, RemoveMember, ReplaceKey
from chain.evidence import make_evidence
from chain.signing import SigningKey, encode_id
from chain.state import Member, State
from node.consensus.signing.keys import make_rotation
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_digest, make_keys
from support.data.changes import extend_with
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster
from support.federation.joining import TRAIN_S, follow_keys, make_checkpoint, start_joiner
from support.federation.proposing import (
    approve,
    check_chains,
    find_change_heights,
    get_seat,
    get_service,
    get_state,
    propose,
    wait_for_state,
    wait_until_open,
)
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

N, QUORUM = 10, 7
VICTIM = "node0"
(NEW,) = make_keys(1, "thief")
NEW_AGAIN, SPARE = make_keys(2, "another")


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@asynccontextmanager
async def colluding(path: Path, num_liars: int) -> AsyncIterator[tuple[Cluster, list[str], list[Liar]]]:
    """Ten members, of which the last ones lie."""
    honest = [f"node{i}" for i in range(N - num_liars)]
    async with cluster(path, N, start=honest) as net, AsyncExitStack() as stack:
        liars = [await stack.enter_async_context(lying(net, f"node{i}")) for i in range(len(honest), N)]
        await net.wait_for_height(2, *honest)
        yield net, honest, liars


async def push(liars: Sequence[Liar], kind: Kind, name: str, *, ready: SigningKey | None = None) -> Change:
    """A change that the first of the liars proposes and all of them approve; `name` has all of that."""
    first, net, chain_id = liars[0], liars[0].net, liars[0].net.genesis.chain_id
    member = first.tip.state.get_member(first.key.id)
    assert member is not None
    made = first.tip.height
    change = Change(kind, member.seat, made, made + 1, made + 100)
    change_id = change.compute_id(chain_id)
    own, *others = [sign_approval(liar.key, chain_id, change_id) for liar in liars]
    first.send(Message(MessageKind.PROPOSAL, encode_proposal(change.data, own)))
    await wait_until_open(net, change_id, name)
    for liar, approval in zip(liars[1:], others, strict=True):
        liar.send(Message(MessageKind.APPROVAL, encode_approval(approval)))
    if ready is not None:
        first.send(make_ready(first, change, ready))
    (proposal,) = get_service(net, name).proposals
    await net.wait_for(lambda: len(proposal.approvals) == len(liars), "the approvals of the liars")
    await net.wait_for(lambda: ready is None or proposal.readiness is not None, "the word of the new key")
    return change


def make_ready(liar: Liar, change: Change, key: SigningKey) -> Message:
    chain_id, tip = liar.net.genesis.chain_id, liar.tip
    change_id = change.compute_id(chain_id)
    return Message(
        MessageKind.READINESS,
        encode_readiness(sign_readiness(key, chain_id, change_id, height=tip.height, block_id=tip.id)),
    )


Answers = tuple[tuple[int, Answer, bytes], ...]


def send_block(liar: Liar, change: Change, answers: Answers, ready: SigningKey | None = None) -> bytes:
    """A block of this change on the tip, with the votes of the liar for it. Its id."""
    tip, chain_id = liar.tip, liar.net.genesis.chain_id
    readiness: tuple[tuple[bytes, int, bytes, bytes], ...] = ()
    if ready is not None:
        word = sign_readiness(ready, chain_id, change.compute_id(chain_id), height=tip.height, block_id=tip.id)
        readiness = ((word.key, word.height, word.block_id, word.signature),)
    time_ms = max(liar.net[VICTIM].clock.now_ms(), tip.header.time_ms + 1)
    body = Body(change=ApprovedChange(change.data, tuple(sorted(answers)), readiness))
    block = extend_with(tip, body, liar.key, time_ms=time_ms, start_ms=time_ms)
    liar.send(block)
    for phase in Phase:
        liar.send(liar.make_vote(phase, block.id))
    return block.id


def sign(state: State, change: Change, keys: Iterable[SigningKey]) -> Answers:
    """The true answers of these members."""
    change_id = compute_change_id(state.chain_id, change.data)
    signed = []
    for key in keys:
        index = state.index_of(key.id)
        assert index is not None
        signed.append((index, Answer.YES, sign_approval(key, state.chain_id, change_id).signature))
    return tuple(signed)


def forge(net: Cluster, change: Change, liar: Liar, missing: str) -> list[Answers]:
    """What might pass for the answer of a member that has not given it."""
    state = liar.tip.state
    index = state.index_of(net.id(missing))
    assert index is not None
    other = Change(change.kind, change.by, change.made, change.first, change.expires + 1)
    return [
        (),  # one too few
        ((index, Answer.YES, sign(state, change, [liar.key])[0][2]),),  # of the liar's key
        ((index, Answer.YES, sign(state, other, [net[missing].key])[0][2]),),  # to another change
        ((index, Answer.YES_WITHOUT_TRAINING, sign(state, other, [net[missing].key])[0][2]),),
        ((index, Answer.YES, bytes(64)),),
    ]


@pytest.mark.parametrize("num_liars", [2, 3])
@pytest.mark.parametrize("what", ["remove this node", "give the seat of this node another key"])
def test_no_change_passes_that_one_honest_approval_is_missing_of(
    tmp_path: Path, num_liars: int, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They push it, have it approved by all but one that it takes, and mine blocks with what might pass for that."""

    async def story() -> tuple[int, int]:
        async with colluding(tmp_path, num_liars) as (net, honest, liars):
            seat = get_seat(net, VICTIM)
            ready = None if what == "remove this node" else NEW
            *deceived, missing = honest[1 : QUORUM - num_liars + 1]
            kind = RemoveMember(seat) if ready is None else ReplaceKey(seat, NEW.id)
            change = await push(liars, kind, missing, ready=ready)
            change_id = change.compute_id(net.genesis.chain_id)
            await approve(net, change_id, *deceived)
            first, tried = net[missing].height, 0
            for attempt in range(5):
                liar = liars[attempt % num_liars]
                keys = [*(each.key for each in liars), *(net[name].key for name in deceived)]
                extra = forge(net, change, liar, missing)[attempt]
                send_block(liar, change, (*sign(liar.tip.state, change, keys), *extra), ready)
                tried += 1
                await net.wait_for_height(net[missing].height + 1, *honest)
            assert get_state(net, missing).get_seat(seat) == net.genesis.state.get_seat(seat)
            assert find_change_heights(net, missing) == []
            made = net[missing].height - first
            (proposal,) = get_service(net, missing).proposals
            lacks = get_service(net, missing).proposals.compute_missing(proposal)
            assert (lacks.before, lacks.readiness) == (1, None)
            await approve(net, change_id, missing)  # who could be deceived, too
            await wait_for_state(net, "the change", lambda state: change_id in state.executed, *honest[1:])
            check_chains(net)
            return tried, made

    with caplog.at_level("WARNING"):
        tried, made = run_virtual(story())
    print(f"{tried} blocks of {num_liars} that lie refused, {made} rounds meanwhile")
    assert made >= tried
    assert [record.message for record in caplog.records if f"would {what}: if that is not as agreed" in record.message]


# ---- the thief of a key


@dataclass(frozen=True, slots=True)
class Thief:
    """One that has the victim's key, and stands where another member should."""

    liar: Liar
    key: SigningKey
    seat: int

    def rotate(self, new: SigningKey, *, made: int) -> Change:
        """Proposes a key of its own for the victim's seat."""
        net = self.liar.net
        chain_id = net.genesis.chain_id
        change = Change(ReplaceKey(self.seat, new.id), self.seat, made, made + 1, made + 1000)
        approval = sign_approval(self.key, chain_id, change.compute_id(chain_id))
        self.liar.send(Message(MessageKind.PROPOSAL, encode_proposal(change.data, approval)))
        return change

    def sign_twice(self, height: int) -> None:
        """Proof against whoever has the seat, of a height at which the stolen key was in force."""
        liar = self.liar
        one, two = (liar.make_vote(Phase.PREVOTE, make_digest(a), height=height, key=self.key) for a in ("one", "two"))
        liar.send(make_evidence(one, two))


@asynccontextmanager
async def robbed(path: Path) -> AsyncIterator[tuple[Cluster, list[str], Thief]]:
    honest = [f"node{i}" for i in range(6)]
    async with cluster(path, 7, start=honest, train_s=TRAIN_S) as net, lying(net, "node6") as liar:
        await net.wait_for_height(3, *honest)
        yield net, honest[1:], Thief(liar, net[VICTIM].key, get_seat(net, VICTIM))


async def rotate(net: Cluster) -> bytes:
    """The victim's own rotation."""
    service = get_service(net, VICTIM)
    service.signer.take_spare(SPARE)
    return (await service.proposals.propose(make_rotation(service.tip, net.id(VICTIM), SPARE.id))).id


def find_member(net: Cluster, name: str, seat: int) -> Member:
    member = get_state(net, name).get_seat(seat)
    assert member is not None
    return member


async def wait_for_key(net: Cluster, key: SigningKey, *names: str) -> None:
    await wait_for_state(net, "the key to be in force", lambda state: state.index_of(key.id) is not None, *names)


async def wait_until_it_contributes(net: Cluster, key: bytes, name: str) -> None:
    """Until the newest block has a contribution of this key."""
    await net.wait_for(
        lambda: key in {each.author for each in get_service(net, name).tip.block.contributions},
        "a contribution with the new key",
        timeout_s=30.0,
    )


def test_the_thief_of_a_key_that_rotates_first_is_told_of_and_the_others_take_the_seat_back(tmp_path: Path) -> None:
    """It says that it proposed long ago, so that its rotation comes before the holder's."""

    async def story() -> int:
        async with robbed(tmp_path) as (net, others, thief):
            change = thief.rotate(NEW, made=0)
            own = await rotate(net)
            thief.liar.send(make_ready(thief.liar, change, NEW))
            await wait_for_state(
                net, "the thief's key", lambda state: state.index_of(NEW.id) is not None, VICTIM, *others
            )
            stolen = find_member(net, others[0], thief.seat).key_since
            said = get_service(net, VICTIM).own_membership.describe() or ""
            assert said.startswith(f"replaced at height {stolen}: node0 has the key {encode_id(NEW.id)} by now")
            assert (
                get_service(net, VICTIM).proposals.ended[own].startswith("replace_key, superseded: whoever proposed it")
            )
            await net.crash(VICTIM)
            net.nodes["spare"] = Node("spare", SPARE, tmp_path / "spare", ScriptedTrainer(9))
            start_joiner(net, "spare", make_checkpoint(net, others[0]))
            again = await propose(net, others[0], ReplaceKey(thief.seat, SPARE.id))
            thief.rotate(NEW_AGAIN, made=net[others[0]].height)  # which it may not for 1,000 heights
            await approve(net, again, *others[1:])
            await wait_for_state(
                net, "the seat to be back", lambda state: state.index_of(SPARE.id) is not None, *others
            )
            back = find_member(net, others[0], thief.seat).key_since
            await wait_until_it_contributes(net, SPARE.id, others[0])
            check_chains(net)
            return back - stolen

    print(f"{run_virtual(story())} heights in the thief's hand")


def test_a_holder_that_rotates_first_is_rid_of_the_thief_but_for_one_pardon(tmp_path: Path) -> None:
    """With the old key it is still possible to sign twice what was signed once."""

    async def story() -> None:
        async with robbed(tmp_path) as (net, others, thief):
            following = asyncio.create_task(follow_keys(net, VICTIM, SPARE))
            await rotate(net)
            await wait_for_key(net, SPARE, *others)
            await asyncio.wait_for(following, 60)
            thief.rotate(NEW, made=0)
            thief.sign_twice(2)
            await wait_for_state(net, "the seat to be suspended", lambda state: not state.is_active(SPARE.id), *others)
            assert find_member(net, others[0], thief.seat).key == SPARE.id
            await approve(net, await propose(net, others[0], Pardon(thief.seat)), *others[1:])
            await wait_for_state(net, "the pardon", lambda state: state.is_active(SPARE.id), *others)
            thief.sign_twice(3)
            await wait_until_it_contributes(net, SPARE.id, others[0])
            await net.wait_for_height(net[others[0]].height + 5, *others)
            assert get_state(net, others[0]).is_active(SPARE.id)
            check_chains(net)

    run_virtual(story())
