"""The stochastic layer: what it is drawn from, where it sits, and the numbers of ALGORITHMS §12.4."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ml.fededs.stochastic_layer import (
    apply_layer,
    classify_through,
    compute_distillation,
    compute_soft_labels,
    make_layer,
)
from ml.models import build_model
from ml.payload import Array
from ml.seeding import numpy_rng

KINDS = ("gaussian", "orthogonal", "diag", "conv1x1", "identity")
SOFT = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])


def make(kind: str, dim: int = 64, seed: int = 1) -> Array:
    layer = make_layer(kind, dim, numpy_rng(seed, "layer"))
    assert layer is not None
    return layer


# ---- what it is drawn from


@pytest.mark.parametrize(("kind", "shape"), [("gaussian", (64, 64)), ("orthogonal", (64, 64)), ("diag", (64,))])
def test_a_layer_comes_from_its_seed(kind: str, shape: tuple[int, ...]) -> None:
    layer = make(kind)
    assert (layer.shape, str(layer.dtype)) == (shape, "float32")
    assert np.array_equal(layer, make(kind))
    assert not np.array_equal(layer, make(kind, seed=2))


def test_entries_have_the_variance_that_keeps_features_in_their_scale() -> None:
    """Of 40,000 numbers: a standard error of the mean of 0.5 %, and of the variance of 0.7 %, of the deviation."""
    for kind, deviation in (("gaussian", 1 / math.sqrt(200)), ("conv1x1", 1 / math.sqrt(3 * 200))):
        layer = make(kind, 200)
        assert abs(layer.mean()) < 0.02 * deviation
        assert layer.std() == pytest.approx(deviation, rel=0.03)
    assert np.abs(make("conv1x1", 200)).max() <= 1 / math.sqrt(200)
    assert make("diag", 40_000).std() == pytest.approx(1, rel=0.03)


def test_an_orthogonal_layer_keeps_lengths_and_has_no_preferred_sign() -> None:
    layer = make("orthogonal").astype(np.float64)
    assert layer @ layer.T == pytest.approx(np.eye(64), abs=1e-6)
    diagonals = np.concatenate([np.diag(make("orthogonal", 8, seed)) for seed in range(100)])
    assert abs((diagonals > 0).mean() - 0.5) < 0.08  # 800 signs: a standard error of 0.018


def test_a_conv1x1_layer_is_drawn_as_torch_draws_a_convolution() -> None:
    torch.manual_seed(1)
    theirs = torch.nn.Conv2d(64, 64, 1, bias=False).weight
    assert np.abs(make("conv1x1")).max() == pytest.approx(theirs.abs().max().item(), rel=0.01)
    s_BS = torch.rand(3, 64)
    convolved = F.conv2d(s_BS[:, :, None, None], torch.from_numpy(make("conv1x1"))[:, :, None, None])
    assert torch.allclose(apply_layer(s_BS, torch.from_numpy(make("conv1x1"))), convolved[:, :, 0, 0], atol=1e-6)


def test_identity_is_no_layer_and_others_are_refused() -> None:
    assert make_layer("identity", 64, numpy_rng(1)) is None
    with pytest.raises(ValueError, match="expected gaussian, orthogonal, diag, conv1x1 or identity, got 'noise'"):
        make_layer("noise", 64, numpy_rng(1))


# ---- where it sits


def test_a_matrix_is_applied_to_rows_and_a_vector_to_numbers() -> None:
    s_BS = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    assert apply_layer(s_BS, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[3, 7], [4, 8]]
    assert apply_layer(s_BS, torch.tensor([3.0, 5.0])).tolist() == [[3, 5], [0, 10]]
    assert apply_layer(s_BS, None) is s_BS


@torch.no_grad()
@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [16, 8]}, {"name": "cnn_cifar"}], ids=lambda m: m["name"])
def test_it_sits_before_the_last_linear(model: dict[str, Any]) -> None:
    net = build_model(model, (1, 16, 16), 10).eval()
    x = torch.rand(3, 1, 16, 16)
    width = net.enter_slot(net.embed(x)).shape[1]
    assert torch.equal(classify_through(net, x, None), net(x))
    assert torch.allclose(classify_through(net, x, torch.eye(width)), net(x), atol=1e-6)
    assert torch.allclose(classify_through(net, x, torch.zeros(width)), list(net.parameters())[-1].expand(3, 10))
    assert not torch.allclose(classify_through(net, x, torch.from_numpy(make("gaussian", width))), net(x), atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_soft_labels_are_the_same_whenever_they_are_made(kind: str) -> None:
    net = build_model({"name": "mlp", "hidden": [16]}, (1, 8, 8), 10).eval()
    drawn = make_layer(kind, 16, numpy_rng(1))
    layer = None if drawn is None else torch.from_numpy(drawn)
    x = torch.rand(5, 1, 8, 8)
    soft = compute_soft_labels(net, x, layer)
    assert (soft.dtype, soft.shape, soft.requires_grad) == (torch.float32, (5, 10), False)
    assert torch.equal(soft, compute_soft_labels(net, x, layer))
    assert soft.sum(1) == pytest.approx(np.ones(5), abs=1e-6)


# ---- the worked example


def test_divergences_of_the_worked_example() -> None:
    rows = [compute_distillation(LOGITS[i : i + 1], SOFT[i : i + 1]).item() for i in (0, 1)]
    assert rows == pytest.approx([0.068027467013, 0.812412854282], rel=1e-6)
    assert compute_distillation(LOGITS, SOFT).item() == pytest.approx(0.440220160647, rel=1e-6)


def test_the_divergence_is_of_the_label_against_the_student() -> None:
    student = LOGITS.softmax(1)
    reverse = [(p * (p.log() - y.log())).sum().item() for p, y in zip(student, SOFT, strict=True)]
    assert reverse == pytest.approx([0.057215658, 0.886537185], rel=1e-6)  # what it is not


def test_a_label_without_a_class_has_a_finite_divergence_and_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = compute_distillation(logits, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(F.cross_entropy(LOGITS, torch.tensor([0, 2])).item())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
