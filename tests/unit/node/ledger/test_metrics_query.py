"""Many rounds in few: every span keeps its ends, lows and highs, and no more is held than the answer may have."""

from __future__ import annotations

import math
from typing import Any

import pytest

from node.admin.operations import read_fields
from node.errors import InvalidRequest, NotFound
from node.ledger.metrics_query import MAX_POINTS, MAX_VALUES, PAGE, MetricsQuery, RoundPlace
from node.ledger.series import flatten
from node.pb import admin_pb2 as pb


def make_round(number: int, loss: float, accuracy: float | None = None, *, measured: bool = True) -> pb.Round:
    return pb.Round(
        height=number, round=number, time=f"t{number}", train={"loss": loss}, accuracy=accuracy, measured=measured
    )


def make_query(head: int, **request: Any) -> MetricsQuery:
    return MetricsQuery(**read_fields(pb.QueryMetricsRequest(**request)), head=head)


def ask(rounds: list[pb.Round], head: int, **request: object) -> pb.Metrics:
    """As whoever holds the rounds answers: page after page."""
    query = make_query(head, **request)
    for first, last in query.get_pages():
        assert last - first < PAGE
        query.add(pick(query, [one for one in rounds if first <= one.round <= last]))
    return answer(query)


def pick(query: MetricsQuery, rounds: list[pb.Round]) -> list[dict[str, Any]]:
    """As the ledger does it of stored records."""
    rows = [flatten(one) for one in rounds if one.measured]
    for row in rows:
        query.picker.learn(row)
    return rows


def answer(query: MetricsQuery) -> pb.Metrics:
    return query.answer([RoundPlace(1, number, f"t{number}") for number in query.choose()])


def test_as_long_as_all_fit_all_remain() -> None:
    rounds = [make_round(number, 1 / number) for number in range(1, 11)]
    found = ask(rounds, 10, series=["loss"], max_points=10)
    assert [(point.round, point.time, point.values["loss"]) for point in found.rounds] == [
        (number, f"t{number}", 1 / number) for number in range(1, 11)
    ]
    assert (list(found.series), found.measured) == (["loss"], 10)
    assert {"loss", "accuracy", "votes"} - {*found.known} == {"accuracy"}


def test_of_each_span_the_ends_and_the_extremes_remain() -> None:
    """200 rounds, two spans of a hundred: a spike in one, a dip in the other."""
    losses = dict.fromkeys(range(1, 201), 1.0) | {40: 9.0, 160: -9.0, 1: 2.0, 100: 0.5, 101: 1.5, 200: 3.0}
    rounds = [make_round(number, loss) for number, loss in losses.items()]
    found = ask(rounds, 200, series=["loss"], max_points=8)
    assert [point.round for point in found.rounds] == [1, 40, 100, 101, 160, 200]
    assert [point.values["loss"] for point in found.rounds] == [2.0, 9.0, 0.5, 1.5, -9.0, 3.0]
    assert found.measured == 200


def test_every_series_keeps_its_own_extremes_and_every_round_all_values() -> None:
    rounds = [make_round(number, abs(number - 30) + 1.0, accuracy=-abs(number - 70.0)) for number in range(1, 101)]
    found = ask(rounds, 100, series=["loss", "accuracy"], max_points=6)
    assert [point.round for point in found.rounds] == [1, 30, 70, 100]
    assert all(set(point.values) == {"loss", "accuracy"} for point in found.rounds)


@pytest.mark.parametrize("max_points", [4, 5, 8, 100, 999])
def test_the_answer_is_bounded_and_has_the_extremes_of_the_whole(max_points: int) -> None:
    losses = {number: math.sin(number) * number for number in range(1, 3001)}
    rounds = [make_round(number, loss) for number, loss in losses.items()]
    query = make_query(3000, series=["loss"], max_points=max_points)
    held = 0
    for first, last in query.get_pages():
        query.add(pick(query, rounds[first - 1 : last]))
        held = max(held, query.num_held)
    found = answer(query)
    assert len(found.rounds) <= max_points
    assert held <= max_points
    values = [point.values["loss"] for point in found.rounds]
    assert (min(values), max(values)) == (min(losses.values()), max(losses.values()))
    numbers = [point.round for point in found.rounds]
    assert (numbers[0], numbers[-1], numbers) == (1, 3000, sorted(set(numbers)))


def test_what_was_not_measured_has_no_part_in_it() -> None:
    rounds = [make_round(number, float(number), measured=number % 50 == 0) for number in range(1, 1001)]
    found = ask(rounds, 1000, series=["loss"], max_points=20)
    assert [point.round for point in found.rounds] == list(range(50, 1001, 50))
    rounds[499].train["loss"] = math.nan
    found = ask(rounds, 1000, series=["loss"], max_points=8)
    assert {50, 1000} <= {point.round for point in found.rounds}


def test_only_the_rounds_that_were_asked_for_are_read() -> None:
    query = make_query(650, first=100, last=700)
    assert list(query.get_pages()) == [(100, 355), (356, 611), (612, 650)]
    assert list(make_query(0).get_pages()) == []
    with pytest.raises(NotFound, match="round 651: the chain ends at height 650"):
        make_query(650, first=651)


def test_more_than_one_answer_holds_and_less_than_makes_sense_are_refused() -> None:
    for request, said in (
        ({"max_points": 3, "series": ["loss"]}, "expected 4 to 10000 for 1 series"),
        ({"max_points": 11}, "expected 12 to 10000 for 5 series"),
        ({"max_points": MAX_POINTS + 1}, "expected 12 to 10000"),
        ({"max_points": MAX_POINTS, "series": [f"s{i}" for i in range(6)]}, f"expected at most {MAX_VALUES // 6} for"),
        ({"series": ["x" * 65]}, "at most 64 characters"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            make_query(5, **request)


def test_a_series_that_no_round_has_is_named_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="no round has 'los'; there are loss, contributors"):
        ask([make_round(1, 1.0)], 1, series=["loss", "los"])
    assert not ask([], 0, series=["los"]).rounds
