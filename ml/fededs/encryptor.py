"""FedEDS's encryptor, and the set that a client makes with it and sends (ALGORITHMS §4.3).

    (3) min over phi of CE(y, f(unet(x; phi); g, c, theta^l))       the classifier and the random layer frozen
    (4) x' = unet(x),  y' = softmax(f(x'; g, c, theta^l))           in eval mode

So x' is an image that makes the frozen classifier answer y through a layer that distorts its features. It is no cipher:
nothing removes x from x', which shows little of x only because that would not help the classifier. `fednode experiment
reconstruct` measures how much of x can be recovered.

Legend: N samples, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ml.errors import Stopped
from ml.fededs.shared_set import decode_images
from ml.fededs.stochastic_layer import classify_through, compute_soft_labels
from ml.models.base import Model
from ml.models.unet import UNet2
from ml.payload import Array
from ml.specs.methods.fededs import MAX_MAGNITUDE, FedEdsHyperparameters
from ml.training.loop import ShouldStop, Stepping, draw_batches, gather_batches, summarise_losses
from ml.training.optimizers import compute_gradients

LEVELS = 255  # steps of a uint8 between the least and the greatest number of a channel


class AdamW:
    """The optimiser of Loshchilov, Hutter, *Decoupled Weight Decay Regularization*, 2019, at beta 0.9 and 0.999; the
    arithmetic of torch.optim.AdamW, without importing half of torch for it."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.01, *, epsilon: float = 1e-8
    ) -> None:
        self.parameters = tuple(parameter for parameter in parameters if parameter.requires_grad)
        self._weights = [parameter.detach() for parameter in self.parameters]
        self._means = [torch.zeros_like(weight) for weight in self._weights]
        self._squares = [torch.zeros_like(weight) for weight in self._weights]
        self.lr = lr
        self.weight_decay = weight_decay
        self.epsilon = epsilon
        self._steps = 0

    def step(self, loss: Tensor) -> None:
        """Computes w <- w - lr * (weight_decay * w + m / (sqrt(v) + epsilon)), m and v the running means of the
        gradient and of its square, corrected for their start at 0."""
        gradients = compute_gradients(loss, self.parameters)
        self._steps += 1
        unbiased_1, unbiased_2 = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        torch._foreach_mul_(self._weights, 1 - self.lr * self.weight_decay)
        torch._foreach_lerp_(self._means, gradients, 1 - 0.9)
        torch._foreach_mul_(self._squares, 0.999)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - 0.999)
        roots = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(roots, math.sqrt(unbiased_2))
        torch._foreach_add_(roots, self.epsilon)
        torch._foreach_addcdiv_(self._weights, self._means, roots, -self.lr / unbiased_1)


# ---- training


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptorSettings:
    """The settings of an encryptor of `width` channels, whose output goes through `out`, and of its training by
    AdamW."""

    width: int
    out: str
    epochs: int
    lr: float
    weight_decay: float
    batch_size: int

    @classmethod
    def from_hyperparameters(cls, hyper: FedEdsHyperparameters) -> Self:
        return cls(
            width=hyper.unet_width,
            out=hyper.unet_out,
            epochs=hyper.encryptor_epochs,
            lr=hyper.encryptor_lr,
            weight_decay=hyper.encryptor_weight_decay,
            batch_size=hyper.batch_size,
        )


def train_encryptor(
    model: Model,
    layer: Tensor | None,
    x: Tensor,
    y: Tensor,
    settings: EncryptorSettings,
    *,
    rng: Generator,
    stepping: Stepping | None = None,
) -> UNet2:
    """Trains an encryptor on the samples x_NCHW of classes y_N, and returns it in eval mode, on their device. `model`
    is in eval mode meanwhile, and restored afterwards.

    `layer` is theta^l on the device. Raises Stopped between two steps, and Diverged.
    """
    stepping = stepping or Stepping()
    unet = _draw_unet(x.shape[1:], settings.width, settings.out, rng).to(x.device)
    if _is_channels_last(x):
        unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs forget it
    batches = draw_batches(len(x), settings.batch_size, rng, epochs=settings.epochs, device=x.device)
    optimiser, losses = AdamW(unet.parameters(), settings.lr, settings.weight_decay), list[Tensor]()
    unet.train()
    with freeze_for_now(model):
        for batch in gather_batches(x, y, {}, batches):
            if stepping.should_stop is not None and stepping.should_stop():
                raise Stopped(f"stopped after {len(losses)} of the encryptor's {len(batches)} steps")
            with stepping.autocast:
                loss = F.cross_entropy(classify_through(model, unet(batch.x), layer), batch.y)  # Eq. (3)
            optimiser.step(loss)
            losses.append(loss.detach())
            if stepping.on_step is not None:
                stepping.on_step(len(losses), len(batches))
    summarise_losses(losses, settings.lr)
    return unet.eval()


def count_encryptor_steps(num_samples: int, batch_size: int, epochs: int) -> int:
    """Returns the number of steps that `train_encryptor` makes."""
    return epochs * -(-num_samples // batch_size)


@contextmanager
def freeze_for_now(model: Model) -> Iterator[None]:
    """Puts the model in eval mode and without gradients of its own within the context, and restores it afterwards."""
    was_training, trained = model.training, [p for p in model.parameters() if p.requires_grad]
    model.eval()
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        model.train(was_training)


def _draw_unet(shape: Sequence[int], width: int, out: str, rng: Generator) -> UNet2:
    """Returns a new network with weights drawn from `rng`; leaves torch's generator unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(1 << 62)))
        return UNet2(shape, width, out)


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


# ---- the set to send


@torch.no_grad()
def encrypt(unet: UNet2, parts: Iterable[Tensor], should_stop: ShouldStop | None = None) -> Iterator[Tensor]:
    """Yields x'_BCHW float32 of each part x_BCHW, within the bounds that validators set. `unet` has to be in eval mode,
    or an image would depend on its batch. Raises Stopped."""
    for part in parts:
        if should_stop is not None and should_stop():
            raise Stopped("stopped while the samples were encrypted")
        encrypted: Tensor = unet(part)
        yield encrypted.clamp_(-MAX_MAGNITUDE, MAX_MAGNITUDE)


def make_encrypted_set(
    model: Model,
    layer: Array | None,
    unet: UNet2,
    x: Tensor,
    rows: NDArray[np.int64],
    *,
    dtype: str,
    batch_size: int,
    should_stop: ShouldStop | None = None,
) -> dict[str, Array]:
    """Returns the payload of these rows of x_NCHW, in their order, Eq. (4): their images by `unet` in `dtype`, soft
    labels of these images by `model` through `layer`, and the layer. The labels are computed from the images after
    rounding, as receivers decode them.

    Images are written to their final place part by part; with uint8 they are made twice, since a channel's range is
    known only after all of them. Raises Stopped.
    """

    def encrypt_all() -> Iterator[Tensor]:
        places = torch.split(torch.from_numpy(rows).to(x.device), batch_size)
        return encrypt(unet, (x.index_select(0, part) for part in places), should_stop)

    images: Array = np.empty((len(rows), *x.shape[1:]), dtype)
    coding = _find_coding(encrypt_all()) if dtype == "uint8" else {}
    scale, offset = (torch.tensor(coding[name], device=x.device) if coding else None for name in ("scale", "offset"))
    theta = None if layer is None else torch.tensor(layer, device=x.device)
    labels: list[Array] = []
    at = 0
    with freeze_for_now(model):
        for part in encrypt_all():
            written = images[at : at + len(part)]
            written[...] = _encode_images(part, scale, offset).cpu().numpy()
            read = decode_images(torch.tensor(written).to(x.device), scale, offset)
            labels.append(compute_soft_labels(model, read, theta).cpu().numpy())
            at += len(part)
    return {"x": images, **coding, "y": np.concatenate(labels), **({} if layer is None else {"layer": layer})}


def _find_coding(parts: Iterable[Tensor]) -> dict[str, Array]:
    """Returns each channel's `offset`, its least number, and `scale`, a step: its range divided into LEVELS."""
    stacked = torch.stack([torch.stack([part.amin((0, 2, 3)), part.amax((0, 2, 3))]) for part in parts]).double()
    low, high = stacked[:, 0].amin(0), stacked[:, 1].amax(0)
    found = {"scale": (high - low) / LEVELS, "offset": low}
    return {name: numbers.float().cpu().numpy() for name, numbers in found.items()}


def _encode_images(x_BCHW: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    """Rounds each number to the nearest step, uint8, where a `scale` is given; a channel with a single value becomes
    0."""
    if scale is None or offset is None:
        return x_BCHW
    least = torch.finfo(torch.float32).tiny
    steps = (x_BCHW - offset.view(1, -1, 1, 1)) / scale.clamp(min=least).view(1, -1, 1, 1)
    return steps.round_().clamp_(0, LEVELS).to(torch.uint8)
