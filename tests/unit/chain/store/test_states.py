"""The states of a span of heights: the one that its first height left, and each that follows."""

from __future__ import annotations

from pathlib import Path

from chain.changes.members import AddObserver, RemoveObserver
from chain.store.sqlite import SqliteStore
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain

KEYS = make_keys(4)
NEW = make_keys(1, "newcomer")[0]
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}


def test_states_are_read_with_the_heights_that_they_hold_from(tmp_path: Path) -> None:
    chain = LivingChain(make_genesis(KEYS, pow=EASY), KEYS)
    chain.add_rounds(2)
    chain.add_change(AddObserver(NEW.id, "archive"))  # 3
    chain.add_rounds(2)
    chain.add_change(RemoveObserver(NEW.id))  # 6
    chain.add_rounds(1)
    with SqliteStore.open(tmp_path, chain.genesis) as store:
        assert [height for height, _ in store.read_states(0, 0)] == [0]
        store.append_all(chain.blocks)
        for first, last, expected in ((0, 7, [0, 3, 6]), (2, 5, [0, 3]), (3, 6, [3, 6]), (4, 5, [3]), (7, 7, [6])):
            assert [height for height, _ in store.read_states(first, last)] == expected, (first, last)
        assert all(state == chain.tips[height].state for height, state in store.read_states(0, 7))
        store.rows.connection.execute("DELETE FROM states WHERE height < 3")  # as one has them that began at 3
        assert [height for height, _ in store.read_states(0, 7)] == [3, 6]
