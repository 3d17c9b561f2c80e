"""The contrasts of MOON, SWIM and FedIntR and FedProx's term, with the numbers of ALGORITHMS §12.7 and §12.4."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.methods.common.contrast import (
    compute_contrast,
    compute_cosines,
    compute_layered_contrast,
    compute_window_contrast,
    freeze,
    represent,
)
from ml.methods.common.losses import compute_proximal_term
from ml.models.base import Model, dump_parameters

TAU = 0.5


class Normed(Model):
    """Batch norm and dropout on two numbers: what a model in training does and a frozen one must not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.fc = nn.Linear(2, 2)

    def embed(self, x: Tensor) -> Tensor:
        z: Tensor = self.norm(F.dropout(x.flatten(1), 0.5, self.training))
        return z

    def classify(self, z_BD: Tensor) -> Tensor:  # noqa: N803 - its shape, as in ml
        logits: Tensor = self.fc(z_BD)
        return logits


# ---- by hand


def test_moons_contrast() -> None:
    contrast = compute_contrast(torch.tensor([0.6, 0.2]), torch.tensor([0.0, 0.2]), TAU)
    assert contrast.tolist() == pytest.approx([0.263282467, math.log(2)], rel=1e-6)


def test_swims_contrast() -> None:
    contrast = compute_window_contrast(torch.tensor([0.6]), torch.tensor([[0.8, 0.3]]), TAU)
    assert contrast.item() == pytest.approx(0.199051561, rel=1e-6)


def test_fedintrs_contrast() -> None:
    global_BL, previous_BL = torch.tensor([[0.9, 0.5, 0.1]]), torch.full((1, 3), 0.2)
    assert compute_contrast(global_BL, previous_BL, TAU)[0].tolist() == pytest.approx(
        [0.220417410, 0.437487950, 0.798138869], rel=1e-6
    )
    assert (global_BL.mean(0) / TAU).softmax(0).tolist() == pytest.approx(
        [0.605610809, 0.272118477, 0.122270714], rel=1e-6
    )
    assert compute_layered_contrast(global_BL, previous_BL, TAU).item() == pytest.approx(0.350124730, rel=1e-6)


def test_autocast_does_not_round_a_contrast_of_many_clients() -> None:
    """vmap takes products apart in its own way, which autocast sees."""
    global_NBL, previous_NBL = torch.tensor([[[0.9, 0.5, 0.1]], [[0.3, 0.7, 0.2]]]), torch.full((2, 1, 3), 0.2)
    history_NBH, global_NB = torch.tensor([[[0.8, 0.3]], [[0.1, 0.6]]]), torch.tensor([[0.6], [0.2]])

    def compute(common: Tensor, history: Tensor, layers: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        return compute_window_contrast(common, history, TAU), compute_layered_contrast(layers, previous, TAU)

    given = (global_NB, history_NBH, global_NBL, previous_NBL)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = torch.func.vmap(compute)(*given)
    exact = torch.func.vmap(compute)(*given)
    for ours, theirs in zip(coarse, exact, strict=True):
        assert torch.equal(ours, theirs)


def test_fedproxs_term() -> None:
    assert 0.1 * compute_proximal_term(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0])).item() == pytest.approx(0.1)


# ---- what they mean


def test_a_window_of_one_negative_is_moon() -> None:
    global_B, previous_B = torch.tensor([0.6, 0.1, -0.9]), torch.tensor([0.1, 0.4, 0.2])
    expected = compute_contrast(global_B, previous_B, TAU).mean()
    assert torch.allclose(compute_window_contrast(global_B, previous_B[:, None], TAU), expected)


def test_the_mean_of_the_batch_decides_what_attracts() -> None:
    global_B = torch.zeros(2)
    attracting = compute_window_contrast(global_B, torch.tensor([[0.9], [0.1]]), TAU)  # 0.5 in the mean
    repelling = compute_window_contrast(global_B, torch.tensor([[0.9], [0.09]]), TAU)
    assert attracting.item() == 0  # no negative
    assert repelling.item() == pytest.approx((math.log(1 + math.e**1.8) + math.log(1 + math.e**0.18)) / 2, rel=1e-6)


def test_an_empty_window_is_no_contrast() -> None:
    global_B = torch.tensor([0.6, 0.1], requires_grad=True)
    contrast = compute_window_contrast(global_B, torch.zeros(2, 0), TAU)
    assert contrast.item() == 0
    assert not torch.autograd.grad(contrast, global_B)[0].any()


def test_a_window_whose_every_entry_repels_or_attracts_has_finite_gradients() -> None:
    for cosine in (0.9, -0.9):
        history_BH = torch.full((3, 4), cosine, requires_grad=True)
        contrast = compute_window_contrast(torch.full((3,), 0.5), history_BH, 0.01)
        assert bool(torch.isfinite(torch.autograd.grad(contrast, history_BH)[0]).all())


def test_cosines_are_of_directions() -> None:
    z_BD = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    unit = torch.tensor([1.0, 0.0])
    assert compute_cosines(z_BD, unit).tolist() == pytest.approx([0.6, 0.0, 0.0])
    history_BHD = torch.eye(2).expand(3, 2, 2)
    assert compute_cosines(z_BD[:, None], history_BHD)[0].tolist() == pytest.approx([0.6, 0.8])
    assert compute_cosines(z_BD.bfloat16(), unit).dtype == torch.float32


def test_gradients_through_dead_embeddings_are_finite() -> None:
    x_BD = torch.tensor([[-1.0, -2.0], [1.0, 0.5]], requires_grad=True)
    cosines = compute_cosines(F.relu(x_BD), torch.tensor([1.0, 0.0]))
    (gradient,) = torch.autograd.grad(cosines.sum(), x_BD)
    assert not gradient[0].any()
    assert bool(torch.isfinite(gradient).all())


# ---- frozen models


def test_representations_are_units_where_asked_for_and_zeros_elsewhere() -> None:
    x, rows = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.0, 5.0]]), torch.tensor([0, 2])
    unit_ND = represent(Normed(), x, rows)
    assert unit_ND.flatten().tolist() == pytest.approx([0.6, 0.8, 0, 0, 0, 1], rel=1e-4)
    assert not unit_ND.requires_grad


def test_representations_of_many_samples_do_not_depend_on_the_chunk() -> None:
    x = torch.rand(5000, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(represent(Normed(), x, torch.arange(5000)), F.normalize(x, dim=1), atol=1e-4)


def test_frozen_models_leave_batch_norm_and_the_model_in_training_alone() -> None:
    model = Normed().train()
    earlier = dump_parameters(model)
    with torch.no_grad():
        model(torch.rand(8, 2))  # moves the statistics
        model.fc.weight += 1
    now = dump_parameters(model)
    frozen = freeze(model, earlier)
    x = torch.rand(6, 2)
    represent(frozen, x, torch.arange(6))
    represent(model, x, torch.arange(6))
    for arrays, expected in ((dump_parameters(frozen), earlier), (dump_parameters(model), now)):
        assert arrays.keys() == expected.keys()
        assert all((arrays[name] == expected[name]).all() for name in arrays)
    with pytest.raises(ValueError, match="do not fit"):
        freeze(model, {"fc.weight": earlier["fc.weight"]})
