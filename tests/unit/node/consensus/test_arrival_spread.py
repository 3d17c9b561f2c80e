"""For how long crossing candidates are waited for, by what the last heights have shown."""

from __future__ import annotations

from node.consensus.arrival_spread import HEIGHTS, ArrivalSpread


def make_crossing(*seen_s: float | None) -> ArrivalSpread:
    crossing = ArrivalSpread()
    for apart_s in seen_s:
        crossing.add(apart_s)
    return crossing


def test_before_anything_was_seen_it_is_delta() -> None:
    assert make_crossing().compute_wait_s(1.0) == 1.0
    assert make_crossing(None, None).compute_wait_s(1.0) == 1.0


def test_it_is_half_as_long_again_as_is_usual_and_delta_at_most() -> None:
    assert make_crossing(0.1, 0.1, 0.1).compute_wait_s(1.0) == 0.15000000000000002
    assert make_crossing(0.1, 0.9, 0.1).compute_wait_s(1.0) == 0.15000000000000002
    assert make_crossing(0.8, 0.8).compute_wait_s(1.0) == 1.0


def test_where_one_candidate_is_usual_nothing_is_waited_for() -> None:
    assert make_crossing(0.1, 0.0, 0.0).compute_wait_s(1.0) == 0.0


def test_what_is_long_ago_does_not_count() -> None:
    assert make_crossing(*[0.5] * 100, *[0.0] * (HEIGHTS // 2 + 1)).compute_wait_s(1.0) == 0.0
