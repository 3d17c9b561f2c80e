"""Recorded steps, as far as a CPU shows them; `tests/gpu/test_replay.py` has the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ml.training.graphs import on_device, own_stream
from ml.training.loop import Batch, Engine
from ml.training.optimizers import Adam, Sgd

CPU = torch.device("cpu")


def make_step(batch: Batch) -> Tensor:
    return batch.x.sum()


def test_a_cpu_makes_each_step() -> None:
    assert on_device(make_step, CPU, 100, can_replay=True) is make_step
    with own_stream(CPU):
        assert make_step(Batch(torch.ones(3), torch.ones(3))) == 3


@pytest.mark.parametrize(("num_steps", "can_replay"), [(5, True), (100, False)])
def test_a_gpu_makes_each_step_of_a_short_phase_or_where_a_site_says_so(num_steps: int, can_replay: bool) -> None:
    assert on_device(make_step, torch.device("cuda"), num_steps, can_replay=can_replay) is make_step


def test_only_what_stays_the_same_from_step_to_step_is_recorded() -> None:
    weights = list(nn.Linear(2, 2).parameters())
    assert Sgd(weights, 0.1, momentum=0.9, weight_decay=0.1).is_steady
    assert not Sgd(weights, 0.1, decay=0.9).is_steady
    assert not Sgd(weights, 0.1, on_gradients=lambda gradients: gradients).is_steady
    assert not Adam(weights, 0.1).is_steady


def test_a_site_may_do_without_and_compiled_steps_do() -> None:
    assert Engine().can_replay
    assert not Engine(graphs=False).can_replay
    assert not Engine(compiled=True).can_replay
