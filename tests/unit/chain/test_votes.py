"""The votes of a height, counted as they come in: the counts are those that going through all votes would give."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.block import ZERO, Phase, Vote
from chain.finality import Voting
from chain.votes import VoteSet
from chain.waits import PROFILES

MEMBERS = tuple(bytes([i + 1]) * 32 for i in range(64))
BLOCKS = (ZERO, b"\xaa" * 32, b"\xbb" * 32)
VIEWS = st.sampled_from([0, 1, 2, 7, 8, 9, 16, 17, 40])  # within the window of one another, at its edge, and beyond

votes = st.builds(
    Vote,
    phase=st.sampled_from(Phase),
    height=st.just(1),
    view=VIEWS,
    block_id=st.sampled_from(BLOCKS),
    voter=st.sampled_from(MEMBERS[:4]),
    signature=st.just(bytes(64)),
)


@given(st.lists(votes | VIEWS, max_size=60))
def test_what_is_counted_is_what_all_votes_come_to(steps: list[Vote | int]) -> None:
    book = VoteSet()
    for step in steps:
        if isinstance(step, Vote):
            book.add(step)
        else:
            book.move(step)
        for view in (0, 1, 8, 9, 17, 40):
            for phase in Phase:
                held = list(book.get_votes(view, phase))
                assert dict(book.get_tally(view, phase)) == Counter(vote.block_id for vote in held)
                assert book.count_voters(view, phase) == len({vote.voter for vote in held})
                heard = sum((vote.view, vote.phase) >= (view, phase) for vote in book.latest.values())
                assert book.count_reached(view, phase) == heard
        assert book.get_highest_view() == max((vote.view for vote in book.latest.values()), default=0)


def count_calls(n: int) -> float:
    """Calls, and steps of generators, for each vote of a height of n members that goes well."""
    voting = Voting(height=1, members=MEMBERS[:n], quorum=2 * n // 3 + 1, me=None, waits=PROFILES["local"])
    voting.start()
    voting.on_candidate(BLOCKS[1], acceptable=True, complete=True)
    cast = [Vote(phase, 1, 0, BLOCKS[1], member, bytes(64)) for phase in Phase for member in MEMBERS[:n]]
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for vote in cast:
            voting.on_vote(vote)
    finally:
        sys.setprofile(None)
    assert voting.finalised == BLOCKS[1]
    return calls / len(cast)


def test_a_vote_among_many_costs_what_a_vote_among_few_does() -> None:
    assert count_calls(64) == pytest.approx(count_calls(16), rel=0.1)
