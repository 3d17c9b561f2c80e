"""The measure that a node signs of the round before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.block import Measure
from chain.select import Select
from ml.measures.val import ValMeasures
from node.consensus.learning.round_measure import RoundMeasure, write
from support.data.chains import make_genesis, make_keys

RUN = replace(make_genesis(make_keys(4)).run, select=Select())
METRICS = ValMeasures(60, 0.51234, 0.87654).to_metrics()


def note(metrics: dict[str, float], by: str = "loss", least: int = 50, max_weight: int = 1000) -> Measure | None:
    measure, run = RoundMeasure(least), replace(RUN, select=Select(by))
    measure.note(run, 3, metrics, max_weight)
    assert measure.has(run, 3)
    assert not measure.has(run, 2)
    assert measure.get(run, 2) is None
    return measure.get(run, 3)


def test_it_is_what_the_run_selects_by() -> None:
    assert note(METRICS) == Measure(60, 512_000)
    assert note(METRICS, "auc") == Measure(60, 877_000)
    assert note(ValMeasures(60, 0.5).to_metrics(), "auc") is None


def test_a_site_with_too_few_val_samples_or_none_tells_nothing() -> None:
    assert note(METRICS, least=61) is None
    assert note({"accuracy": 0.5}) is None


def test_a_site_with_noise_of_its_own_tells_nothing() -> None:
    measure = RoundMeasure(1, tells=False)
    measure.note(RUN, 3, METRICS, 1000)
    assert measure.has(RUN, 3)
    assert measure.get(RUN, 3) is None


def test_it_is_kept_in_the_range_that_others_take() -> None:
    assert note(ValMeasures(60, 1e9).to_metrics(), max_weight=40) == Measure(40, 1_000_000_000)


def test_of_a_run_that_selects_nothing_there_is_none() -> None:
    measure = RoundMeasure(1)
    measure.note(replace(RUN, select=None), 3, METRICS, 1000)
    assert not measure.has(RUN, 3)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, 0), (0.6931471, 693_000), (12.345, 12_300_000), (0.0001239, 124), (float("nan"), None), (-1.0, None)],
)
def test_it_has_three_digits(value: float, written: int | None) -> None:
    assert write(value) == written
