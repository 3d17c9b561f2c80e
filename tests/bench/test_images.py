"""The benchmark of images in a file: what it measures, and that nothing needs to be in memory."""

from __future__ import annotations

import json

import pytest

from bench.application import main

pytestmark = pytest.mark.outer

ARGUMENTS = ["images", "--images", "20", "--side", "12", "--model", "mlp", "--steps", "2", "--repeats", "2"]


def test_steps_on_a_file_are_timed_against_steps_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--held", "10", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["kept_bytes"] > 20 * 3 * 12 * 12
    assert figures["cpu_s"].keys() == figures["clock_s"].keys() == {"file", "memory"}
    assert 0 < figures["speed"]["min"] <= figures["speed"]["max"]
    assert main([*ARGUMENTS, "--held", "0"]) == 0
    out = capsys.readouterr().out
    assert "20 images of 12x12 in a file, 0 in memory" in out
    assert "speed" not in out
