"""Retargeting: when, by how much, and that no clock can push it out of its clamps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.block import HEADER_VERSION, ZERO, Header
from chain.difficulty import compute_next_difficulty
from chain.genesis import PowRules

RULES = PowRules(difficulty=1000, min=1, max=2**64 - 1, target_ms=100)


def make_headers(last: int, mining_ms: Sequence[int], difficulty: int = 1000) -> list[Header]:
    """Headers ending at height `last`, the i-th mined in `mining_ms[i]`."""
    first = last - len(mining_ms) + 1
    return [
        Header(HEADER_VERSION, first + i, ZERO, ZERO, ZERO, ZERO, ZERO, 10_000, 10_000 + ms, difficulty)
        for i, ms in enumerate(mining_ms)
    ]


@pytest.mark.parametrize("height", range(1, 17))
def test_the_first_sixteen_blocks_have_genesis_difficulty(height: int) -> None:
    headers = make_headers(height - 1, [1] * height, difficulty=77)
    assert compute_next_difficulty(RULES, height, headers) == 1000


@pytest.mark.parametrize("height", [h for h in range(18, 50) if h % 16 != 1])
def test_between_retargets_difficulty_stays(height: int) -> None:
    assert compute_next_difficulty(RULES, height, make_headers(height - 1, [1], difficulty=77)) == 77


@pytest.mark.parametrize("height", [17, 33, 49, 16 * 10**6 + 1])
def test_every_sixteenth_block_retargets(height: int) -> None:
    assert compute_next_difficulty(RULES, height, make_headers(height - 1, [50] * 16)) == 2000


@pytest.mark.parametrize(
    ("mining_ms", "expected"),
    [
        (100, 1000),  # on target
        (50, 2000),
        (200, 500),
        (99, 1010),  # 100000 // 99
        (1, 4000),  # at most four times
        (0, 4000),  # a clock that stood still counts as 1 ms
        (10**9, 250),  # at most a quarter
    ],
)
def test_difficulty_follows_mining_time(mining_ms: int, expected: int) -> None:
    assert compute_next_difficulty(RULES, 17, make_headers(16, [mining_ms] * 16)) == expected


def test_the_eighth_smallest_time_counts() -> None:
    times = [50] * 8 + [10**9] * 8
    assert compute_next_difficulty(RULES, 17, make_headers(16, times)) == 2000
    assert compute_next_difficulty(RULES, 17, make_headers(16, times[::-1])) == 2000
    assert compute_next_difficulty(RULES, 17, make_headers(16, [50] * 7 + [200] * 9)) == 500


def test_genesis_bounds_go_before_the_steps() -> None:
    constant = PowRules(difficulty=1000, min=1000, max=1000, target_ms=100)
    assert compute_next_difficulty(constant, 17, make_headers(16, [1] * 16)) == 1000
    assert compute_next_difficulty(constant, 17, make_headers(16, [10**9] * 16)) == 1000
    narrow = PowRules(difficulty=1000, min=900, max=1100, target_ms=100)
    assert compute_next_difficulty(narrow, 17, make_headers(16, [1] * 16)) == 1100
    assert compute_next_difficulty(narrow, 17, make_headers(16, [10**9] * 16)) == 900


def test_difficulty_never_reaches_zero() -> None:
    assert compute_next_difficulty(RULES, 17, make_headers(16, [10**9] * 16, difficulty=1)) == 1
    assert compute_next_difficulty(RULES, 17, make_headers(16, [10**9] * 16, difficulty=3)) == 1


@given(
    times=st.lists(st.integers(0, 2**63), min_size=16, max_size=16),
    difficulty=st.integers(1, 2**64 - 1),
    bounds=st.lists(st.integers(1, 2**64 - 1), min_size=3, max_size=3).map(sorted),
    target_ms=st.integers(1, 2**32 - 1),
)
def test_a_retarget_is_an_integer_within_its_clamps(
    times: list[int], difficulty: int, bounds: list[int], target_ms: int
) -> None:
    low, start, high = bounds
    rules = PowRules(difficulty=start, min=low, max=high, target_ms=target_ms)
    difficulty = min(max(difficulty, low), high)
    result = compute_next_difficulty(rules, 17, make_headers(16, times, difficulty))
    assert type(result) is int
    assert low <= result <= high
    assert max(difficulty // 4, 1) <= result <= 4 * difficulty
    assert result == compute_next_difficulty(rules, 17, make_headers(16, sorted(times), difficulty))


def test_headers_of_other_heights_are_refused() -> None:
    for headers in ([], make_headers(16, [1] * 15), make_headers(15, [1] * 16), make_headers(17, [1] * 16)):
        with pytest.raises(ValueError, match="expected headers of heights"):
            compute_next_difficulty(RULES, 17, headers)
    with pytest.raises(ValueError, match=r"expected headers of heights \[19\], got \[18\]"):
        compute_next_difficulty(RULES, 20, make_headers(18, [1] * 16))


def test_a_longer_window_is_read_from_its_end() -> None:
    assert compute_next_difficulty(RULES, 33, make_headers(32, [10**9] * 15 + [50] * 16)) == 2000
