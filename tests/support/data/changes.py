"""Changes for tests: proposed, approved by keys, put into blocks with certificates, and chains that such blocks extend.

All that is made here is valid unless an argument makes it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

from chain import pow as work
from chain.approvals import sign_approval, sign_readiness
from chain.beacon import make_reveal
from chain.block import Answer, ApprovedChange, Block, Body, Certificate, Digest, Header, Id, Measure, Phase, Readiness
from chain.changes.base import Kind, Place
from chain.changes.change import Change, read_change
from chain.changes.execution import compute_next_state, execute_change, get_aggregate
from chain.codec import compute_body_digest, compute_seal, make_block, sign_contribution, sign_vote
from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.state import State
from chain.tip import Tip
from support.data.chains import MINING_MS, ROUND_MS, make_digest

MODEL = make_digest("an aggregate")


def propose(kind: Kind, *, by: int = 0, made: int = 0, first: int | None = None, expires: int | None = None) -> Change:
    """Makes a change that any of the hundred blocks after `made` may hold."""
    return Change(kind, by, made, made + 1 if first is None else first, made + 100 if expires is None else expires)


def make_alike(chain_id: Digest, one: Change, other: Change, *, digits: int = 4) -> tuple[Change, Change]:
    """Returns the two changes with notes that make their ids begin with the same hex digits, as an attacker could write
    them."""
    ones: dict[str, Change] = {}
    others: dict[str, Change] = {}
    for number in count():
        for change, made, opposite in ((one, ones, others), (other, others, ones)):
            noted = replace(change, note=str(number))
            start = noted.compute_id(chain_id).hex()[:digits]
            made[start] = noted
            if start in opposite:
                return ones[start], others[start]
    raise AssertionError("no end of numbers")


def execute(state: State, kind: Kind, height: int = 1, *, aggregate: Digest = MODEL) -> State:
    """Returns the state after a change of this kind in the block at `height`, whoever agrees to it."""
    return execute_change(state, propose(kind, made=height - 1), Place(height, aggregate))


def approve(
    state: State, change: Change, keys: Iterable[SigningKey], answer: Answer = Answer.YES
) -> list[tuple[int, Answer, bytes]]:
    """Returns the answers of those of `keys` that are members'."""
    change_id = change.compute_id(state.chain_id)
    found = [(state.index_of(key.id), sign_approval(key, state.chain_id, change_id, answer)) for key in keys]
    return sorted((index, given.answer, given.signature) for index, given in found if index is not None)


def stand_ready(chain_id: Digest, change: Change, key: SigningKey, block: Block) -> Readiness:
    """Signs the readiness of a new key whose node has the chain up to `block`."""
    return sign_readiness(key, chain_id, change.compute_id(chain_id), height=block.height, block_id=block.id)


def make_approved(
    tip: Tip, change: Change, keys: Iterable[SigningKey], *, ready: Sequence[SigningKey] = ()
) -> ApprovedChange:
    """Returns a change with the answers of `keys` and with the readiness of new ones at the tip."""
    words = [stand_ready(tip.state.chain_id, change, key, tip.block) for key in ready]
    return ApprovedChange(
        change.data,
        tuple(approve(tip.state, change, keys)),
        tuple(sorted((word.key, word.height, word.block_id, word.signature) for word in words)),
    )


def seal(chain_id: Digest, header: Header, body: Body, key: SigningKey) -> Block:
    """Returns the block with the first nonce of enough work, whatever else is wrong with it."""
    nonce = work.search(compute_seal(chain_id, header), header.difficulty, 0, 10_000_000)
    assert nonce is not None, f"no nonce for difficulty {header.difficulty}"
    return make_block(chain_id, header, nonce, body, key)


def extend_with(tip: Tip, body: Body, miner: SigningKey, **header: Any) -> Block:
    """Returns a block on `tip` with this body; the fields of its header that depend on a change follow from it."""
    after, aggregate = tip.state, make_digest(f"aggregate {tip.height + 1}")
    if body.change is None:
        after = tip.compute_state(body)
    if body.change is not None:
        aggregate = tip.header.aggregate
        if "state_next" not in header:
            change = read_change(body.change.change)
            after = execute_change(tip.state, change, Place(tip.height + 1, aggregate))
            aggregate = get_aggregate(change, aggregate)
    time_ms = tip.header.time_ms + ROUND_MS
    good = Header(
        version=tip.state.protocol,
        height=tip.height + 1,
        prev=tip.id,
        body=compute_body_digest(body),
        aggregate=aggregate,
        state_next=header.get("state_next", after.digest),
        miner=miner.id,
        start_ms=time_ms - MINING_MS,
        time_ms=time_ms,
        difficulty=tip.next_difficulty,
    )
    return seal(tip.state.chain_id, replace(good, **header), body, miner)


def make_round(tip: Tip, authors: Iterable[SigningKey], measures: Mapping[Id, Measure] = MappingProxyType({})) -> Body:
    """Makes a body with a contribution of each of `authors` to the block after `tip`, and the measures that some made
    of the round before."""
    contributions = [
        sign_contribution(
            key,
            tip.state.chain_id,
            height=tip.height + 1,
            prev=tip.id,
            weight=1,
            payloads=(),
            reveal=make_reveal(key, tip.state.chain_id, tip.block, tip.state.protocol),
            measure=measures.get(key.id),
        )
        for key in authors
    ]
    return Body(tuple(sorted(contributions, key=lambda contribution: contribution.author)))


def certify(state: State, block: Block, keys: Iterable[SigningKey]) -> Certificate:
    """Makes a certificate with precommits of the first q of `keys` that are members of `state`."""
    signatures: list[tuple[int, bytes]] = []
    for key in keys:
        index = state.index_of(key.id)
        if index is not None and len(signatures) < state.q:
            phase, height = Phase.PRECOMMIT, block.height
            vote = sign_vote(key, state.chain_id, phase=phase, height=height, view=0, block_id=block.id)
            signatures.append((index, vote.signature))
    return Certificate(0, tuple(sorted(signatures)))


class LivingChain:
    """A chain that grows by rounds and changes. `keys` are all that any of them may need, `tips` those of each height,
    `blocks` those above 0 with their certificates."""

    def __init__(self, genesis: Genesis, keys: Sequence[SigningKey]) -> None:
        self.genesis = genesis
        self.keys = list(keys)
        self.tips = [Tip.at(genesis.state, (genesis.block0,))]
        self.blocks: list[tuple[Block, Certificate]] = []

    @property
    def tip(self) -> Tip:
        return self.tips[-1]

    @property
    def state(self) -> State:
        return self.tip.state

    def get_active(self) -> list[SigningKey]:
        return [key for key in self.keys if self.state.is_active(key.id)]

    def make_change(self, kind: Kind, **header: Any) -> Block:
        """Makes the block of a change to which everybody agrees, on the head."""
        change = propose(kind, made=self.tip.height)
        new_key: Id | None = kind.get_new_key()
        ready = [key for key in self.keys if key.id == new_key]
        approved = make_approved(self.tip, change, self.keys, ready=ready)
        return extend_with(self.tip, Body(change=approved), self.get_active()[0], **header)

    def add_change(self, kind: Kind) -> Block:
        return self.add(self.make_change(kind))

    def add_rounds(self, count: int = 1, measures: Mapping[Id, Measure] = MappingProxyType({})) -> None:
        for _ in range(count):
            active = self.get_active()
            miner = active[self.tip.height % len(active)]
            self.add(extend_with(self.tip, make_round(self.tip, active, measures), miner))

    def add(self, block: Block) -> Block:
        """Makes this block final."""
        assert compute_next_state(self.state, block, self.tip.header.aggregate).digest == block.header.state_next
        self.blocks.append((block, certify(self.state, block, self.keys)))
        self.tips.append(self.tip.extend(block))
        return block
