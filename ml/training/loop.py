"""The local phase, one loop for all methods: SGD over batches drawn by index from data that are on the device already
(ALGORITHMS §1.5).

A *step* is one mini-batch update, an *epoch* one pass over the local data in random order, its last partial batch kept
unless `drop_last` is set. For the small models of a rehearsal a step is mostly overhead, so there is no DataLoader and
no optimiser object: all batches of a phase are drawn beforehand and, while they fit, gathered at once; gradients go
straight from autograd into one fused update; the loss is read once, at the end.

A method defines the loss as a function of (model, batch, context) alone. What it needs of earlier models or of the
others it prepares beforehand as tensors (`Prepared`). So the same loss also runs over many clients at once
(`ml.clients.batched`).

What is multiplied is in memory that torch allocated: arrays are copied, mostly by `torch.tensor`. The last bits of a
matrix product depend on the addresses of its factors. Torch's memory is aligned to 64 bytes in every process, while
numpy's is aligned to 16, and an array that was decoded in place to any 4. So on one kind of processor, with one thread,
the same arrays have the same results to the bit, wherever they came from.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ml.data.augment import augment
from ml.errors import MlError, Stopped
from ml.models.base import Model
from ml.payload import Arrays
from ml.secret_stream import SecretStream
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.privacy import count_private_steps
from ml.training.graphs import Step, on_device, own_stream
from ml.training.optimizers import OnGradients, Sgd
from ml.training.private import PrivateStep, StepPrivacy

Tensors = Mapping[str, Tensor]
Batches = Sequence[Tensor]
ShouldStop = Callable[[], bool]  # may raise Abandoned instead
OnStep = Callable[[int, int], None]  # (steps done, steps in all)
Autocast = AbstractContextManager[Any]  # the context of a forward pass in training

MAX_GATHERED_BYTES = 64 << 20
BF16_WEIGHTS = 1_000_000  # a model with fewer loses more time by casting than bf16 saves


class Diverged(MlError):
    """The loss is not finite any more, or others would refuse the trained model: the learning rate is too high for
    these data, or the model that training began from is spoiled."""


@dataclass(frozen=True, slots=True, eq=False)
class Stepping:
    """Sets what happens around steps: a forward pass runs in `autocast`, `should_stop` is called before each step, and
    `on_step` after each. With `can_replay` a GPU may record a step and replay it."""

    autocast: Autocast = field(default_factory=contextlib.nullcontext)
    should_stop: ShouldStop | None = None
    on_step: OnStep | None = None
    can_replay: bool = False

    def after(self, made: int, more: int) -> Stepping:
        """Returns the same settings for `more` steps that come after those `made`."""
        on_step = self.on_step
        if on_step is None:
            return self
        return replace(self, on_step=lambda done, _: on_step(made + done, made + more))


Then = Callable[[Stepping], Mapping[str, Arrays]]
Instead = Callable[[Stepping], "Progress"]
Beside = Callable[[Autocast], Step]
Before = Callable[[], Mapping[str, Arrays]]


class Batch(NamedTuple):
    """Holds x_BCHW and y_B of one step, and their rows of what a method prepared for each sample."""

    x: Tensor
    y: Tensor
    extra: Tensors = {}  # noqa: RUF012 - never written


ComputeLoss = Callable[[Model, Batch, Tensors], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class ByStep:
    """Holds tensors that come with each batch and are not rows of the client's samples. `gather(max_bytes)` makes them
    step by step, so much at once. Phases of one `layout` have the same names and shapes at each step."""

    layout: Hashable
    gather: Callable[[int], Iterator[Tensors]]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Holds the inputs of a method's loss in a round besides the batch: `context`, the same at every step, `by_sample`,
    whose rows belong to the client's samples and come with each batch, and `by_step`, other tensors that come with each
    batch.

    `on_gradients` sees each step's gradients and may change them before they are used. `then` trains more after the
    steps, in `then_steps` of its own; it returns payloads beside those of `finish`. A client with either trains alone.
    `before` makes payloads from the model as the phase begins. `instead` makes the phase's steps in place of this
    module's loop. `optimizer` replaces the one that the hyper-parameters set. `beside` makes a step of another model,
    with each batch before the phase's own step; a client with one of these two trains alone, too. `metrics` are added
    to the phase's.
    """

    context: Tensors = field(default_factory=dict)
    by_sample: Tensors = field(default_factory=dict)
    on_gradients: OnGradients | None = None
    by_step: ByStep | None = None
    before: Before | None = None
    then: Then | None = None
    then_steps: int = 0
    instead: Instead | None = None
    optimizer: Sgd | None = None
    beside: Beside | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Losses(NamedTuple):
    """Holds the mean loss of a phase's steps, that of its first quarter and that of its last, and the standard error of
    the difference of these two; 0 for a phase without steps."""

    mean: float
    first: float
    last: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds the outcome of a local phase's steps: their losses, their number, the seconds they took, and the payloads
    that `then` made, whose steps and seconds count too. `metrics` are those measured by a loop that ran `instead`."""

    losses: Losses
    steps: int
    seconds: float
    payloads: Mapping[str, Arrays] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """Sets how a site trains, whatever the method: a choice of speed, not of mathematics.

    `precision` bf16 runs the forward pass under autocast (weights, losses and prototypes stay float32); auto does so if
    the GPU supports it and the model is large enough to gain by it. `channels_last` lays images out for convolutions,
    `compiled` passes the loss to torch.compile, `deterministic` makes torch refuse kernels whose results vary. `graphs`
    lets a GPU record a step and replay it. `augment` changes samples as they are drawn.
    """

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    channels_last: bool = False
    compiled: bool = False
    deterministic: bool = False
    graphs: bool = True
    augment: Literal["none", "flip", "crop", "flip_crop"] = "none"

    def get_precision(self, device: torch.device, model: Model) -> Literal["fp32", "bf16"]:
        """Returns the precision of a forward pass in training on `device`."""
        if self.precision != "auto":
            return self.precision
        if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
            return "fp32"
        return "bf16" if sum(weight.numel() for weight in model.parameters()) >= BF16_WEIGHTS else "fp32"

    def autocast(self, device: torch.device, model: Model) -> Autocast:
        """Returns the context in which a forward pass in training runs."""
        use = self.get_precision(device, model) == "bf16"
        return torch.autocast(device.type, torch.bfloat16) if use else contextlib.nullcontext()

    @property
    def can_replay(self) -> bool:
        """Says whether a step may be recorded here; steps under torch.compile may not, since it replays them by
        itself."""
        return self.graphs and not self.compiled

    def lay_out(self, model: Model) -> Model:
        """Returns the model in the memory layout of this engine, and sets torch up for it."""
        if self.deterministic:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs forget it
        return model

    def lay_out_samples(self, x_NCHW: Tensor) -> Tensor:
        return x_NCHW.contiguous(memory_format=torch.channels_last) if self.channels_last else x_NCHW


def train(
    model: Model,
    batches: Iterable[Batch],
    compute_loss: ComputeLoss,
    context: Tensors,
    sgd: Sgd,
    *,
    num_steps: int,
    stepping: Stepping | None = None,
    privacy: StepPrivacy | None = None,
) -> Progress:
    """Makes one step for each of `batches`, of the `num_steps` that a phase has; with `privacy` each step hides every
    sample.

    Raises Stopped between two steps once `should_stop()` is true, and Diverged; the model is then partly trained.
    """
    model.train()
    stepping = stepping or Stepping()
    device = next(model.parameters()).device
    step = make_step(model, compute_loss, context, sgd, stepping.autocast, privacy)
    can_replay = stepping.can_replay and sgd.is_steady and privacy is None
    step = on_device(step, device, num_steps, can_replay=can_replay)
    losses: list[Tensor] = []
    start = time.perf_counter()
    with own_stream(device):
        for batch in batches:
            if stepping.should_stop is not None and stepping.should_stop():
                raise Stopped(f"stopped after {len(losses)} of {num_steps} steps")
            losses.append(step(batch))
            if stepping.on_step is not None:
                stepping.on_step(len(losses), num_steps)
        summary = summarise_losses(losses, sgd.lr)
    return Progress(summary, len(losses), time.perf_counter() - start)


def make_step(
    model: Model,
    compute_loss: ComputeLoss,
    context: Tensors,
    sgd: Sgd,
    autocast: Autocast,
    privacy: StepPrivacy | None = None,
) -> Step:
    """Returns the function that makes a step along the loss of a batch, and returns the loss."""
    if privacy is not None:
        return PrivateStep(model, compute_loss, context, sgd, privacy, autocast)

    def step(batch: Batch) -> Tensor:
        with autocast:
            loss = compute_loss(model, batch, context)
        sgd.step(loss)
        return loss.detach()

    return step


def summarise_losses(losses: Sequence[Tensor], lr: float) -> Losses:
    """Summarises the losses of a phase's steps; on a GPU this waits for the last one. Raises Diverged."""
    if not losses:
        return Losses(0.0, 0.0, 0.0)
    losses_S = torch.stack(list(losses))
    quarter = max(1, len(losses) // 4)
    ends = torch.stack((losses_S[:quarter], losses_S[-quarter:]))
    spread = ends.var(dim=1, correction=min(1, quarter - 1)).sum() / quarter
    summary = Losses(*torch.stack((losses_S.mean(), *ends.mean(dim=1), spread.sqrt())).tolist())
    if not math.isfinite(summary.mean):
        wrong = torch.nonzero(~torch.isfinite(losses_S))
        where = f"at step {int(wrong[0]) + 1}" if len(wrong) else "in the mean"
        raise Diverged(f"loss not finite {where} of {len(losses)}, lr {lr:g}")
    return summary


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Holds the local work of one phase: the samples of every step, as indices on the device, and how many iterations
    (or epochs) that is."""

    batches: Batches
    num_iterations: int

    @classmethod
    def draw(
        cls,
        hyperparameters: Hyperparameters,
        y_N: Tensor,
        rng: Generator,
        num_iterations: int | None = None,
        *,
        least: int = 1,
    ) -> Schedule:
        """Draws the batches of a local phase on samples of these classes, as many as the hyper-parameters set, or
        `num_iterations`, each of at least `least` samples."""
        count = hyperparameters.local_work if num_iterations is None else num_iterations
        work = {"epochs": count} if hyperparameters.counts_epochs else {"iterations": count}
        batches = draw_batches(
            len(y_N),
            hyperparameters.batch_size,
            rng,
            **work,
            drop_last=hyperparameters.drop_last,
            device=y_N.device,
            chances_N=compute_chances(y_N) if hyperparameters.sampling == "balanced" else None,
            least=least,
        )
        return cls(batches, count)

    @classmethod
    def draw_by_chance(
        cls, hyperparameters: Hyperparameters, y_N: Tensor, stream: SecretStream, num_iterations: int | None = None
    ) -> Schedule:
        """Draws a schedule for training that hides samples: each step draws each sample by chance, so that a batch may
        have any size, and nobody knows which samples it has."""
        count = hyperparameters.local_work if num_iterations is None else num_iterations
        num_steps, size = count_private_steps(hyperparameters, len(y_N), count)
        return cls(draw_by_chance(len(y_N), size, stream, num_steps, y_N.device), count)

    @property
    def drawn(self) -> Tensor:
        """The samples that occur, each once, sorted."""
        drawn: Tensor = torch.unique(torch.cat(tuple(self.batches))) if self.batches else torch.empty(0).long()
        return drawn


def draw_batches(
    num_train: int,
    batch_size: int,
    rng: Generator,
    *,
    iterations: int | None = None,
    epochs: int | None = None,
    drop_last: bool = False,
    device: torch.device | None = None,
    chances_N: NDArray[np.float64] | None = None,
    least: int = 1,
) -> Batches:
    """Draws the indices of every mini-batch of a local phase, on the device.

    Each of `iterations` is a fresh draw of min(batch_size, num_train) samples without replacement (DFPL §2.3). Each of
    `epochs` cuts a permutation; a last batch of fewer than `least` samples joins the one before. The indices come from
    numpy's generator, and so are the same on every device. With `chances_N` each sample is drawn with its own chance,
    and may be drawn again.
    """
    size = min(batch_size, num_train)
    if iterations is not None:
        sizes = [size] * iterations
        drawn = [rng.choice(num_train, size, replace=False, shuffle=False) for _ in range(iterations)]
    else:
        full, rest = divmod(num_train, size)
        rest = 0 if drop_last else rest
        cut = [size] * full + [rest] * bool(rest)
        if full and 0 < rest < least:
            cut[-2:] = [size + rest]
        sizes = cut * (epochs or 0)
        drawn = [rng.permutation(num_train)[: full * size + rest] for _ in range(epochs or 0)]
    if chances_N is not None:
        drawn = [rng.choice(num_train, sum(sizes), p=chances_N)]
    indices: NDArray[np.int64] = np.concatenate(drawn) if drawn else np.empty(0, np.int64)
    return torch.split(torch.from_numpy(indices).to(device), sizes)


def draw_by_chance(num_train: int, size: int, stream: SecretStream, num_steps: int, device: torch.device) -> Batches:
    """Draws the indices of each step, `size` on average: every sample with the same chance, independently of others."""
    drawn = [np.flatnonzero(stream.random(num_train) < size / num_train) for _ in range(num_steps)]
    indices: NDArray[np.int64] = np.concatenate(drawn) if drawn else np.empty(0, np.int64)
    return torch.split(torch.from_numpy(indices).to(device), list(map(len, drawn)))


def compute_chances(y_N: Tensor) -> NDArray[np.float64]:
    """Computes the chance of each sample, so that all classes that occur are drawn equally often."""
    _, at_N, counts = np.unique(y_N.cpu().numpy(), return_inverse=True, return_counts=True)
    return 1.0 / (len(counts) * counts[at_N])


def gather_batches(
    x: Tensor, y_N: Tensor, by_sample: Tensors, batches: Batches, max_bytes: int = MAX_GATHERED_BYTES
) -> Iterator[Batch]:
    """Yields the samples x, y_N and the rows of `by_sample` at each of `batches`: copied at once, or one batch after
    the other if that takes more than `max_bytes`."""
    sample_bytes = sum(t[:1].numel() * t.element_size() for t in (x, *by_sample.values()))
    if sum(map(len, batches)) * sample_bytes > max_bytes:
        for indices in batches:
            extra = {name: rows.index_select(0, indices) for name, rows in by_sample.items()}
            yield Batch(x.index_select(0, indices), y_N.index_select(0, indices), extra)
    elif batches:
        everything, sizes = torch.cat(tuple(batches)), [len(indices) for indices in batches]
        parts = {name: torch.split(rows.index_select(0, everything), sizes) for name, rows in by_sample.items()}
        x_parts = torch.split(x.index_select(0, everything), sizes)
        y_parts = torch.split(y_N.index_select(0, everything), sizes)
        for step in range(len(sizes)):
            yield Batch(x_parts[step], y_parts[step], {name: rows[step] for name, rows in parts.items()})


def add_by_step(batches: Iterable[Batch], by_step: Iterable[Tensors]) -> Iterator[Batch]:
    """Yields each batch with its step's tensors added."""
    for batch, tensors in zip(batches, by_step, strict=True):
        yield batch._replace(extra={**batch.extra, **tensors})


def step_beside(batches: Iterable[Batch], step: Step) -> Iterator[Batch]:
    """Yields each batch after `step` has been made with it."""
    for batch in batches:
        step(batch)
        yield batch


def augment_batches(batches: Iterable[Batch], kind: str, generator: torch.Generator) -> Iterator[Batch]:
    """Yields each batch with its images changed at random. What was prepared by sample stays that of the unchanged
    image."""
    for batch in batches:
        yield batch._replace(x=augment(batch.x, kind, generator))


@lru_cache(maxsize=8)
def compile_loss(compute_loss: ComputeLoss) -> ComputeLoss:
    """Returns the same loss through torch.compile, which takes its first steps to trace it."""
    compiled: ComputeLoss = torch.compile(compute_loss)
    return compiled


def compute_cross_entropy(model: Model, batch: Batch, context: Tensors) -> Tensor:
    """Computes the loss of plain training: the mean over the batch of the model's criterion, cross-entropy unless a run
    sets another."""
    return model.criterion(model(batch.x), batch.y)
