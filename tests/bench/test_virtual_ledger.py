"""The benchmark of many members in virtual time: what is refused, and that a small one gives figures that add up."""

from __future__ import annotations

import json

import pytest

from bench.application import main

pytestmark = pytest.mark.outer


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sizes", "301"), "--sizes: expected numbers from 2 to 300"),
        (("--one-way", "5", "--jitter", "6"), "--jitter: expected at most --one-way, 5 ms (got 6)"),
        (("--sizes", "4,7", "--silent", "2"), "--silent: expected fewer than a third of 4 members (got 2)"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(["virtual-ledger", *options]) == 78
    assert said in capsys.readouterr().err


def test_a_small_one_gives_the_figures_of_a_quiet_round(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sizes", "4", "--rounds", "3", "--loss", "0", "--jitter", "0", "--one-way", "20")
    assert main(["virtual-ledger", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["members"]["4"]
    assert found["round_s"]["min"] > 0.2 + 4 * 0.02  # training, and a delay for each step
    assert found["contributions"] == 4
    kinds = found["kinds"]
    assert kinds["contribution"] == kinds["payload"] == 3
    assert kinds["vote"] == pytest.approx(6, abs=1)
    assert found["messages"] == pytest.approx(sum(kinds.values()))
    assert 0 < found["cpu_s"] < 1


def test_who_is_silent_contributes_nothing_and_is_waited_for_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["virtual-ledger", "--sizes", "4", "--rounds", "2", "--silent", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["members"]["4"]
    assert found["contributions"] == 3
    assert found["round_s"]["median"] < 5
