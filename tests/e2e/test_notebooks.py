"""The notebooks of the docs: each runs from its first cell to its last, and says what its text promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import notebooks

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run(name: str) -> list[str]:
    """The lines that its cells print and show, in a process without any environment of the tests."""
    command = [sys.executable, str(notebooks.__file__), str(ROOT / "docs" / "notebooks" / f"{name}.ipynb")]
    done = subprocess.run(command, cwd=ROOT / "docs", capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_they_are_kept_without_what_they_print() -> None:
    assert [file.stem for file in FILES] == ["cluster", "simulate"]
    for file in FILES:
        book = json.loads(file.read_text())
        assert (book["nbformat"], book["cells"][0]["cell_type"]) == (4, "markdown")
        assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.outer
def test_the_simulation_compares_methods_and_rules() -> None:
    lines = run("simulate")
    assert "<png>" in lines
    told = [re.match(r"(\w+) +accuracy (0\.\d+)(?:, sent ([\d,]+) bytes)?$", line) for line in lines]
    accuracies = {found[1]: float(found[2]) for found in told if found}
    sent = {found[1]: int(found[3].replace(",", "")) for found in told if found and found[3]}
    assert accuracies["median"] > accuracies["mean"]
    assert accuracies["fedavg"] > accuracies["local"]
    assert sent["local"] == 0 < sent["dfpl"] < sent["fedavg"] / 10


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.outer
def test_the_cluster_trains_predicts_and_agrees_on_a_change() -> None:
    lines = run("cluster")
    assert lines[0] == "('node0', 'node1', 'node2')"
    assert [line.split(":")[0] for line in lines if line.startswith("round")] == [f"round {r}" for r in range(1, 6)]
    (share,) = [float(line.removeprefix("(100, 10) ")) for line in lines if line.startswith("(100, 10)")]
    assert share > 0.5  # one class for all would be 0.1
    assert lines[-1] == "(7, 7)"
