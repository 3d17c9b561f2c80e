"""A user's own `ml/`, `chain/` or `node.py` on PYTHONPATH: none of the processes that we start takes it for ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.faults.foreign_names import make_hostile_directory, run_as_user

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

SWEEP = """
name: two
title: Two runs
base: {clients: 2, rounds: 1, shots: 10, method: {local_iterations: 1}}
sweep: {method: [local, dfpl], seed: [1]}
"""
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3)
        self.last = torch.nn.Linear(4, num_classes)

    def embed(self, x):
        return self.first(x).relu().mean((2, 3))

    def classify(self, z):
        return self.last(z)


def make(input_shape, num_classes):
    return Net(num_classes)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_hostile_directory(tmp_path / "place")


@pytest.mark.slow
@pytest.mark.parametrize("by_module", [False, pytest.param(True, marks=pytest.mark.long)])
def test_daemons_workers_and_miners_run(place: Path, by_module: bool) -> None:
    """And the workers find the user's model in the directory that the command was called in."""
    (place / "nets.py").write_text(NET)
    job = ("--method", "fedavg", "--model", "nets:make", "--partition", "iid", "--set", "local_iterations=1")
    done = run_as_user(
        place, "demo", "-n", 2, "--rounds", 1, *job, "--json", path=() if by_module else (place,), by_module=by_module
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["heads_agree"]


@pytest.mark.parametrize("by_module", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.slow
def test_the_runs_of_an_experiment_are_done(place: Path, by_module: bool) -> None:
    (place / "sweep.yaml").write_text(SWEEP)
    done = run_as_user(place, "experiment", "run", "sweep.yaml", "-j", 1, path=(place,), by_module=by_module)
    assert done.code == 0, done.err
    assert "now 2 more done, 0 failed" in done.out
