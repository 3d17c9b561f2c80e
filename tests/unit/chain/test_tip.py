"""The top of a chain: what the next height's rules look at."""

from __future__ import annotations

import pytest

from chain.errors import UnknownParent, WrongHeight
from chain.tip import Tip, get_first_read
from support.data.chains import make_candidate, make_chain, make_genesis, make_keys

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS, pow={"difficulty": 4, "min": 1, "max": 2**32, "target_ms": 200}, rounds=0)
BLOCKS = [GENESIS.block0, *(block for block, _ in make_chain(GENESIS, KEYS, 82))]


def test_a_chain_is_followed_across_retargets() -> None:
    tip = Tip.at(GENESIS.state, BLOCKS[:1])
    for block in BLOCKS[1:]:
        assert tip.next_difficulty == block.header.difficulty
        tip = tip.extend(block)
    assert (tip.height, tip.id, tip.header) == (82, BLOCKS[-1].id, BLOCKS[-1].header)
    assert [BLOCKS[height].header.difficulty for height in (16, 17, 32, 33)] == [4, 8, 8, 16]


@pytest.mark.parametrize("height", [3, 16, 17, 31, 32, 64, 79, 80])
def test_it_can_be_taken_up_from_the_blocks_that_are_read(height: int) -> None:
    tip = Tip.at(GENESIS.state, BLOCKS[get_first_read(height) : height + 1])
    assert tip.next_difficulty == BLOCKS[height + 1].header.difficulty
    assert tip.extend(BLOCKS[height + 1]).id == BLOCKS[height + 1].id


def test_what_does_not_extend_it_leaves_it_as_it_was() -> None:
    tip = Tip.at(GENESIS.state, BLOCKS[:2])
    with pytest.raises(WrongHeight):
        tip.extend(BLOCKS[3])
    stray = make_candidate(GENESIS, make_candidate(GENESIS, GENESIS.block0, KEYS, miner=2), KEYS)
    with pytest.raises(UnknownParent):
        tip.extend(stray)
    assert tip.id == BLOCKS[1].id
