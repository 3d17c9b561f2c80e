"""The benchmark of proof of work: what is expected of it, and that a small one counts what the miner has done."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from bench import pow as bench_pow
from bench.application import main
from bench.commands.pow import show_figures
from bench.pow import SLICE, describe_solutions, make_seal, measure_bare
from chain.pow import search

pytestmark = pytest.mark.outer


def test_searches_are_held_against_what_the_difficulty_lets_expect() -> None:
    found = describe_solutions([1.0, 3.0, 2.0, 2.0], [100, 300, 150, 250], difficulty=100, hashes_per_s=50)
    assert found["solve_s"] == {"median": 2.0, "min": 1.0, "max": 3.0, "mean": 2.0}
    assert found["expected_s"] == 2.0
    assert found["solve_ratio"] == 1.0
    assert found["hashes_ratio"] == 2.0
    assert found["standard_error"] == 0.5


def test_the_bare_loop_counts_its_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([5.0, 5.25, 5.5])
    monkeypatch.setattr(bench_pow, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert measure_bare(0.5) == 2 * SLICE / 0.5


@pytest.mark.parametrize("workers", ["0", "1,x", "", "1000"])
def test_a_number_of_workers_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], workers: str) -> None:
    assert main(["pow", "--workers", workers]) == 78
    assert "--workers: expected numbers from 1 to 256" in capsys.readouterr().err


def test_a_small_one_counts_the_hashes_of_every_search(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--workers", "2,1", "--difficulty", "2000", "--blocks", "3", "--seconds", "0.05", "--seed", "7")
    assert main(["pow", *options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() == {"machine", "job", "idle", "workers"}
    assert figures["job"] == {"difficulty": 2000, "blocks": 3, "seconds": 0.05, "seed": 7}
    assert figures["idle"]["lag_s"].keys() == {"count", "median", "p99", "max"}
    assert list(figures["workers"]) == ["1", "2"]
    for found in figures["workers"].values():
        assert found["ratio"] == pytest.approx(found["hashes_per_s"] / found["bare_hashes_per_s"])
        assert found["expected_s"] == pytest.approx(2000 / found["hashes_per_s"])
        assert found["solve_ratio"] == pytest.approx(found["solve_s"]["mean"] / found["expected_s"])
        assert found["lag_s"]["count"] > 0
    nonces = [search(make_seal(7, number), 2000, 0, 1 << 20) for number in (1, 2, 3)]
    hashes = sum(nonce + 1 for nonce in nonces if nonce is not None)
    assert figures["workers"]["1"]["hashes_ratio"] == pytest.approx(hashes / 3 / 2000)
    show_figures(figures)
    assert "± 0.58" in capsys.readouterr().out  # one over the root of three
