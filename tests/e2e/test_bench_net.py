"""`make bench-net` over as little as there are figures of: two processes, and gRPC beside them."""

from __future__ import annotations

import json

import pytest

from bench.application import main
from bench.commands.net import show_figures
from bench.net import compare_delays, compare_rates

pytestmark = [pytest.mark.e2e, pytest.mark.outer]


def test_delays_and_rates_are_told_as_how_many_times_as_long() -> None:
    delays = compare_delays([0.2, 0.4, 0.9], [0.1, 0.2, 0.3])
    assert delays["ratio"] == pytest.approx({"median": 2.0, "p99": 3.0})
    rates = compare_rates(100, [2.0, 4.0], [1.0, 1.0])
    assert rates["ours"] == {"median": 37.5, "min": 25.0, "max": 50.0}
    assert rates["ratio"] == {"median": 3.0, "min": 2.0, "max": 4.0}


@pytest.mark.slow
def test_messages_come_back_a_blob_comes_whole_and_connections_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--messages", "20", "--mb", "2.5", "--connections", "2", "--repeats", "2")
    assert main(["net", *options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() == {"machine", "job", "round_trip_s", "messages_per_s", "blob_mb_per_s", "connect_s"}
    assert figures["job"] == {
        **{"messages": 20, "message_bytes": 141, "window": 64, "mb": 2.5, "connections": 2, "repeats": 2, "seed": 1},
        "messages_per_s_allowed": 1000.0,
    }
    for name, count in (("round_trip_s", 40), ("connect_s", 4)):
        ours, bare = (figures[name][end] for end in ("ours", "bare"))
        assert ours["count"] == bare["count"] == count
        assert 0 < ours["median"] <= ours["p99"] <= ours["max"]
        assert figures[name]["ratio"]["median"] == pytest.approx(ours["median"] / bare["median"])
    for name in ("messages_per_s", "blob_mb_per_s"):
        for end in ("ours", "bare"):
            assert 0 < figures[name][end]["min"] <= figures[name][end]["median"] <= figures[name][end]["max"]
    show_figures(figures)
    shown = capsys.readouterr().out
    assert "\nround trip " in shown
    assert "\nMB of a blob " in shown
