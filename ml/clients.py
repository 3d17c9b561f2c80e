"""Putting clients together, one way for the simulation and for a node's worker.

What a run of seed S fixes, in both: client i has seed derive_seed(S, "client", i), the samples are dealt by
derive_seed(S, "partition") % 2^31, and the initial model is drawn by derive_seed(S, "model"). So client i of a
simulation and node i of a test network with the same seed are the same client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ml.aggregation import MAX_WEIGHT
from ml.data import get_augment, open_dataset
from ml.data.base import ArrayDataset, Images, InputFormat, Labels
from ml.data.checks import check_data, is_quick, log_findings
from ml.data.domains import apply_domain
from ml.data.fit import fit
from ml.data.partition import ClientSplit, Indices, make_partition, splits_from_mapping
from ml.errors import DataError, MlError
from ml.method import Client, ClientData, Samples
from ml.methods import make_method
from ml.models import Pretrained, build_model, initial_parameters
from ml.payload import Array, Arrays
from ml.seeding import derive_seed, get_partition_seed
from ml.specs import MethodSpec, add_kind, get_spec
from ml.training import Engine


def make_client(
    *,
    method: Mapping[str, Any],
    model: Mapping[str, Any],
    classes: Sequence[str],
    input: Mapping[str, Any],  # noqa: A002 - genesis's word
    data: Mapping[str, Any],
    seed: int,
    initial: Arrays,
    device: str = "auto",
    max_weight: int = MAX_WEIGHT,
    rounds: int = 0,
    engine: Mapping[str, Any] | None = None,
    user_models: bool = False,
) -> Client:
    """The client of one node: the first four and `initial`, block 0's aggregate, from genesis, the rest its own.

    `data` is `{format: digits, partition: null}`, or with a partition `{scheme: classes, avg: 3, std: 1, index: 0,
    of: 4, seed: 7}` the part of it that this node plays. `engine` has the fields of `ml.training.Engine`. A user's own
    model is imported only with `user_models`. Raises SpecError, DataError, or MlError for a device that is not there.
    """
    source = _Source.load(data, input, classes, get_device(device))
    partition = data.get("partition")
    if partition is None:
        everyone = source.take_all("test")
        client_data = ClientData(source.take_all("train"), everyone, everyone, len(classes))
    else:
        splits, index = splits_from_mapping(partition, source.train.y, source.test.y)
        everyone = source.take_everyone(splits, partition["seed"])
        client_data = source.take(splits[index], partition["seed"], everyone, len(classes))
    spec = get_spec(method, model, len(classes), input["shape"], max_weight=max_weight, rounds=rounds)
    return _assemble(spec, client_data, seed, initial, make_engine(data, engine), user_models=user_models)


def make_clients(
    *,
    method: Mapping[str, Any],
    model: Mapping[str, Any],
    classes: Sequence[str],
    input: Mapping[str, Any],  # noqa: A002 - genesis's word
    data: Mapping[str, Any],
    partition: str,
    num_clients: int,
    run_seed: int,
    shots: int | None = None,
    device: str = "cpu",
    initial: Arrays | None = None,
    rounds: int = 0,
    engine: Mapping[str, Any] | None = None,
) -> list[Client]:
    """All clients of a run, the data set on the device once. A user's model is imported: the run is its caller's.

    Raises as `make_client`.
    """
    source = _Source.load(data, input, classes, get_device(device))
    spec = get_spec(method, model, len(classes), input["shape"], rounds=rounds)
    if initial is None:
        initial = make_initial_aggregate(model, input["shape"], len(classes), run_seed)
    seed = get_partition_seed(run_seed)
    splits = make_partition(partition, source.train.y, source.test.y, num_clients, seed, shots)
    everyone = source.take_everyone(splits, seed)
    clients = []
    for i, split in enumerate(splits):
        client_data = source.take(split, seed, everyone, len(classes))
        own = make_engine(data, engine)
        clients.append(_assemble(spec, client_data, get_client_seed(run_seed, i), initial, own, user_models=True))
    return clients


def make_initial_aggregate(
    model: Mapping[str, Any],
    input_shape: Sequence[int],
    num_classes: int,
    run_seed: int,
    *,
    pretrained: Path | Pretrained | None = None,
) -> dict[str, Array]:
    """Block 0's aggregate of a run: the initial parameters under "model/", from `pretrained` as far as it has them."""
    seed = derive_seed(run_seed, "model")
    parameters = initial_parameters(model, input_shape, num_classes, seed, pretrained=pretrained, user_models=True)
    return add_kind("model", parameters)


def get_client_seed(run_seed: int, index: int) -> int:
    """The seed of client `index`."""
    return derive_seed(run_seed, "client", index)


def get_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:1`, or `auto` for a GPU where there is one. Raises MlError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise MlError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise MlError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= (found := torch.cuda.device_count()):
        there = f"cuda:0 to cuda:{found - 1}" if found else "cpu, since torch finds no CUDA device here"
        raise MlError(f"device: expected {there}, got {name!r}")
    return device


def make_engine(data: Mapping[str, Any], engine: Mapping[str, Any] | None) -> Engine:
    """The engine of these settings, with the augmentation that `data` asks for. Raises DataError."""
    return Engine(**{"augment": get_augment(data), **(engine or {})})


@dataclass(frozen=True, slots=True)
class _Source:
    """A data set as it lies there, and where its samples go: fitted to genesis's input, with pixels in 0..1, then
    through a client's domain, if it has one, then through genesis's normalisation, onto the device."""

    train: ArrayDataset
    test: ArrayDataset
    input: InputFormat
    device: torch.device

    @classmethod
    def load(
        cls, data: Mapping[str, Any], input_: Mapping[str, Any], classes: Sequence[str], device: torch.device
    ) -> _Source:
        """Open and check the data. Raises DataError; what may be wrong with them, but can be trained on, is logged."""
        wanted = InputFormat.from_mapping(input_)
        if wanted.shape[1:] == (1, 1) and get_augment(data) != "none":
            raise DataError(f"data.transform.augment: expected none for samples of one pixel, got {get_augment(data)}")
        train, test = open_dataset(data, shape=wanted.shape, classes=classes)
        log_findings(check_data(train, test, thorough=is_quick(train, test)))
        return cls(train, test, wanted, device)

    def take(self, split: ClientSplit, seed: int, everyone: Samples, num_classes: int) -> ClientData:
        """What one client trains and is tested on. `seed` is the one that the samples were dealt by."""
        train = self._place(self._show("train", split.train, split.domain, seed), self.train.y[split.train])
        matched = self._place(self._show("test", split.test, split.domain, seed), self.test.y[split.test])
        return ClientData(train, matched, everyone, num_classes)

    def take_everyone(self, splits: Sequence[ClientSplit], seed: int) -> Samples:
        """The whole test set, each sample in the domain of the client that it matches."""
        x_NCHW = fit(self.test.x, self.input.shape)
        shown = [split for split in splits if split.domain is not None]
        if shown:
            x_NCHW = x_NCHW.copy()  # which may be the data set's own array
        for split in shown:
            x_NCHW[split.test] = self._show("test", split.test, split.domain, seed)
        return self._place(x_NCHW, self.test.y)

    def take_all(self, name: Literal["train", "test"]) -> Samples:
        dataset: ArrayDataset = getattr(self, name)
        return self._place(fit(dataset.x, self.input.shape), dataset.y)

    def _show(self, name: Literal["train", "test"], rows: Indices, domain: str | None, seed: int) -> Images:
        dataset: ArrayDataset = getattr(self, name)
        x_NCHW = fit(dataset.x[rows], self.input.shape)
        return x_NCHW if domain is None else apply_domain(domain, x_NCHW, rows, seed=seed, split=name)

    def _place(self, x: Images, y: Labels) -> Samples:
        return Samples(torch.tensor(self.input.normalise(x)).to(self.device), torch.tensor(y).to(self.device))


def _assemble(
    spec: MethodSpec, data: ClientData, seed: int, initial: Arrays, engine: Engine, *, user_models: bool
) -> Client:
    task = spec.task
    model = build_model(task.model, task.input_shape, task.num_classes, user_models=user_models)
    data = replace(data, train=Samples(engine.lay_out_samples(data.train.x), data.train.y))
    return Client(make_method(spec), model, data, seed=seed, initial=initial, engine=engine)
