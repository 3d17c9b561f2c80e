"""The local phase: SGD over batches drawn by index from data that already lies on the device (ALGORITHMS §1.5).

A *step* is one mini-batch update, an *epoch* one pass over the local data in random order, its last partial batch kept.
For the small models of a rehearsal a step is mostly overhead, so there is no DataLoader and no optimiser object: all
batches of a phase are drawn beforehand, gradients go straight from autograd into one fused update, and the loss is
read once, at the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ml.errors import MlError, Stopped
from ml.models.base import Model
from ml.specs.base import Hyperparameters

Batches = Sequence[Tensor]
ShouldStop = Callable[[], bool]
ComputeLoss = Callable[[Tensor], Tensor]  # of the indices of a batch


class Diverged(MlError):
    """The loss is no number any more: the learning rate is too high for these data."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a local phase did: the mean of its mini-batch losses, its steps, the seconds it took."""

    loss: float
    steps: int
    seconds: float


class Sgd:
    """Stochastic gradient descent whose momentum starts at zero in each local phase; the arithmetic of torch.optim.SGD
    with a third less overhead per step on a small model (`_foreach` is what it uses itself)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._weights = [parameter.detach() for parameter in self.parameters]
        self._momentum_buffers: list[Tensor] | None = None
        self.lr = lr
        self.momentum = momentum

    def step(self, loss: Tensor) -> None:
        """w <- w - lr * v, v <- momentum * v + grad(loss)  (DFPL's Eq. (7) at momentum 0)."""
        update = list(torch.autograd.grad(loss, self.parameters))
        if self.momentum:
            if self._momentum_buffers is None:
                self._momentum_buffers = [gradient.clone() for gradient in update]
            else:
                torch._foreach_mul_(self._momentum_buffers, self.momentum)
                torch._foreach_add_(self._momentum_buffers, update)
            update = self._momentum_buffers
        torch._foreach_add_(self._weights, update, alpha=-self.lr)


def train(
    model: Model,
    batches: Batches,
    compute_loss: ComputeLoss,
    *,
    lr: float,
    momentum: float,
    should_stop: ShouldStop | None = None,
) -> Progress:
    """One step for each of `batches`, which are indices into whatever `compute_loss` takes its samples from.

    Raises Stopped between two steps once `should_stop()` is true, and Diverged; the model then is somewhere on its way.
    """
    model.train()
    sgd = Sgd(model.parameters(), lr, momentum)
    losses: list[Tensor] = []
    start = time.perf_counter()
    for batch in batches:
        if should_stop is not None and should_stop():
            raise Stopped(f"stopped after {len(losses)} of {len(batches)} steps")
        loss = compute_loss(batch)
        sgd.step(loss)
        losses.append(loss.detach())
    mean = torch.stack(losses).mean().item() if losses else 0.0  # on a GPU this waits for the last step
    if not math.isfinite(mean):
        raise Diverged(f"the mean loss of {len(losses)} steps at lr {lr:g} is {mean}; expected a finite number")
    return Progress(mean, len(losses), time.perf_counter() - start)


def draw_batches(
    num_train: int,
    batch_size: int,
    rng: Generator,
    *,
    iterations: int | None = None,
    epochs: int | None = None,
    device: torch.device | None = None,
) -> Batches:
    """The indices of every mini-batch of a local phase, on the device.

    Each of `iterations` is a fresh draw of min(batch_size, num_train) samples without replacement (DFPL §2.3); each of
    `epochs` cuts a permutation. They come from numpy's generator, and so are the same on every device.
    """
    size = min(batch_size, num_train)
    if iterations is not None:
        sizes = [size] * iterations
        drawn = [rng.choice(num_train, size, replace=False, shuffle=False) for _ in range(iterations)]
    else:
        full, rest = divmod(num_train, size)
        sizes = ([size] * full + [rest] * bool(rest)) * (epochs or 0)
        drawn = [rng.permutation(num_train) for _ in range(epochs or 0)]
    indices: NDArray[np.int64] = np.concatenate(drawn) if drawn else np.empty(0, np.int64)
    return torch.split(torch.from_numpy(indices).to(device), sizes)


def run_local_phase(
    model: Model,
    compute_loss: ComputeLoss,
    hyperparameters: Hyperparameters,
    *,
    num_train: int,
    height: int,
    rng: Generator,
    device: torch.device,
    should_stop: ShouldStop | None = None,
) -> dict[str, float]:
    """The local work that the hyper-parameters set for a round, on batches of `num_train` samples drawn from `rng`.

    Returns its metrics: loss, steps, seconds, and alpha_s, the seconds of one local iteration. Raises as `train`.
    """
    iterations, epochs = hyperparameters.local_iterations, hyperparameters.local_epochs
    if iterations is not None and getattr(hyperparameters, "iteration", "step") == "epoch":
        iterations, epochs = None, iterations
    size = hyperparameters.batch_size
    batches = draw_batches(num_train, size, rng, iterations=iterations, epochs=epochs, device=device)
    progress = train(
        model,
        batches,
        compute_loss,
        lr=hyperparameters.compute_lr(height),
        momentum=hyperparameters.momentum,
        should_stop=should_stop,
    )
    return {
        "loss": progress.loss,
        "steps": progress.steps,
        "seconds": progress.seconds,
        "alpha_s": progress.seconds / (iterations or epochs or 1),
    }


def cross_entropy(model: Model, x: Tensor, y_N: Tensor) -> ComputeLoss:
    """The loss of plain training: mean cross-entropy over a batch of the samples x, y_N."""

    def compute_loss(batch: Tensor) -> Tensor:
        return F.cross_entropy(model(x.index_select(0, batch)), y_N.index_select(0, batch))

    return compute_loss
