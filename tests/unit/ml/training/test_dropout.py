"""Masks of dropout: what dropout itself would draw, to the bit."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.models import Model, build_model
from ml.training.dropout import find_dropped, name_masks, use_masks
from ml.training.generator import get_states, going_on, seed_torch
from ml.training.loop import Batch, Tensors

CPU = torch.device("cpu")


@pytest.fixture
def model() -> Model:
    torch.manual_seed(1)
    return build_model({"name": "cnn_mnist"}, (1, 28, 28), 10).train()


def compute_loss(model: Model, batch: Batch, context: Tensors) -> Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


def test_masks_make_of_a_loss_what_its_own_draws_make(model: Model) -> None:
    batch = Batch(torch.rand(5, 1, 28, 28), torch.arange(5))
    before = torch.get_rng_state()
    dropped = find_dropped(model, compute_loss, batch, {}, contextlib.nullcontext())
    assert torch.equal(torch.get_rng_state(), before)
    assert [(each.function, each.p, tuple(each.ones.shape)) for each in dropped] == [
        (F.dropout2d, 0.5, (5, 20, 1, 1)),
        (F.dropout, 0.5, (5, 50)),
    ]
    own = compute_loss(model, batch, {})
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    masks = [each.draw() for each in dropped]
    assert torch.equal(torch.get_rng_state(), after)
    assert all(set(mask.flatten().tolist()) == {0.0, 2.0} for mask in masks)
    assert torch.equal(use_masks(compute_loss)(model, Batch(batch.x, batch.y, name_masks(masks)), {}), own)


def test_a_model_that_is_only_asked_drops_nothing(model: Model) -> None:
    batch = Batch(torch.rand(5, 1, 28, 28), torch.arange(5))
    assert find_dropped(model.eval(), compute_loss, batch, {}, contextlib.nullcontext()) == []
    assert torch.equal(use_masks(compute_loss)(model, batch, {}), compute_loss(model, batch, {}))


def test_modules_of_dropout_are_found_and_a_loss_keeps_what_else_comes_with_a_batch() -> None:
    drop = nn.Dropout(0.25)

    def weigh(_: Model, batch: Batch, __: Tensors) -> Tensor:
        assert set(batch.extra) == {"weights"}
        x: Tensor = drop(batch.x)
        return (x * batch.extra["weights"]).sum()

    batch = Batch(torch.rand(4, 3), torch.zeros(4), {"weights": torch.rand(4, 1)})
    any_model = build_model({"name": "mlp", "hidden": [2]}, (1, 1, 3), 2)
    (dropped,) = find_dropped(any_model, weigh, batch, {}, contextlib.nullcontext())
    assert (dropped.p, tuple(dropped.ones.shape)) == (0.25, (4, 3))
    mask = dropped.draw()
    masked = Batch(batch.x, batch.y, {**batch.extra, **name_masks([mask])})
    assert torch.equal(use_masks(weigh)(any_model, masked, {}), (batch.x * mask * batch.extra["weights"]).sum())


def test_each_state_of_the_generator_goes_on_by_itself() -> None:
    states = []
    for seed in (1, 2):
        seed_torch(seed, CPU)
        states.append(get_states(CPU))
    drawn: list[list[float]] = [[], []]
    for i in (0, 1, 1, 0):
        with going_on(states, i, CPU):
            drawn[i] += torch.rand(2).tolist()
    for i, seed in enumerate((1, 2)):
        seed_torch(seed, CPU)
        assert torch.cat([torch.rand(2), torch.rand(2)]).tolist() == drawn[i]
