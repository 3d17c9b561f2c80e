"""A step that a GPU replays is the step that it would launch: of every method, alone and for many clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu.quick import MLP, make_quick
from ml.methods.common.sharing import Classifies
from ml.models.base import Model
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import METHODS
from ml.training.loop import Batch, Engine, Tensors
from support.data.normed import fit_model

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact", "cuda")]

SEE_GRADIENTS = ("criticalfl", "dispfl")  # and change them, so that their steps are not recorded
IN_TURN = ("fedrep",)  # whose steps are not all of the same parameters


class Replays(list[torch.cuda.CUDAGraph]):
    """Those that were made."""


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replays]:
    made, replay = Replays(), torch.cuda.CUDAGraph.replay

    def note(graph: torch.cuda.CUDAGraph) -> None:
        made.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", note)
    yield made
    made.clear()


def run(method: dict[str, Any], device: str, batched: str = "off") -> SimulationResult:
    """Three rounds, so that in two a method's own loss is what is replayed."""
    model = fit_model(method["name"], MLP)
    return simulate(
        SimulationConfig(method=method, clients=3, rounds=3, shots=20, device=device, batched=batched, model=model)
    )


def assert_same(one: SimulationResult, other: SimulationResult) -> None:
    for first, second in zip(one.rounds, other.rounds, strict=True):
        assert (first.taa, first.global_) == (second.taa, second.global_)
        assert first.tal == pytest.approx(second.tal, rel=1e-5)


@pytest.mark.parametrize("batched", ["off", "on"])
@pytest.mark.parametrize("name", METHODS)
def test_a_replayed_step_is_the_step(
    cuda: str, name: str, batched: str, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make_quick(name, local_iterations=12)
    replayed = run(method, cuda, batched)
    num_replays = len(replays)
    monkeypatch.setattr(Engine, "can_replay", False)
    assert_same(replayed, run(method, cuda, batched))
    assert num_replays == len(replays)
    assert (num_replays > 0) == (name not in (*SEE_GRADIENTS, *IN_TURN))


def test_momentum_is_replayed_and_a_smaller_last_batch_launched(
    cuda: str, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "fedavg", "local_epochs": 3, "batch_size": 24, "momentum": 0.9, "weight_decay": 0.01}
    replayed = run(method, cuda)
    num_replays = len(replays)
    monkeypatch.setattr(Engine, "can_replay", False)
    assert_same(replayed, run(method, cuda))
    assert num_replays == len(replays) > 0


def test_a_changing_learning_rate_is_not_replayed(cuda: str, replays: Replays) -> None:
    run({"name": "fedavg", "local_iterations": 12, "decay": 0.9, "decay_unit": "step"}, cuda)
    assert not replays


def test_a_loss_that_waits_for_the_gpu_is_launched(
    cuda: str, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a method of someone else's may have it: a shape that depends on values."""

    def compute_loss(self: Any, model: Model, batch: Batch, context: Tensors) -> Tensor:
        known = batch.y >= 0
        return model.criterion(model(batch.x[known]), batch.y[known])

    plain = run(make_quick("local", local_iterations=12), cuda)
    assert replays
    replays.clear()
    monkeypatch.setattr(Classifies, "compute_loss", compute_loss)
    assert_same(run(make_quick("local", local_iterations=12), cuda), plain)
    assert not replays
