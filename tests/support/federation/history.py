"""The one history that honest members may have, checked from outside them: FEDERATION §4 beside PROTOCOL §8."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from chain.approvals import compute_change_id
from chain.block import ZERO, ApprovedChange, Certificate, Digest, Id, Phase, Vote
from chain.changes.base import Place
from chain.changes.change import read_change
from chain.changes.execution import execute_change
from chain.genesis import Genesis
from chain.state import State
from support.federation.invariants import InvariantBroken, sign


@dataclass(frozen=True, slots=True)
class PlainBlock:
    """The part of a block that the state and the vote need. Without a change it is a round's."""

    id: Id
    height: int
    parent: Id
    miner: Id
    change: ApprovedChange | None = None


def follow(state: State, block: PlainBlock) -> State:
    """Returns the state after a block. Raises InvalidChange."""
    if block.change is None:
        return state
    return execute_change(state, read_change(block.change.change), Place(block.height, ZERO))


def is_certified(state: State, block: PlainBlock, certificate: Certificate) -> bool:
    """Says whether a quorum of the state's members signed the block. A signature is good if `sign` would have made
    it."""
    voters = [voter for voter, _ in certificate.signatures]
    return len(set(voters)) == len(voters) >= state.q and all(
        voter < state.n and signature == _sign(block, certificate.view, state.member_ids[voter]).signature
        for voter, signature in certificate.signatures
    )


@lru_cache(maxsize=4096)
def _sign(block: PlainBlock, view: int, voter: Id) -> Vote:
    return sign(Phase.PRECOMMIT, block.height, view, block.id, voter)


class History:
    """Remembers every block that an honest site has finalised, and derives the states by itself.

    `leaves_out` names invariants that are not checked, to see what follows when they are broken.
    """

    def __init__(self, genesis: Genesis, leaves_out: Iterable[str] = ()) -> None:
        block0 = genesis.block0
        self.blocks = [PlainBlock(block0.id, 0, ZERO, ZERO)]
        self.states = [genesis.state]
        self.executed: dict[Digest, int] = {}  # the height of each executed change, for good
        self._leaves_out = frozenset(leaves_out)

    @property
    def height(self) -> int:
        return len(self.blocks) - 1

    def get_block_id(self, height: int) -> Id | None:
        return self.blocks[height].id if height < len(self.blocks) else None

    def on_decided(self, site: int, block: PlainBlock, certificate: Certificate) -> None:
        """Checks a block that an honest site takes for final."""
        height = block.height
        known = self.get_block_id(height)
        self._check(known is None or known == block.id, "I1", f"site {site} finalised another block {height}")
        self._check(height <= self.height + 1, "I2", f"site {site} finalised {height} upon {self.height}")
        judge = self.states[height - 1]
        self._check(
            is_certified(judge, block, certificate), "I12", f"site {site} took {height} without a quorum of {judge}"
        )
        if known is None:
            self._extend(site, block)

    def on_state(self, site: int, height: int, state: State) -> None:
        """Checks a state that an honest site has derived."""
        same = state.digest == self.states[height].digest
        self._check(same, "I11", f"site {site} derived {state} at {height}, another derived {self.states[height]}")

    def _extend(self, site: int, block: PlainBlock) -> None:
        state = self.states[-1]
        self._check(block.parent == self.blocks[-1].id, "I2", f"site {site} finalised a block on another parent")
        self._check(state.index_of(block.miner) is not None, "I15", f"block {block.height} is by a key not in force")
        self._check(state.is_active(block.miner), "convicted", f"block {block.height} is by a suspended member")
        if block.change is not None:
            change_id = compute_change_id(state.chain_id, block.change.change)
            self._check(change_id not in self.executed, "I13", f"block {block.height} executes a change again")
            self.executed[change_id] = block.height
        self.blocks.append(block)
        self.states.append(follow(state, block))

    def _check(self, holds: bool, invariant: str, what: str) -> None:
        if not holds and invariant not in self._leaves_out:
            raise InvariantBroken(invariant, what)
