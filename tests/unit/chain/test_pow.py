"""Proof of work at its edges, and the bounded search."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.pow import compute_highest_id, is_valid_work, search

SEAL = hashlib.sha256(b"a seal").digest()
difficulties = st.integers(1, 2**64 - 1)


def to_id(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_difficulty_one_takes_every_id() -> None:
    assert is_valid_work(b"\xff" * 32, 1)


@pytest.mark.parametrize("difficulty", [2, 2**16, 2**64 - 2**63])
def test_a_power_of_two_asks_for_so_many_zero_bits(difficulty: int) -> None:
    edge = 2**256 // difficulty
    assert is_valid_work(to_id(edge - 1), difficulty)
    assert not is_valid_work(to_id(edge), difficulty)  # id * difficulty is 2^256 exactly


def test_difficulty_below_one_takes_nothing() -> None:
    assert not is_valid_work(bytes(32), 0)
    assert not is_valid_work(bytes(32), -1)
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        search(SEAL, 0, 0, 1)


@given(difficulties)
def test_the_highest_id_is_the_last_one_that_is_valid(difficulty: int) -> None:
    highest = int.from_bytes(compute_highest_id(difficulty), "big")
    assert is_valid_work(to_id(highest), difficulty)
    assert highest == 2**256 - 1 or not is_valid_work(to_id(highest + 1), difficulty)


@given(difficulties, st.integers(0, 2**256 - 1))
def test_comparing_bytes_agrees_with_multiplying_integers(difficulty: int, number: int) -> None:
    assert (to_id(number) <= compute_highest_id(difficulty)) == is_valid_work(to_id(number), difficulty)


def test_search_finds_the_first_nonce_of_its_range() -> None:
    valid = [n for n in range(2000) if is_valid_work(hashlib.sha256(SEAL + n.to_bytes(8, "big")).digest(), 100)]
    assert search(SEAL, 100, 0, 2000) == valid[0]
    assert search(SEAL, 100, valid[0] + 1, 2000) == valid[1]


def test_search_is_bounded() -> None:
    first = search(SEAL, 100, 0, 2000)
    assert first is not None
    assert search(SEAL, 100, 0, first) is None
    assert search(SEAL, 100, 0, first + 1) == first
    assert search(SEAL, 2**64 - 1, 0, 100) is None
    assert search(SEAL, 1, 0, 0) is None


def test_search_ends_at_the_last_nonce() -> None:
    assert search(SEAL, 1, 2**64 - 1, 10) == 2**64 - 1
    assert search(SEAL, 1, 2**64, 10) is None
    assert search(SEAL, 2**64 - 1, 2**64 - 5, 1000) is None
