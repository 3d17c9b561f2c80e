"""A loop of one's own: FedAvg, whose local training is someone else's class (the spec is `ml.specs.own`).

    class Loop:
        def train(self, model, data, round):
            optimizer = torch.optim.AdamW(model.parameters(), lr=round.lr)
            losses = []
            for x, y in data.batches(round):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                round.on_step()
            return {"loss": sum(losses) / len(losses)}

`train` changes the model in place and returns numbers by name; `loss`, a mean, has to be among them. An instance is
made for each round, and torch's generator is seeded for it, so that training a round again has the same result.

`LightningLoop` is such a class for models that are Lightning modules: it asks them for `configure_optimizers` and
`training_step`, as Lightning's Trainer does, and needs nothing of Lightning itself.
"""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from ml.errors import MlError, Stopped
from ml.methods.base import ClientData, Round, State
from ml.methods.common.sharing import SharesModel
from ml.models.base import Model
from ml.specs.own import LoopSpec
from ml.training.loop import Diverged, Losses, Prepared, Progress, Schedule, Stepping

KEPT_METRICS = ("iterations", "steps", "seconds", "samples", "accuracy", "test_loss", "alpha_s")  # fednode's own


@dataclass(slots=True, eq=False)
class LoopRound:
    """Describes one local phase to a loop. `number` counts the rounds of the run from 1 on; `seed` is this phase's own;
    `lr` and `batch_size` are what the run sets, `num_steps` how many mini-batches its local work has."""

    number: int
    seed: int
    lr: float
    batch_size: int
    num_steps: int
    schedule: Schedule = field(repr=False)
    stepping: Stepping = field(repr=False)
    steps: int = 0

    def on_step(self) -> None:
        """Reports that a step was made, so that the node can show progress or stop the phase. A loop calls it after
        each step. Raises Stopped."""
        self.steps += 1
        if self.stepping.on_step is not None:
            self.stepping.on_step(self.steps, max(self.num_steps, self.steps))
        if self.stepping.should_stop is not None and self.stepping.should_stop():
            raise Stopped(f"stopped after {self.steps} of {self.num_steps} steps")


@dataclass(frozen=True, slots=True, eq=False)
class LoopData:
    """Holds a client's training samples: x [N, C, H, W] float32 and y [N] int64 on one device; there are
    `num_classes`."""

    x: Tensor
    y: Tensor
    num_classes: int

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, round: LoopRound) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: A002 - as `train` calls it
        """Yields the mini-batches of the run's local work, drawn as for every other method of fednode."""
        for rows in round.schedule.batches:
            yield self.x.index_select(0, rows), self.y.index_select(0, rows)


class Loop(Protocol):
    """Trains a model locally with a user's own code."""

    def train(self, model: Model, data: LoopData, round: LoopRound) -> Mapping[str, float]:  # noqa: A002
        """Trains the model in place. Returns numbers by name, `loss` among them."""
        ...


class OwnLoop(SharesModel[LoopSpec]):
    """Trains by a user's loop from the common model on, and takes over the mean of all members' models."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        def instead(stepping: Stepping) -> Progress:
            return self._run(state.model, state.data, round_, schedule, stepping)

        return Prepared(instead=instead)

    def _run(self, model: Model, data: ClientData, round_: Round, schedule: Schedule, stepping: Stepping) -> Progress:
        hyper = self.spec.hyperparameters
        seed = int(round_.rng("loop").integers(1 << 31))
        num_steps = len(schedule.batches)
        lr = hyper.compute_lr(max(round_.number, 1), num_steps)
        told = LoopRound(round_.number, seed, lr, hyper.batch_size, num_steps, schedule, stepping)
        torch.default_generator.manual_seed(seed)  # the phase restores the generator afterwards
        start_s = time.perf_counter()
        model.train()
        try:
            loop: Loop = load_loop(self.spec.loop)()
            metrics = loop.train(model, LoopData(data.train.x, data.train.y, data.num_classes), told)
        except MlError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            raise MlError(f"{self.spec.loop}: {type(error).__name__}: {error}") from error
        for parameter in model.parameters():
            parameter.grad = None
        numbers = read_metrics(self.spec.loop, metrics)
        mean = numbers.pop("loss")
        if not math.isfinite(mean):
            raise Diverged(f"loss not finite in {self.spec.loop}, lr {lr:g}")
        seconds = time.perf_counter() - start_s
        return Progress(Losses(mean, mean, mean), told.steps, seconds, metrics=numbers)


def load_loop(place: str) -> type[Loop]:
    """Loads the class that package.module:Class names. Raises MlError."""
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise MlError(f"importing {place}: {type(error).__name__}: {error}") from error
    if not callable(getattr(found, "train", None)):
        raise MlError(f"expected {place} to be a class with train(model, data, round), got {found!r}")
    loop: type[Loop] = found
    return loop


def read_metrics(place: str, metrics: object) -> dict[str, float]:
    """Returns the numbers that a loop returned as plain floats. Raises MlError."""
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        raise MlError(f"{place}: expected train to return numbers by name, `loss` among them, got {metrics!r}")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if not isinstance(name, str) or isinstance(number, bool) or not isinstance(number, int | float):
            raise MlError(f"{place}: expected train to return numbers by name, got {name!r}: {value!r}")
        if name not in KEPT_METRICS:
            numbers[name] = float(number)
    return numbers


# ---- Lightning


class LightningLoop:
    """Trains a model that is a Lightning module, with optimisers and losses of its own.

    Of Lightning's hooks it calls `configure_optimizers`, `on_train_start`, `training_step`, `on_train_batch_end`,
    `on_train_end`. It takes one optimiser, and one scheduler if that is called each step; no clipping, no callbacks and
    no precision plugin. `self.log` does nothing, as always without a Trainer. The optimiser restarts each round.
    """

    def train(self, model: Any, data: LoopData, round: LoopRound) -> Mapping[str, float]:  # noqa: A002
        for hook in ("configure_optimizers", "training_step"):
            if not callable(getattr(model, hook, None)):
                raise MlError(f"expected {type(model).__name__} to be a Lightning module: it has no {hook}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning warns that there is no Trainer
            return self._train(model, data, round)

    def _train(self, model: Any, data: LoopData, round_: LoopRound) -> Mapping[str, float]:
        optimizer, scheduler = read_optimizers(model.configure_optimizers())
        takes_index = len(inspect.signature(model.training_step).parameters) > 1
        total = torch.zeros((), device=data.x.device)
        _call(model, "on_train_start")
        for i, batch in enumerate(data.batches(round_)):
            step = model.training_step(batch, i) if takes_index else model.training_step(batch)
            loss = step["loss"] if isinstance(step, Mapping) else step
            if not isinstance(loss, Tensor):
                raise MlError(f"{type(model).__name__}.training_step: expected a loss, got {type(loss).__name__}")
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            total += loss.detach()
            _call(model, "on_train_batch_end", step, batch, i)
            round_.on_step()
        _call(model, "on_train_end")
        return {"loss": total.item() / max(round_.steps, 1)}


def read_optimizers(configured: Any) -> tuple[Any, Any]:
    """Returns the one optimiser that `configure_optimizers` returned, and its scheduler by step, if it has one. Raises
    MlError."""
    scheduler: Any = None
    if isinstance(configured, Mapping):
        configured, scheduler = configured.get("optimizer"), configured.get("lr_scheduler")
    elif isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], list):
        schedulers: Iterable[Any] = configured[1]
        configured, scheduler = configured[0], next(iter(schedulers), None)
    if isinstance(configured, list | tuple) and len(configured) == 1:
        configured = configured[0]
    if isinstance(scheduler, Mapping):
        scheduler = scheduler.get("scheduler") if scheduler.get("interval") == "step" else None
    if not callable(getattr(configured, "step", None)) or not callable(getattr(configured, "zero_grad", None)):
        raise MlError(f"configure_optimizers: expected one optimiser, got {configured!r}")
    return configured, scheduler


def _call(model: Any, hook: str, *args: Any) -> None:
    """Calls a hook of Lightning's, if the module has it."""
    found = getattr(model, hook, None)
    if callable(found):
        found(*args)
