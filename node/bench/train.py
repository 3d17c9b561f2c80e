"""`fednode bench train`: the training engine against a plain PyTorch loop over a DataLoader, both in one run.

The same model, digits scaled to what it takes, the same batch size, learning rate, device and number of threads. The
plain loop is the kind one of a careful script: tensors in memory, workers that are up before the clock starts and stay
up over epochs, no loss read before the end. What is timed of the engine is a whole local phase, drawing included.
Repetitions alternate, and a ratio is that of two neighbours: machines are noisy.

Of a model with a frozen encoder two phases of the engine are compared: on features that were computed once, as clients
hold them, and on the images, with the encoder run in each step. The pass that computes the features is timed besides.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from ml.clients.build import Compute, Federation, get_device, make_client, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.feature_cache import precompute
from ml.data import get_classes, load_dataset
from ml.methods.base import Samples
from ml.models import build_model
from ml.models.base import Model
from ml.simulation.run import use_threads
from ml.specs.architectures import complete_model
from node.bench.figures import Report
from node.errors import ConfigError
from node.experiments.measured import describe_spread, describe_torch, read_clock
from node.host.machine import get_machine

BATCH_SIZE = 32
LR = 0.01
SEED = 1
WARM_UP = 3  # steps before the clock starts: workers, caches, first use
NUM_WORKERS = (0, 2)
DATA = {"format": "digits"}


@dataclass(frozen=True, slots=True)
class Job:
    """A model, the (channels, height, width) that digits are scaled to for it, and the steps of one repetition."""

    name: str
    input_shape: tuple[int, int, int]
    steps: int

    @property
    def model(self) -> dict[str, Any]:
        return complete_model({"name": self.name})

    @property
    def input(self) -> dict[str, Any]:
        channels, *size = self.input_shape
        return {"shape": list(self.input_shape), "resize": size, "mean": [0.0] * channels, "std": [1.0] * channels}


JOBS = (
    Job("mlp", (1, 8, 8), 400),
    Job("cnn_mnist", (1, 28, 28), 80),
    Job("cnn_cifar", (3, 32, 32), 40),
    Job("resnet18", (3, 32, 32), 4),
)
FROZEN_JOBS = (Job("head_256", (3, 32, 32), 20),)


def run_train_bench(
    models: Sequence[str],
    *,
    steps: int | None,
    repeats: int,
    device: str,
    threads: int,
    engine: Mapping[str, Any],
    report: Report,
) -> dict[str, Any]:
    """Measures samples per second of each model, and the ratio of the engine to the plain loop; for models with a
    frozen encoder, under "frozen", also the ratio of training on features to training on images. `steps` is each job's
    own unless given. Raises ConfigError, or MlError for a device that is missing."""
    place = get_device(device)
    jobs = [_get_job(name) for name in models]
    figures: dict[str, Any] = {
        "machine": {**get_machine(), **describe_torch(place, threads)},
        "batch_size": BATCH_SIZE,
        "engine": dict(engine),
        "models": {},
        "frozen": {},
    }
    with use_threads(threads):
        for job in jobs:
            report(f"{job.name} on {'x'.join(map(str, job.input_shape))}")
            kind, measure = ("frozen", _measure_frozen) if job in FROZEN_JOBS else ("models", _measure)
            figures[kind][job.name] = measure(job, steps or job.steps, repeats, place, engine)
    return figures


def _get_job(name: str) -> Job:
    jobs = {job.name: job for job in (*JOBS, *FROZEN_JOBS)}
    if name not in jobs:
        raise ConfigError(f"--models: expected some of {', '.join(jobs)} (got {name!r})")
    return jobs[name]


def _measure(job: Job, steps: int, repeats: int, device: torch.device, engine: Mapping[str, Any]) -> dict[str, Any]:
    client = _make_client(job, device, engine)
    plain = _make_plain_model(job, client, device)
    samples = TensorDataset(client.state.data.train.x.cpu().contiguous(), client.state.data.train.y.cpu())
    speeds: dict[str, list[float]] = {"engine": [], **{f"loader_{num}": [] for num in NUM_WORKERS}}
    for repeat in range(repeats):
        speeds["engine"].append(_time_engine(client, steps, 1 + repeat))
        for num in NUM_WORKERS:
            speeds[f"loader_{num}"].append(_time_loader(plain, samples, num, steps, device))
    ratios = {name: _divide(speeds["engine"], speeds[name]) for name in speeds if name != "engine"}
    return {
        "input_shape": list(job.input_shape),
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "steps": steps,
        "samples_per_s": {name: describe_spread(values) for name, values in speeds.items()},
        "ratio": {name: describe_spread(values) for name, values in ratios.items()},
    }


def _measure_frozen(
    job: Job, steps: int, repeats: int, device: torch.device, engine: Mapping[str, Any]
) -> dict[str, Any]:
    client = _make_client(job, device, engine)
    model, on_features = client.state.model, client.state.data
    images = torch.from_numpy(load_dataset(DATA, job.input)[0].x).to(device)
    images = client.engine.lay_out_samples(images)
    on_images = replace(on_features, train=Samples(images, on_features.train.y))
    speeds: dict[str, list[float]] = {"features": [], "images": []}
    pass_s: list[float] = []
    for repeat in range(repeats):
        for name, data in (("features", on_features), ("images", on_images)):
            client.state.data = data
            speeds[name].append(_time_engine(client, steps, 1 + repeat))
        start = read_clock(device)
        precompute(model, images, client.engine)
        pass_s.append(read_clock(device) - start)
    saved_s = [len(images) * (1 / slow - 1 / fast) for fast, slow in zip(*speeds.values(), strict=True)]
    return {
        "input_shape": list(job.input_shape),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trained": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "steps": steps,
        "samples": len(images),
        "samples_per_s": {name: describe_spread(values) for name, values in speeds.items()},
        "ratio": describe_spread(_divide(speeds["features"], speeds["images"])),
        "pass_s": describe_spread(pass_s),
        "paid_after_epochs": describe_spread(_divide(pass_s, saved_s)),
    }


def _divide(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [own / other for own, other in zip(ours, theirs, strict=True)]


def _make_client(job: Job, device: torch.device, engine: Mapping[str, Any]) -> Client:
    classes = get_classes(DATA)
    method = {"name": "local", "batch_size": BATCH_SIZE, "lr": LR}
    return make_client(
        Federation(method=method, model=job.model, classes=classes, input=job.input),
        data=DATA,
        seed=SEED,
        initial=make_initial_aggregate(job.model, job.input_shape, len(classes), SEED),
        compute=Compute(str(device), engine),
    )


def _make_plain_model(job: Job, client: Client, device: torch.device) -> Model:
    """Makes a model of the same weights in the default memory layout."""
    model = build_model(job.model, job.input_shape, client.state.data.num_classes)
    model.load_state_dict(client.state.model.state_dict())
    return model.to(device)


def _time_engine(client: Client, steps: int, height: int) -> float:
    """Measures the samples per second of a local phase of `steps` steps."""
    client.run(client.begin(height, bytes(32), WARM_UP))
    start = read_clock(client.device)
    phase = client.begin(height, bytes(32), steps)
    client.run(phase)
    seconds = read_clock(client.device) - start
    return sum(map(len, phase.schedule.batches)) / seconds


def _time_loader(model: Model, samples: TensorDataset, num_workers: int, steps: int, device: torch.device) -> float:
    """Measures the samples per second of `steps` steps of the plain loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    with _open_loader(samples, num_workers, device) as batches:
        _step_through(model, optimizer, islice(batches, WARM_UP), device)
        start = read_clock(device)
        num_samples = _step_through(model, optimizer, islice(batches, steps), device)
        return num_samples / (read_clock(device) - start)


def _step_through(
    model: Model, optimizer: torch.optim.Optimizer, batches: Iterator[Sequence[Tensor]], device: torch.device
) -> int:
    """Trains by the loop of the tutorials. Returns how many samples it saw."""
    num_samples, total = 0, torch.zeros((), device=device)
    for x, y in batches:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
        optimizer.step()
        total += loss.detach()
        num_samples += len(y)
    total.item()
    return num_samples


@contextmanager
def _open_loader(
    samples: TensorDataset, num_workers: int, device: torch.device
) -> Iterator[Iterator[Sequence[Tensor]]]:
    """Yields shuffled batches, epoch after epoch. Ends the workers when the context is left."""
    loader = DataLoader(
        samples,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        persistent_workers=num_workers > 0,
        generator=torch.Generator().manual_seed(SEED),
    )
    epochs = _repeat(loader)
    try:
        yield epochs
    finally:
        epochs.close()
        del loader  # the last reference to persistent workers: deleting it joins them


def _repeat(loader: DataLoader[Any]) -> Generator[Sequence[Tensor], None, None]:
    while True:
        yield from loader
