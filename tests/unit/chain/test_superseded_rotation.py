"""A key that was replaced cannot come back by a rotation that its holder proposed before."""

from __future__ import annotations

import pytest

from chain.block import ZERO
from chain.changes.base import Place
from chain.changes.change import Change
from chain.changes.execution import execute_change
from chain.changes.members import ReplaceKey
from chain.errors import InvalidChange
from chain.state import State
from support.data.chains import make_genesis, make_keys

OLD = make_keys(4)
THIEFS, OWNERS = make_keys(2, "new")


def replace_key(state: State, new: bytes, *, by: int, made: int, height: int) -> State:
    return execute_change(state, Change(ReplaceKey(0, new), by, made, made + 1, made + 1000), Place(height, ZERO))


def test_rotation_does_not_outlive_the_key_that_proposed_it() -> None:
    """The thief of seat 0's key proposed one at height 1, and the others replaced the key at 2."""
    state = replace_key(make_genesis(OLD).state, OWNERS.id, by=1, made=1, height=2)
    with pytest.raises(InvalidChange, match="key"):
        replace_key(state, THIEFS.id, by=0, made=1, height=3)


def test_replacement_by_others_outlives_a_rotation_of_the_thief() -> None:
    state = replace_key(make_genesis(OLD).state, THIEFS.id, by=0, made=1, height=2)
    state = replace_key(state, OWNERS.id, by=1, made=1, height=3)
    assert state.members[state.index_of(OWNERS.id) or 0].seat == 0
