"""Retargeting: when, by how much, and that neither a clock nor a member's word moves it by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.block import ZERO, Header
from chain.difficulty import LOOKBACK, WINDOW, compute_next_difficulty
from chain.genesis import PROTOCOL_VERSION
from chain.rules import PowRules

RULES = PowRules(difficulty=1000, min=1, max=2**64 - 1, target_ms=100)
QUORUM = 3
MINERS = 4
ROUND_MS = 1000
FORCED = -1  # in place of a mining time: the parent's time, and a millisecond


def make_headers(
    last: int, mining_ms: Sequence[int], difficulty: int = 1000, miners: Iterable[int] | None = None
) -> list[Header]:
    """Headers ending at height `last`, the i-th mined in `mining_ms[i]`; before them one more for their times. Members
    take turns unless `miners` are named."""
    turns = list(miners) if miners is not None else [i % MINERS for i in range(len(mining_ms))]
    headers = [Header(PROTOCOL_VERSION, last - len(mining_ms), ZERO, ZERO, ZERO, ZERO, ZERO, 0, 0, difficulty)]
    for miner, ms in zip(turns, mining_ms, strict=True):
        parent = headers[-1]
        time_ms = parent.time_ms + (1 if ms == FORCED else ROUND_MS)
        start_ms = time_ms if ms == FORCED else time_ms - ms
        key = bytes([miner + 1]) * 32
        headers.append(
            Header(PROTOCOL_VERSION, parent.height + 1, ZERO, ZERO, ZERO, ZERO, key, start_ms, time_ms, difficulty)
        )
    return headers


def compute(height: int, headers: Sequence[Header], rules: PowRules = RULES) -> int:
    return compute_next_difficulty(rules, QUORUM, height, headers)


# When, and by how much


@pytest.mark.parametrize("height", range(1, 17))
def test_the_first_sixteen_blocks_have_genesis_difficulty(height: int) -> None:
    assert compute(height, make_headers(height - 1, [1] * (height - 1), difficulty=77)) == 1000


@pytest.mark.parametrize("height", [h for h in range(18, 50) if h % 16 != 1])
def test_between_retargets_difficulty_stays(height: int) -> None:
    assert compute(height, make_headers(height - 1, [1], difficulty=77)) == 77


@pytest.mark.parametrize("height", [17, 33, 49, 65, 16 * 10**6 + 1])
def test_every_sixteenth_block_retargets(height: int) -> None:
    assert compute(height, make_headers(height - 1, [50] * min(height - 1, WINDOW))) == 2000


@pytest.mark.parametrize(
    ("mining_ms", "expected"),
    [
        (100, 1000),  # on target
        (50, 2000),
        (200, 500),
        (99, 1010),  # 100000 // 99
        (1, 4000),  # at most four times
        (10**9, 250),  # at most a quarter
    ],
)
def test_difficulty_follows_mining_time(mining_ms: int, expected: int) -> None:
    assert compute(17, make_headers(16, [mining_ms] * 16)) == expected


def test_genesis_bounds_go_before_the_steps() -> None:
    constant = PowRules(difficulty=1000, min=1000, max=1000, target_ms=100)
    assert compute(17, make_headers(16, [1] * 16), constant) == 1000
    assert compute(17, make_headers(16, [10**9] * 16), constant) == 1000
    narrow = PowRules(difficulty=1000, min=900, max=1100, target_ms=100)
    assert compute(17, make_headers(16, [1] * 16), narrow) == 1100
    assert compute(17, make_headers(16, [10**9] * 16), narrow) == 900


def test_difficulty_never_reaches_zero() -> None:
    assert compute(17, make_headers(16, [10**9] * 16, difficulty=1)) == 1
    assert compute(17, make_headers(16, [10**9] * 16, difficulty=3)) == 1


def test_at_most_the_last_sixty_four_blocks_count() -> None:
    assert compute(81, make_headers(80, [10**9] * 16 + [50] * 64)) == 2000
    assert compute(65, make_headers(64, [200] * 36 + [50] * 28)) == 500


# Whose word counts


def test_each_miner_counts_once_however_many_blocks_it_has() -> None:
    miners = [0] * 13 + [1, 2, 3]
    assert compute(17, make_headers(16, [1] * 13 + [100] * 3, miners=miners)) == 1000


def test_the_lower_median_of_a_miners_blocks_is_its_word() -> None:
    miners = [0, 1, 2, 3] * 4
    assert compute(17, make_headers(16, [50] * 8 + [200] * 8, miners=miners)) == 2000
    assert compute(17, make_headers(16, [50] * 4 + [200] * 12, miners=miners)) == 500


def test_a_block_that_claims_to_have_taken_no_time_says_nothing() -> None:
    assert compute(17, make_headers(16, [0, 100, 100, 100] * 4)) == 1000
    assert compute(17, make_headers(16, [0] * 16)) == 1000


def test_a_time_that_the_parent_forces_says_nothing() -> None:
    """As after a block from the future: everyone's mining seems to take no time, or its miner's whole lead."""
    headers = make_headers(16, [100] * 16)
    forced = [
        Header(PROTOCOL_VERSION, h.height, ZERO, ZERO, ZERO, ZERO, h.miner, h.time_ms - 900_000, h.time_ms, 1000)
        if i % 4 == 1
        else h
        for i, h in enumerate(headers)
    ]
    assert compute(17, forced) == 1000  # one of four with a clock of its own
    assert compute(17, make_headers(16, [FORCED] * 8 + [50] * 8)) == 2000


def test_the_block_before_the_window_is_read_for_its_time_alone() -> None:
    headers = make_headers(80, [FORCED] + [100] * 63 + [100] * 16)
    assert len(headers[-LOOKBACK:]) == WINDOW + 1
    assert compute(81, headers) == compute(81, headers[-LOOKBACK:]) == 1000


@pytest.mark.parametrize(
    ("difficulty", "mining_ms", "expected"),
    [
        (1000, 1, 1000),  # from where genesis began two miners lead nowhere
        (1000, 10**9, 1000),
        (8000, 1, 8000),  # nor further away
        (8000, 200, 4000),  # but back
        (8000, 10**9, 2000),  # at most fourfold
        (1500, 10**9, 1000),  # and no further
        (100, 10**9, 100),
        (100, 50, 200),
        (100, 1, 400),
        (700, 1, 1000),
    ],
)
def test_with_fewer_miners_than_a_quorum_it_only_comes_back(difficulty: int, mining_ms: int, expected: int) -> None:
    assert compute(17, make_headers(16, [mining_ms] * 16, difficulty, miners=[0, 1] * 8)) == expected


def test_one_of_four_that_claims_whatever_it_likes_moves_nothing() -> None:
    """It wins three blocks of four; the others take 80 to 120 ms, which is on target."""
    for claim in (1, 2, 10**12):
        rng, headers = Random(claim), make_headers(0, [])
        difficulty = RULES.difficulty
        for height in range(1, 400):
            difficulty = compute(height, headers[-LOOKBACK:])
            miner = 3 if rng.random() < 0.75 else rng.randrange(3)
            ms = claim if miner == 3 else rng.randrange(80, 121) * difficulty // RULES.difficulty
            parent = headers[-1]
            time_ms = parent.time_ms + ROUND_MS
            key = bytes([miner + 1]) * 32
            headers.append(
                Header(PROTOCOL_VERSION, height, ZERO, ZERO, ZERO, ZERO, key, time_ms - ms, time_ms, difficulty)
            )
            assert 500 <= difficulty <= 2000
        assert len({header.difficulty for header in headers[1:]}) > 1


# Whatever the times


@given(
    times=st.lists(st.integers(-1, 2**62), min_size=16, max_size=16),
    miners=st.lists(st.integers(0, 6), min_size=16, max_size=16),
    difficulty=st.integers(1, 2**64 - 1),
    bounds=st.lists(st.integers(1, 2**64 - 1), min_size=3, max_size=3).map(sorted),
    target_ms=st.integers(1, 2**32 - 1),
)
def test_a_retarget_is_an_integer_within_its_clamps(
    times: list[int], miners: list[int], difficulty: int, bounds: list[int], target_ms: int
) -> None:
    low, start, high = bounds
    rules = PowRules(difficulty=start, min=low, max=high, target_ms=target_ms)
    difficulty = min(max(difficulty, low), high)
    result = compute(17, make_headers(16, times, difficulty, miners), rules)
    assert type(result) is int
    assert low <= result <= high
    assert max(difficulty // 4, 1) <= result <= 4 * difficulty
    said = {miner for miner, ms in zip(miners, times, strict=True) if ms > 0}
    if len(said) < QUORUM:
        assert min(difficulty, start) <= result <= max(difficulty, start)
    if not said:
        assert result == difficulty


def test_headers_of_other_heights_are_refused() -> None:
    for last, num in ((16, 15), (15, 15), (17, 16)):
        with pytest.raises(ValueError, match="expected headers of 0 to 16, got"):
            compute(17, make_headers(last, [1] * num))
    with pytest.raises(ValueError, match=r"expected headers of 19 to 19, got \[18\]"):
        compute(20, make_headers(18, [1] * 16))
    with pytest.raises(ValueError, match="expected headers of 16 to 80, got"):
        compute(81, make_headers(80, [1] * 63))


def test_a_longer_window_is_read_from_its_end() -> None:
    assert compute(33, make_headers(32, [50] * 32)) == 2000
