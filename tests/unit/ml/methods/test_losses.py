"""DFPL's prototypes and auxiliary losses, with the numbers of ALGORITHMS §12.1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ml.aggregation import RULES, Contributed
from ml.methods.common.losses import GlobalPrototypes, compute_prototype_contrast, compute_prototype_loss
from ml.methods.common.prototypes import LocalPrototypes, average, sum_embeddings
from ml.models.base import Model

# Client A: its embeddings and labels; and the global prototypes of A, B and C over the owners of each class.
Z_A = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
Y_A = torch.tensor([0, 0, 1])
OWNERS = np.array([[3, 2], [3, 1], [0, 6]], np.float32)


class Identity(Model):
    """Embeds a sample as itself."""

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, z_BD: Tensor) -> Tensor:  # noqa: N803 - its shape, as in ml
        return z_BD


def make_target(classes: list[int], prototypes: object, num_classes: int = 3) -> GlobalPrototypes:
    return GlobalPrototypes.from_arrays(
        np.array(classes, np.int64), np.array(prototypes, np.float32), num_classes, torch.device("cpu")
    )


def compute_prototypes(z: Tensor, y: Tensor, min_class_samples: int = 1) -> LocalPrototypes:
    return average(sum_embeddings(Identity(), z, y, 3), min_class_samples)


def test_local_prototypes_are_class_means() -> None:
    local = compute_prototypes(Z_A, Y_A)
    assert local.classes.tolist() == [0, 1]
    assert local.prototypes.tolist() == [[2, 3], [5, 0]]
    assert local.counts.tolist() == [2, 1]
    assert [str(a.dtype) for a in (local.classes, local.prototypes, local.counts)] == ["int64", "float32", "int64"]


def test_small_classes_can_be_kept_back() -> None:
    assert compute_prototypes(Z_A, Y_A, min_class_samples=2).classes.tolist() == [0]
    nothing = compute_prototypes(Z_A, Y_A, min_class_samples=3)
    assert nothing.classes.shape == (0,)
    assert nothing.prototypes.shape == (0, 2)


def test_prototypes_of_many_samples_do_not_depend_on_the_chunk() -> None:
    rng = torch.Generator().manual_seed(0)
    z_ND, y_N = torch.rand(5000, 4, generator=rng), torch.randint(0, 3, (5000,), generator=rng)
    local = compute_prototypes(z_ND, y_N)
    for c, prototype in zip(local.classes, local.prototypes, strict=True):
        assert prototype == pytest.approx(z_ND[y_N == c].double().mean(0).numpy(), rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("class_mean", [[3, 2], [3, 1], [0, 6]]),
        ("class_divide_by_k", [[2, 1.3333333], [2, 0.6666667], [0, 2]]),
        ("class_weighted_mean", [[2.6666667, 2.3333333], [3, 1], [0, 6]]),
    ],
)
def test_global_prototypes_from_local_ones(rule: str, expected: list[list[float]]) -> None:
    samples = [
        (Z_A, Y_A),
        (torch.tensor([[4.0, 1.0]]), torch.tensor([0])),
        (torch.tensor([[1.0, 2.0], [0.0, 6.0]]), torch.tensor([1, 2])),
    ]
    contributions = []
    for i, (z_ND, y_N) in enumerate(samples):
        local = compute_prototypes(z_ND, y_N)
        arrays = {"classes": local.classes, "prototypes": local.prototypes, "counts": local.counts}
        if rule != "class_weighted_mean":
            del arrays["counts"]
        contributions.append(Contributed(bytes([i]) * 32, 1, arrays))
    aggregate = RULES[rule](contributions, None)
    assert aggregate["classes"].tolist() == [0, 1, 2]
    assert aggregate["prototypes"] == pytest.approx(np.array(expected), rel=1e-6)


@pytest.mark.parametrize(("kind", "expected"), [("l2", 1.8251407), ("sq", 3.5), ("mse", 2.1666667)])
def test_auxiliary_loss_of_client_a(kind: str, expected: float) -> None:
    loss = compute_prototype_loss(Z_A, Y_A, make_target([0, 1, 2], OWNERS), kind)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["l2", "sq", "mse"])
def test_autocast_does_not_round_the_distance(kind: str) -> None:
    z_BD, target = Z_A + 1e-3, make_target([0, 1, 2], OWNERS)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = compute_prototype_loss(z_BD, Y_A, target, kind)
    assert coarse.item() == compute_prototype_loss(z_BD, Y_A, target, kind).item()


@pytest.mark.parametrize("kind", ["l2", "sq", "mse"])
def test_autocast_does_not_round_the_distance_of_many_clients_either(kind: str) -> None:
    """vmap takes products apart in its own way, which autocast sees."""
    target = make_target([0, 1, 2], OWNERS)
    z_NBD = torch.stack([Z_A + 1e-3, Z_A + 0.3])

    def compute(z: Tensor) -> Tensor:
        return compute_prototype_loss(z, Y_A, target, kind)

    with torch.autocast("cpu", torch.bfloat16):
        coarse = torch.func.vmap(compute)(z_NBD)
    assert coarse.dtype == torch.float32
    assert coarse.tolist() == pytest.approx([compute(z_BD).item() for z_BD in z_NBD], rel=1e-6)


def test_classes_without_a_global_prototype_are_left_out_of_the_mean() -> None:
    target = make_target([0, 2], OWNERS[[0, 2]])
    assert compute_prototype_loss(Z_A, Y_A, target).item() == pytest.approx(1.4142136, rel=1e-6)
    assert compute_prototype_loss(Z_A, Y_A, target, "sq").item() == pytest.approx(2.0)
    assert compute_prototype_loss(Z_A, Y_A, target, "mse").item() == pytest.approx(8 / 6)  # divided by all 3 x 2


@pytest.mark.parametrize("kind", ["l2", "sq", "mse"])
def test_loss_is_zero_where_no_class_is_shared(kind: str) -> None:
    z_BD = Z_A.clone().requires_grad_()
    loss = compute_prototype_loss(z_BD, Y_A, make_target([2], OWNERS[2:]), kind)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, z_BD)[0].any()


def test_gradient_is_finite_where_a_prototype_is_met_exactly() -> None:
    z_BD = Z_A.clone().requires_grad_()
    loss = compute_prototype_loss(z_BD, Y_A, make_target([0, 1], [[2, 3], [5, 0]]))
    assert bool(torch.isfinite(torch.autograd.grad(loss, z_BD)[0]).all())


def test_gradient_points_from_the_global_to_the_local_prototype() -> None:
    z_BD = Z_A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compute_prototype_loss(z_BD, Y_A, make_target([0, 1, 2], OWNERS)), z_BD)
    # d/dz of ||mean - P|| / 2 classes: the unit vector, shared between the two samples of class 0
    unit_0, unit_1 = torch.tensor([-1.0, 1.0]) / 2**0.5, torch.tensor([2.0, -1.0]) / 5**0.5
    assert torch.allclose(gradient, torch.stack([unit_0 / 4, unit_0 / 4, unit_1 / 2]))


# ---- the pull relative to other prototypes


def compute_contrast_plainly(
    embeddings: np.ndarray, labels: list[int], held: dict[int, list[float]], tau: float
) -> float:
    """(4') by one sample and one class after the other, in float64."""
    losses = []
    for z, y in zip(embeddings.astype(np.float64), labels, strict=True):
        if y not in held:
            continue
        weights = {a: math.exp(-sum((z - np.array(p)) ** 2) / (2 * tau)) for a, p in held.items()}
        losses.append(-math.log(weights[y] / sum(weights.values())))
    return sum(losses) / len(losses) if losses else 0.0


@pytest.mark.parametrize("tau", [0.5, 2.0])
@pytest.mark.parametrize("held", [{0: [3.0, 2.0], 1: [3.0, 1.0], 2: [0.0, 6.0]}, {0: [3.0, 2.0], 2: [0.0, 6.0]}])
def test_the_contrast_is_a_cross_entropy_over_the_classes_that_are_held(
    tau: float, held: dict[int, list[float]]
) -> None:
    target = make_target(list(held), list(held.values()))
    expected = compute_contrast_plainly(Z_A.numpy(), Y_A.tolist(), held, tau)
    assert compute_prototype_contrast(Z_A, Y_A, target, tau).item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_contrast_with_nobodys_classes_is_nothing_and_has_no_gradient() -> None:
    z_ND = Z_A.clone().requires_grad_()
    for target in (make_target([2], [[0, 6]]), make_target([], np.empty((0, 2)))):
        loss = compute_prototype_contrast(z_ND, Y_A, target, 0.07)
        (gradient,) = torch.autograd.grad(loss, z_ND)
        assert loss.item() == 0
        assert gradient.abs().sum().item() == 0


def test_prototypes_that_lie_together_pull_nobody_by_the_contrast_and_with_full_force_by_eq_4() -> None:
    z_ND = Z_A.clone().requires_grad_()
    together = make_target([0, 1, 2], [[3, 2]] * 3)
    (contrast,) = torch.autograd.grad(compute_prototype_contrast(z_ND, Y_A, together, 0.07), z_ND)
    (pull,) = torch.autograd.grad(compute_prototype_loss(z_ND, Y_A, together), z_ND)
    assert contrast.abs().max().item() < 1e-5
    # Eq. (4): a unit vector for each of two classes, halved by their mean, dealt out over the samples of a class.
    assert pull[2].norm().item() == pytest.approx(0.5)
    assert (pull[0] + pull[1]).norm().item() == pytest.approx(0.5)


def test_normalised_prototypes_have_unit_length_and_those_of_nobody_stay_zero() -> None:
    unit = make_target([0, 2], [[3, 4], [0, 6]]).normalize()
    assert unit.vectors.numpy() == pytest.approx(np.array([[0.6, 0.8], [0, 0], [0, 1]]))
    assert unit.held.tolist() == [1, 0, 1]
