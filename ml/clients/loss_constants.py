"""The constants of `ml.bounds.fedproto`, measured on a client's own samples with its own model.

The model is trained by cross-entropy for some steps, and measured before, between and after them. The greatest value of
each constant counts, for a bound has to hold at every step. The loss that pulls towards prototypes is left out, for
there are none yet. At each step, on some of the samples, with the model in eval mode:

    L1      the largest curvature: of the Hessian's eigenvalues the one of greatest size, by power iteration
    L2      the largest singular value of the Jacobian of a class's mean embedding along the weights, over the classes
    sigma   the root of the mean square distance of mini-batch gradients from that of all
    G       the mean length of mini-batch gradients

They hold at these steps alone: elsewhere the loss may bend more. Weights that are frozen do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ml.bounds.fedproto import Constants
from ml.models import Model
from ml.models.base import copy_model

MAX_SAMPLES = 1024  # for curvature and Jacobian
PLACES = 4
STEPS_BETWEEN = 20
MINI_BATCHES = 16
ITERATIONS = 20  # of a power iteration, which approaches the largest from below


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds the constants, and the squared length of the gradient of all samples before each step and after the
    last."""

    constants: Constants
    squares: tuple[float, ...]


def measure_constants(model: Model, x: Tensor, y: Tensor, *, lr: float, batch_size: int, seed: int) -> Measured:
    """Measures the constants on a copy of the model; x and y are as the model is trained on them. Raises BoundError if
    a constant is not finite."""
    model, rng = copy_model(model).eval(), torch.Generator().manual_seed(seed)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    chosen = torch.randperm(len(y), generator=rng)[:MAX_SAMPLES].to(y.device)
    x, y = x[chosen], y[chosen]

    def draw() -> Tensor:
        return torch.randperm(len(y), generator=rng)[:batch_size].to(y.device)

    def compute_loss(rows: Tensor | None = None) -> Tensor:
        return model.criterion(model(x if rows is None else x[rows]), y if rows is None else y[rows])

    def embed_class(c: int) -> Tensor:
        return model.embed(x[y == c]).mean(0)

    classes = torch.unique(y).tolist()
    found: list[tuple[float, float, float, float]] = []
    squares = []
    for step in range((PLACES - 1) * STEPS_BETWEEN + 1):
        if step:
            for weight, slope in zip(weights, torch.autograd.grad(compute_loss(draw()), weights), strict=True):
                weight.data -= lr * slope
        whole = _flatten(torch.autograd.grad(compute_loss(), weights))
        squares.append(whole.square().sum().item())
        if step % STEPS_BETWEEN:
            continue
        batches = [_flatten(torch.autograd.grad(compute_loss(draw()), weights)) for _ in range(MINI_BATCHES)]
        spread = torch.stack([(batch - whole).square().sum() for batch in batches]).mean().sqrt()
        length = torch.stack([batch.norm() for batch in batches]).mean()
        curvature = compute_curvature(compute_loss, weights, rng)
        slopes_of_embedding = [compute_jacobian_norm(partial(embed_class, c), weights, rng) for c in classes]
        found.append((curvature, float(np.max(slopes_of_embedding)), spread.item(), length.item()))
    return Measured(Constants(*np.max(found, axis=0).tolist()), tuple(squares))  # NaN stays NaN


def compute_curvature(compute_loss: Callable[[], Tensor], weights: Sequence[Tensor], rng: torch.Generator) -> float:
    """Computes the greatest absolute eigenvalue of the loss's Hessian."""
    slopes = torch.autograd.grad(compute_loss(), weights, create_graph=True)
    flat = _flatten(slopes)
    v = _draw_direction(flat, rng)
    size = 0.0
    for _ in range(ITERATIONS):
        bent = _flatten(torch.autograd.grad(flat @ v, weights, retain_graph=True, materialize_grads=True))
        size = bent.norm().item()
        if not size:
            break
        v = bent / size
    return size


def compute_jacobian_norm(compute: Callable[[], Tensor], weights: Sequence[Tensor], rng: torch.Generator) -> float:
    """Computes the largest singular value of the Jacobian of a vector that `compute` returns."""
    z_D = compute()
    u_D = torch.zeros_like(z_D).requires_grad_()
    along = torch.autograd.grad(z_D, weights, u_D, create_graph=True, materialize_grads=True)  # J^T u, linear in u
    flat = _flatten(along)
    u, size = _draw_direction(z_D, rng), 0.0
    for _ in range(ITERATIONS):
        back = _flatten(torch.autograd.grad(z_D, weights, u, retain_graph=True, materialize_grads=True))
        (there,) = torch.autograd.grad(flat, u_D, back.detach(), retain_graph=True)  # J J^T u
        size = back.norm().item()
        length = there.norm()
        if not length:
            break
        u = there / length
    return size


def _draw_direction(like: Tensor, rng: torch.Generator) -> Tensor:
    v = torch.randn(like.shape, generator=rng).to(like)
    direction: Tensor = v / v.norm()
    return direction


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
