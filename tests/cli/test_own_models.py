"""A model of the user's own, by name: where it is looked for, and what is told of its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.faults.foreign_names import make_hostile_directory, run_as_user

pytestmark = [pytest.mark.slow, pytest.mark.outer]

SIMULATE = (
    "simulate",
    "--clients",
    2,
    "--rounds",
    1,
    "--shots",
    10,
    "--set",
    "local_iterations=1",
    "--method",
    "local",
)
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, features, num_classes, width):
        super().__init__()
        self.first = torch.nn.Linear(features, width)
        self.last = torch.nn.Linear(width, num_classes)

    def embed(self, x):
        return self.first(x.flatten(1)).relu()

    def classify(self, z):
        return self.last(z)


def make(input_shape, num_classes, width=8):
    channels, height, columns = input_shape
    return Net(channels * height * columns, num_classes, width)


def make_wrongly(input_shape, num_classes):
    return Net("many", num_classes, 8)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = make_hostile_directory(tmp_path / "place")
    (place / "nets.py").write_text(NET)
    return place


@pytest.mark.parametrize("by_module", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_is_found_in_the_working_directory(place: Path, by_module: bool) -> None:
    done = run_as_user(place, *SIMULATE, "--model", "nets:make", by_module=by_module)
    assert done.code == 0, done.err


def test_the_working_directory_comes_last(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "nets.py").write_text("make = 3\n")
    done = run_as_user(place, *SIMULATE, "--model", "nets:make", path=(elsewhere,))
    assert done.code == 78
    assert f"expected a callable 'make' in 'nets', got 3 ({elsewhere}/nets.py)" in done.err


def test_it_is_found_on_pythonpath_beside_packages_of_our_names(place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run_as_user(tmp_path / "empty", *SIMULATE, "--model", "nets:make", path=(place,))
    assert done.code == 0, done.err


def test_the_working_directory_is_looked_at_for_models_alone(place: Path) -> None:
    (place / "threadpoolctl.py").write_text("raise RuntimeError('a library of the directory')\n")
    done = run_as_user(place, *SIMULATE)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("module", "text", "told"),
    [
        ("nets:make_wrongly", None, "(PLACE/nets.py:8)"),
        (
            "mine:make",
            "def make(shape, classes):\n    return 1 / 0\n",
            "ZeroDivisionError: division by zero (PLACE/mine.py:2)",
        ),
        ("mine:make", "import torch\n\ntorch.nn.Linear('a', 2)\n", "mine.py:3)"),
        ("mine:make", "\nimport no_such_library\n", "No module named 'no_such_library' (PLACE/mine.py:2)"),
        ("mine:make", "\ndef make(\n", "SyntaxError: '(' was never closed (PLACE/mine.py:2)"),
        ("mine:make", "import sys\nsys.exit(3)\n", "SystemExit: 3 (PLACE/mine.py:2)"),
        ("ml.mine:make", None, "no module named 'ml.mine': 'ml' is fednode's own package; expected another name"),
    ],
)
def test_its_own_mistakes_are_told_with_its_file_and_line(
    place: Path, module: str, text: str | None, told: str
) -> None:
    if text is not None:
        (place / "mine.py").write_text(text)
    done = run_as_user(place, *SIMULATE, "--model", module)
    assert done.code == 78
    assert told.replace("PLACE", str(place)) in done.err
    assert done.err.count("\n") == 1
