"""The benchmark of finality: how growth is told, what is refused, and that a small one gives figures that add up."""

from __future__ import annotations

import json

import pytest

from bench.application import main
from bench.ledger import compute_growth

pytestmark = pytest.mark.outer


def test_growth_between_two_sizes_is_the_power_of_the_size() -> None:
    def make(factor: float) -> dict[str, object]:
        spread = {"median": 0.5, "min": 0.1, "max": 9.0}
        squared = {name: value * factor**2 for name, value in spread.items()}
        return {"round_s": squared, "cpu_s_per_node": spread, "messages_per_node": 3 * factor, "bytes_per_node": 0.0}

    (step,) = compute_growth({16: make(4), 4: make(1)})
    assert (step["from"], step["to"]) == (4, 16)
    assert step["round_s"] == pytest.approx(2)
    assert step["messages_per_node"] == pytest.approx(1)
    assert step["cpu_s_per_node"] == pytest.approx(0)
    assert step["bytes_per_node"] is None  # nothing cannot grow


@pytest.mark.parametrize("sizes", ["1", "4,x", "4;16", "1000"])
def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], sizes: str) -> None:
    assert main(["ledger", "--sizes", sizes, "--processes", ""]) == 78
    assert "--sizes: expected numbers from 2 to 100" in capsys.readouterr().err


def test_a_small_one_gives_figures_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sizes", "4", "--processes", "", "--rounds", "3", "--difficulty", "256")
    assert main(["ledger", *options, "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert "4 members in one process" in captured.err
    assert figures["processes"] == {}
    assert figures["growth"] == {"memory": [], "processes": []}
    found = figures["memory"]["4"]
    assert found["rounds"] == 3
    assert 0 < found["round_s"]["min"] <= found["round_s"]["median"] <= found["round_s"]["max"]
    assert found["cpu_s_per_node"]["median"] > 0
    assert found["messages_per_node"] == pytest.approx(sum(found["messages"].values()) / 4)
    assert found["bytes_per_node"] == pytest.approx(sum(found["bytes"].values()) / 4)
    assert found["messages"]["vote"] > 16  # 24 to a height in its first view; the last may be cut short
    assert found["bytes"]["vote"] > 100 * found["messages"]["vote"]
    assert 0 <= found["later_views"] <= 1
