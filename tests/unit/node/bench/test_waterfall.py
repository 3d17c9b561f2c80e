"""The waterfall of a round: how long each step took, from when each was seen, and what is drawn of it."""

from __future__ import annotations

from typing import Any

import pytest

from node.bench.waterfall import describe_steps
from node.cli.bench.waterfall import BAR_CHARS, draw_bar, show_waterfall
from node.consensus.record.record import RoundRecord

pytestmark = pytest.mark.outer


def test_a_step_takes_from_the_end_of_the_one_before() -> None:
    rounds = [
        {"trained": 0.01, "contributed": 0.02, "final": 0.05},
        {"trained": 0.03, "contributed": 0.04, "final": 0.05},
        {"trained": 0.02, "contributed": 0.03, "final": 0.08},
    ]
    found = {step["step"]: (step["at_s"], step["took_s"]) for step in describe_steps(rounds)}
    assert list(found) == ["trained", "contributed", "final"]
    assert found["trained"] == pytest.approx((0.02, 0.02))
    assert found["contributed"] == pytest.approx((0.03, 0.01))
    assert found["final"] == pytest.approx((0.05, 0.03))


def test_what_was_over_before_the_step_above_it_has_taken_nothing() -> None:
    found = describe_steps([{"verified": 0.05, "cutoff": 0.04, "final": 0.06}])
    assert [round(step["took_s"], 6) for step in found] == [0.05, 0.0, 0.01]


def test_a_record_tells_when_its_steps_were_in_their_order() -> None:
    record = RoundRecord(7, began_s=10.0, bytes_before={})
    record.mark("final", 10.5)
    record.mark_last("arrived", 10.1)
    record.mark_last("arrived", 10.2)
    record.mark("final", 11.0)  # the first time counts
    record.mark("applied", 12.0)  # none of the steps
    assert list(record.get_steps().items()) == [("arrived", 0.2), ("final", 0.5)]
    assert record.to_mapping()["steps"] == record.get_steps()
    assert "arrived" in record
    assert "cutoff" not in record


def test_a_bar_lies_where_its_step_does() -> None:
    assert draw_bar(0.0, 1.0, 1.0) == "#" * BAR_CHARS
    assert draw_bar(0.5, 1.0, 1.0) == "." * (BAR_CHARS // 2) + "#" * (BAR_CHARS // 2)
    assert draw_bar(1.0, 1.0, 1.0) == "." * (BAR_CHARS - 1) + "#"
    assert draw_bar(0.0, 0.0, 1.0) == "#" + "." * (BAR_CHARS - 1)


def test_each_step_is_a_line_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    spread = {"median": 0.02, "min": 0.01, "max": 0.03}
    steps: list[dict[str, Any]] = [
        {"step": "trained", "what": "the local phase is over", "at_s": 0.03, "took_s": 0.03},
        {"step": "final", "what": "all of it is durable", "at_s": 0.06, "took_s": 0.03},
    ]
    figures = {"job": {"nodes": 4}, "bare": {"round_s": spread}, "round_s": spread, "ratio": 3.456, "steps": steps}
    show_waterfall(
        {**figures, "cpu_s": {"daemon": 0.035, "worker": 0.01, "miner": 0.001}, "messages": 14.04, "batches": 9.0}
    )
    lines = capsys.readouterr().out.splitlines()
    assert "ratio          3.46" in lines
    assert "CPU, ms        daemon 35.0  worker 10.0  miner 1.0   a node and round" in lines
    assert "messages       14.0 a node and round, in 9.0 batches" in lines
    assert lines[-2].endswith(f"{'#' * 20}{'.' * 20}  the local phase is over")
    assert lines[-1].startswith("final             60.0 ms   +30.0  ")
