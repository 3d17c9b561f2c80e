"""Optimisers of a local phase, whose memory begins empty in each: SGD with momentum, Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

import torch
from torch import Tensor

from ml.specs.hyperparameters import Hyperparameters

OnGradients = Callable[[Sequence[Tensor]], Sequence[Tensor]]  # gradients of the parameters, in the model's order

BETAS, EPSILON = (0.9, 0.999), 1e-8  # Kingma and Ba (2015), algorithm 1


class Sgd:
    """Stochastic gradient descent whose momentum starts at zero in each local phase. It does the arithmetic of
    torch.optim.SGD with a third less overhead per step on a small model (`_foreach` is what that uses itself)."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        decay: float = 1.0,
        on_gradients: OnGradients | None = None,
    ) -> None:
        self.parameters = tuple(parameter for parameter in parameters if parameter.requires_grad)
        self._weights = [parameter.detach() for parameter in self.parameters]
        self._momentum_buffers: list[Tensor] | None = None
        self.lr = lr  # of the first step
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.decay = decay
        self.on_gradients = on_gradients
        self._lr = lr

    @property
    def is_plain(self) -> bool:
        """Says whether `update` is elementwise and the same for all, so that many clients' updates may be done as
        one."""
        return self.on_gradients is None

    @property
    def is_steady(self) -> bool:
        """Says whether each step after the first does the same to the same tensors."""
        return self.is_plain and self.decay == 1.0

    def step(self, loss: Tensor) -> None:
        """Makes a step: w <- w - lr * v, v <- momentum * v + grad(loss) + weight_decay * w  (DFPL's Eq. (7) at momentum
        and decay 0), where `on_gradients` may change grad(loss).

        Raises RuntimeError if the loss does not depend on some parameter.
        """
        gradients: Sequence[Tensor] = compute_gradients(loss, self.parameters)
        if self.on_gradients is not None:
            with torch.no_grad():
                gradients = self.on_gradients(gradients)
        self.update(gradients)

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Makes one step along `gradients`, which belong to `parameters` in their order; the next step's lr is `decay`
        times this one's."""
        update = list(gradients)
        if self.weight_decay:
            update = list(torch._foreach_add(update, self._weights, alpha=self.weight_decay))
        if self.momentum:
            if self._momentum_buffers is None:
                self._momentum_buffers = [gradient.clone() for gradient in update]
            else:
                torch._foreach_mul_(self._momentum_buffers, self.momentum)
                torch._foreach_add_(self._momentum_buffers, update)
            update = self._momentum_buffers
        self._go(update)

    def _go(self, update: list[Tensor] | tuple[Tensor, ...]) -> None:
        torch._foreach_add_(self._weights, update, alpha=-self._lr)
        self._lr *= self.decay


class Adam(Sgd):
    """Adam (Kingma and Ba 2015, algorithm 1), whose moments start at zero in each local phase. Weight decay is added to
    the gradient, or if it is `decoupled` subtracted from the weights (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        decay: float = 1.0,
        on_gradients: OnGradients | None = None,
        *,
        decoupled: bool = False,
    ) -> None:
        super().__init__(parameters, lr, 0.0, weight_decay, decay, on_gradients)
        self._decoupled = decoupled
        self._first = [torch.zeros_like(weight) for weight in self._weights]
        self._second = [torch.zeros_like(weight) for weight in self._weights]
        self._count = 0

    @property
    def is_plain(self) -> bool:
        return False

    def update(self, gradients: Sequence[Tensor]) -> None:
        seen = list(gradients)
        if self.weight_decay and self._decoupled:
            torch._foreach_mul_(self._weights, 1 - self._lr * self.weight_decay)
        elif self.weight_decay:
            seen = list(torch._foreach_add(seen, self._weights, alpha=self.weight_decay))
        self._count += 1
        beta1, beta2 = BETAS
        torch._foreach_lerp_(self._first, seen, 1 - beta1)
        torch._foreach_mul_(self._second, beta2)
        torch._foreach_addcmul_(self._second, seen, seen, 1 - beta2)
        roots = torch._foreach_sqrt(self._second)
        torch._foreach_div_(roots, (1 - beta2**self._count) ** 0.5)
        torch._foreach_add_(roots, EPSILON)
        self._go(torch._foreach_div(torch._foreach_div(self._first, roots), 1 - beta1**self._count))


class InTurn(Sgd):
    """Uses several optimisers in one phase, each with some of the parameters, one after another: each for so many
    steps."""

    def __init__(self, turns: Sequence[tuple[Sgd, int]]) -> None:
        super().__init__((), turns[0][0].lr)
        self._order = chain.from_iterable(repeat(optimizer, num_steps) for optimizer, num_steps in turns)

    @property
    def is_plain(self) -> bool:
        return False

    def step(self, loss: Tensor) -> None:
        next(self._order).step(loss)


def make_optimizer(
    hyper: Hyperparameters, parameters: Iterable[Tensor], lr: float, on_gradients: OnGradients | None
) -> Sgd:
    """Makes the optimiser of a local phase that begins at `lr`. Gradients are clipped before a method sees them."""
    hook = on_gradients if hyper.clip_norm is None else clip_before(on_gradients, hyper.clip_norm)
    if hyper.optimizer in ("adam", "adamw"):
        decoupled = hyper.optimizer == "adamw"
        return Adam(parameters, lr, hyper.weight_decay, hyper.decay_by_step, hook, decoupled=decoupled)
    return Sgd(parameters, lr, hyper.momentum, hyper.weight_decay, hyper.decay_by_step, hook)


def clip_before(on_gradients: OnGradients | None, max_norm: float) -> OnGradients:
    """Returns a function that clips gradients and then passes them to the method's `on_gradients`, if it has one."""

    def clip(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        clipped = clip_gradients(gradients, max_norm)
        return clipped if on_gradients is None else on_gradients(clipped)

    return clip


def clip_gradients(gradients: Sequence[Tensor], max_norm: float) -> tuple[Tensor, ...]:
    """Returns the gradients, scaled down together if their norm is above `max_norm`, as torch's clip_grad_norm_
    does."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
    return torch._foreach_mul(list(gradients), (max_norm / (norm + 1e-6)).clamp(max=1.0))


def compute_gradients(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Computes gradients as torch.autograd.grad does, without its checks of arguments: with the digits' MLP they take a
    fifth of a step.

    Raises RuntimeError if the loss does not depend on some parameter.
    """
    engine = torch.autograd.Variable._execution_engine
    gradients: tuple[Tensor, ...] = engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, parameters, False, accumulate_grad=False
    )  # the two before `parameters`: keep the graph, differentiate it too; the one after: let some be unreachable
    return gradients
