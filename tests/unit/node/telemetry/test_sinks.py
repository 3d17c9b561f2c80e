"""Sinks of rounds besides the store: their contents, their limits, and that none holds a node up."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from node.config.node_sections import SinksSection
from node.errors import ConfigError
from node.telemetry.sinks import opening
from node.telemetry.sinks.base import KEPT, Point, SinkFailed, SinkThread
from node.telemetry.sinks.jsonl import JsonlSink
from node.telemetry.sinks.opening import validate_sinks
from node.telemetry.sinks.point import list_scalars, make_point

RECORD: dict[str, Any] = {
    "height": 5,
    "run": 2,
    "round": 3,
    "block": "0000f1",
    "miner": "k5ry",
    "view": 0,
    "votes": 3,
    "contributors": ["a", "b"],
    "payload_bytes": 10,
    "rejected": {"c": "too large"},
    "left_out": {"c": "too large", "d": "no contribution came"},
    "seconds": {"train": 1.5, "wall": 2.0},
    "bytes_sent": {"vote": 100},
    "pulled_bytes": None,
    "beta_s": 0.25,
    "spoiled": "height 3: the training loss of 32 samples is not finite",
    "train": {"loss": None, "steps": 20},
    "apply": {"accuracy": 0.75},
    "accuracy": 0.75,
    "local_accuracy": None,
}


def make(number: int = 3) -> Point:
    return make_point(RECORD | {"round": number}, "hospital-a", 1_795_183_331_042)


def test_a_point_says_which_round_on_which_node_and_has_only_what_json_has() -> None:
    point = make()
    assert (point["time"][:19], point["node"]) == ("2026-11-20T14:02:11", "hospital-a")
    assert (point["run"], point["round"], point["height"]) == (2, 3, 5)
    assert (point["contributions"], point["rejected"], point["left_out"]) == (2, 1, 2)
    assert (point["loss"], point["accuracy"], point["local_accuracy"]) == (None, 0.75, None)
    assert point["spoiled"] is True
    assert json.loads(json.dumps(point, allow_nan=False)) == point


def test_scalars_are_the_numbers_by_their_place() -> None:
    scalars = dict(list_scalars(make()))
    assert scalars["seconds/train"] == 1.5
    assert scalars["train/steps"] == 20
    assert scalars["bytes_sent/vote"] == 100
    assert not {"run", "round", "height", "loss", "node", "block"} & scalars.keys()


# ---- metrics.jsonl


def read(path: Path) -> list[int]:
    return [json.loads(line)["round"] for line in path.read_text().splitlines()]


def test_lines_are_appended_over_all_lives(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2):
        JsonlSink(path).write(make(number))
    assert read(path) == [1, 2]


def test_half_a_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round":1}\n{"rou')
    JsonlSink(path).write(make(2))
    first, half, second = path.read_text().splitlines()
    assert (json.loads(first)["round"], half, json.loads(second)["round"]) == (1, '{"rou', 2)


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    size = len(json.dumps(make(), separators=(",", ":"))) + 1
    sink = JsonlSink(path, max_bytes=2 * size)
    for number in range(1, 8):
        sink.write(make(number))
    assert (read(path.with_name("metrics.jsonl.1")), read(path)) == ([5, 6], [7])


def test_a_disk_that_refuses_is_said_once_and_gone_on_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "data" / "metrics.jsonl"
    written = threading.Event()

    class Sink(JsonlSink):
        def write(self, point: Point) -> None:
            if point["round"] == 3:
                path.parent.mkdir()
            super().write(point)

        def close(self) -> None:
            written.set()

    thread = SinkThread("jsonl", Sink(path))
    for number in (1, 2, 3):
        thread.put(make(number))
    thread.close(60)
    assert written.is_set()
    assert read(path) == [3]
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the sink jsonl failed: {path}: No such file or directory", said[-1]]
    assert said[-1] == "the sink jsonl recovered"


# ---- the thread of each


def test_a_sink_that_hangs_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    taken: list[int] = []

    class Hanging:
        def write(self, point: Point) -> None:
            release.wait(60)
            taken.append(point["round"])

        def close(self) -> None:
            raise SinkFailed("never mind")

    thread = SinkThread("slow", Hanging())
    for number in range(2 * KEPT):
        thread.put(make(number))
    thread.close(0.01)
    assert [record.getMessage() for record in caplog.records] == ["the sink slow was too slow; rounds were left out"]
    release.set()
    thread.close(0.01)
    assert len(taken) <= KEPT + 1


# ---- what has to be installed


@pytest.mark.parametrize(
    ("section", "extra"),
    [
        (SinksSection(tensorboard=True), "tensorboard"),
        (SinksSection(mlflow_uri="http://127.0.0.1:5000"), "mlflow"),
        (SinksSection(otlp=True), "otlp"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, section: SinksSection, extra: str
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"sinks\.{extra}.*: expected the package .* 'fednode\[{extra}\]'"):
        validate_sinks(section)
    validate_sinks(SinksSection())
