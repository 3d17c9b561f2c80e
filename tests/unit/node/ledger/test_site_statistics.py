"""Differences between sites, of what they told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.ledger.site_statistics import count_all, find_quantile, list_differences
from node.pb import admin_pb2 as pb

Told = tuple[float, float, int]  # mean, deviation, values


def make_reply(name: str, own: Sequence[Told | None], *, category: bool = False) -> pb.StatisticsReply:
    """Sites a, b, … of 100 samples, and what each has of one feature; None of one whose word is not here."""
    reply = pb.StatisticsReply(features=[pb.StatisticsFeature(name=name, category=category)])
    for site, told in zip("abcd", own, strict=False):
        shown = reply.sites.add(name=site, samples=100, held=told is not None)
        if told is not None:
            mean, std, values = told
            shown.features.add(values=values, **({"mean": mean, "std": std} if values else {}))
    return reply


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([(230, 40, 100), (5.9, 1.1, 100), (225, 41, 90)], "chol: the mean of b is about 1/38.67 of the others'"),
        ([(230, 40, 100), (2300, 390, 100), (225, 41, 90)], "chol: the mean of b is about 10 times the others'"),
        ([(1.2, 0.3, 100), (1195, 310, 100)], "chol: the mean of a is about 1/1000 of the others'"),
        ([(5.5, 1.5, 100), (99, 27, 100), (101, 25, 100)], "chol: the mean of a is about 1/18.016 of the others'"),
        ([(230, 40, 100), (0, 0, 0), (225, 41, 90)], "chol: b has next to no values"),
        ([None, (230, 40, 100), (5.9, 1.1, 100)], "chol: the mean of b is about 38.67 times the others'"),
    ],
)
def test_another_unit_and_a_column_that_is_not_filled_are_named(own: Sequence[Told | None], said: str) -> None:
    (told,) = list_differences(make_reply("chol", own))
    assert told.startswith(said)


@pytest.mark.parametrize(
    "own",
    [
        [(230, 40, 100), (190, 45, 100), (260, 38, 70)],
        [(1.0, 40, 100), (10.0, 38, 100)],  # ten times, and far within what samples differ by
        [(0.1, 0.9, 100), (0.01, 1.0, 100), (-0.3, 1.1, 100)],
        [(50, 9, 100), None, None],
        [(5, 1, 100), (50, 1, 100)],  # samples that differ, in one unit
    ],
)
def test_sites_that_differ_as_sites_do_are_not(own: Sequence[Told | None]) -> None:
    assert list_differences(make_reply("x", own)) == []


def test_a_value_that_only_one_site_has_is_named_and_an_empty_cell_is_none() -> None:
    own: Sequence[Told] = [(0.4, 0.5, 100), (0.0, 1.0, 100), (0.0, 1.0, 100)]
    (told,) = list_differences(make_reply("sex=W", own, category=True))
    assert told == "sex=W: only a has it: do the others write it in another way?"
    assert list_differences(make_reply("sex (empty)", own, category=True)) == []
    assert list_differences(make_reply("sex=f", [(0.4, 0.5, 100), (0.3, 0.5, 100)], category=True)) == []


def test_what_a_trimmed_sum_leaves_out_is_not_empty() -> None:
    """Of four sites two are left of each feature: half of the samples, all of which have a value."""
    for own, values in (([(50, 9, 100)] * 3 + [(50, 9, 40)], 340), ([(50, 9, 100)] * 3 + [None], 400)):
        reply = make_reply("age", own)
        reply.all.samples = 400
        reply.all.features.add(values=200, mean=50, std=9)
        count_all(reply)
        assert reply.all.features[0].values == values


@pytest.mark.parametrize(
    ("bins", "share", "value"),
    [
        ([0, 10, 10, 0], 0.5, 50.0),
        ([0, 10, 10, 0], 0.25, 45.0),
        ([5, 10, 5, 20], 0.25, 45.0),
        ([5, 10, 5, 20], 0.5, 60.0),  # all that lie below the last edge
        ([5, 10, 5, 21], 0.5, None),  # somewhere above it
        ([20, 10, 0, 0], 0.25, None),
        ([0, 0, 0, 0], 0.5, None),
    ],
)
def test_a_quantile_is_as_near_as_the_bins_tell_it(bins: Sequence[int], share: float, value: float | None) -> None:
    assert find_quantile((40.0, 50.0, 60.0), bins, share) == value
