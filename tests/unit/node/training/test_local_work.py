"""Local work: a node's measurements decide the local iterations of its next round."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.training.local_work import ALPHA_ROUNDS, BETA_ROUNDS, MAX_ITERATIONS, Choice, LocalWork
from node.training.progress import PROGRESS_S, Progress, ProgressMeter


def make_local_work(budget_s: float | None, *rounds: tuple[float | None, float | None]) -> LocalWork:
    local_work = LocalWork(budget_s)
    for alpha_s, beta_s in rounds:
        local_work.add(alpha_s, beta_s)
    return local_work


def test_without_a_budget_e_is_the_methods_own_but_all_is_measured() -> None:
    local_work = make_local_work(None, (0.5, 2.0))
    assert local_work.choose() == Choice(None)
    assert (local_work.alpha_s, local_work.beta_s) == (0.5, 2.0)


def test_the_first_round_probes() -> None:
    local_work = make_local_work(10.0)
    assert (local_work.choose(), local_work.alpha_s, local_work.beta_s) == (Choice(None), None, None)
    local_work.add(None, 4.0)
    assert local_work.choose() == Choice(None)
    local_work.add(1.0, None)
    assert local_work.choose() == Choice(6)


def test_a_round_of_the_papers_table_gets_its_e() -> None:
    assert make_local_work(100 / 5, (1.0, 4.0)).choose() == Choice(16)
    assert make_local_work(100 / 4, (2.0, 6.0)).choose() == Choice(9)


def test_mining_that_was_never_measured_counts_as_nothing() -> None:
    assert make_local_work(10.0, (2.0, None)).choose() == Choice(5)


def test_alpha_is_a_median_and_beta_a_mean() -> None:
    local_work = make_local_work(10.0, (1.0, 1.0), (1.0, 3.0), (100.0, 5.0))
    assert (local_work.alpha_s, local_work.beta_s) == (1.0, 3.0)
    assert local_work.choose() == Choice(7)


def test_a_slow_first_phase_is_outweighed_by_the_next() -> None:
    assert make_local_work(10.0, (5.0, None)).alpha_s == 5.0
    assert make_local_work(10.0, (5.0, None), (0.1, None)).alpha_s == 0.1


def test_only_the_last_rounds_count() -> None:
    local_work = make_local_work(10.0, *[(9.0, 9.0)] * 50, *[(1.0, 2.0)] * max(ALPHA_ROUNDS, BETA_ROUNDS))
    assert local_work.choose() == Choice(8)


def test_when_not_even_one_iteration_fits_a_round_has_one_and_says_why() -> None:
    choice = make_local_work(10.0, (3.0, 8.0)).choose()
    assert choice.num_iterations == 1
    assert choice.problem is not None
    assert choice.problem.startswith("10 s for 1 round leave 2 s of training a round: expected at least one local")


def test_what_cannot_be_timed_is_no_measurement() -> None:
    assert make_local_work(10.0, (0.0, None)).choose() == Choice(None)
    assert make_local_work(1e9, (1e-9, None)).choose() == Choice(MAX_ITERATIONS)


def test_a_node_that_starts_again_goes_on_from_its_records() -> None:
    records: list[dict[str, Any]] = [
        {"round": 7, "train": {"alpha_s": 1.0, "loss": 0.3}, "beta_s": 2.0},
        {"round": 8, "train": {}, "beta_s": None},
        {"round": 9, "train": {"alpha_s": 3.0}},  # of a version that did not keep beta
    ]
    local_work = LocalWork.from_records(10.0, records)
    assert (local_work.alpha_s, local_work.beta_s, local_work.choose()) == (1.0, 2.0, Choice(8))


@given(st.floats(0.01, 100), st.lists(st.tuples(st.floats(1e-3, 10), st.floats(0, 10)), min_size=1, max_size=12))
def test_e_fills_the_budget_and_never_exceeds_it_unless_it_is_one(
    budget_s: float, rounds: list[tuple[float, float]]
) -> None:
    local_work = make_local_work(budget_s, *rounds)
    alpha_s, beta_s, iterations = local_work.alpha_s, local_work.beta_s, local_work.choose().num_iterations
    assert alpha_s is not None
    assert beta_s is not None
    assert iterations is not None
    assert iterations >= 1
    fits = budget_s - beta_s
    assert iterations == 1 or iterations * alpha_s <= fits * (1 + 1e-9)
    assert (iterations + 1) * alpha_s > fits * (1 - 1e-9) or math.isclose((iterations + 1) * alpha_s, fits)


def test_progress_is_told_twice_a_second_however_many_steps_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    told: list[Progress] = []
    meter = ProgressMeter(told.append)
    for step in range(1, 2001):
        now_s = 100.0 + step / 1024
        meter.on_step(step, 2000)
    assert PROGRESS_S == 0.5
    assert told == [Progress(512, 2000, 0.5), Progress(1024, 2000, 1.0), Progress(1536, 2000, 1.5)]
