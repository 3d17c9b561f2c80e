"""Builds clients, in the same way for the simulation and for a node's worker.

What a run of seed S fixes, in both: client i has seed derive_seed(S, "client", i), the samples are dealt by
derive_seed(S, "partition") % 2^31, and the initial model is drawn by derive_seed(S, "model"). So client i of a
simulation and node i of a test network with the same seed are the same client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from ml.aggregation import MAX_WEIGHT
from ml.clients.agreed import AgreedClient
from ml.clients.client import Client
from ml.clients.dealing import Deal, Source
from ml.clients.masked import MaskedClient, MaskedStatisticsClient
from ml.data import Meaning, get_augment, open_dataset
from ml.data.base import ArrayDataset, InputFormat
from ml.data.checks import check_data, is_quick, log_findings
from ml.data.fewer_tests import keep_test_samples
from ml.data.image_cache import ImageCache
from ml.data.own_transform import load_transform
from ml.data.partition import ClientSplit, make_partition, splits_from_mapping
from ml.data.split import Sides
from ml.errors import DataError, MlError, PayloadError
from ml.methods import make_method
from ml.models import Model, Pretrained, build_model, initial_parameters, load_parameters
from ml.models.base import copy_model
from ml.payload import Array, Arrays
from ml.plugins import ANY_PLUGIN, NO_PLUGINS, Plugins
from ml.seeding import derive_seed, get_partition_seed
from ml.specs import MaskedSpec, MaskedStatisticsSpec, MethodSpec, StatisticsSpec, add_kind, get_kind, get_spec
from ml.specs.masked.spec import get_unmasked_spec
from ml.specs.statistics import STATISTICS
from ml.specs.task import MAX_ABS
from ml.tasks import CLASSIFICATION, TargetScale
from ml.training.loop import Engine

OnRead = Callable[[ArrayDataset, ArrayDataset], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The settings that all clients of a run have in common, in genesis's words. `rounds` is 0 if no end is planned.
    Without `num_members` a robust rule cannot aggregate. Only code of `plugins` may be imported."""

    method: Mapping[str, Any]
    model: Mapping[str, Any]
    classes: Sequence[str]
    input: Mapping[str, Any]
    rounds: int = 0
    num_members: int = 0
    max_weight: int = MAX_WEIGHT
    max_abs: float = MAX_ABS
    plugins: Plugins = NO_PLUGINS
    task: str = CLASSIFICATION
    target: Mapping[str, Any] | None = None
    labels: Meaning | None = None

    def get_spec(self) -> MethodSpec:
        """Returns the spec of the run's method. Raises SpecError."""
        return get_spec(
            self.method,
            self.model,
            len(self.classes),
            self.input["shape"],
            max_weight=self.max_weight,
            max_abs=self.max_abs,
            rounds=self.rounds,
            num_members=self.num_members,
            input_=self.input,
            plugins=self.plugins,
            kind=self.task,
            target=self.target,
        )


@dataclass(frozen=True, slots=True)
class Compute:
    """Names the device on which a client computes, as `get_device` reads it, and its settings: the fields of
    `ml.training.loop.Engine`."""

    device: str = "cpu"
    engine: Mapping[str, Any] | None = None


def make_client(
    federation: Federation,
    *,
    data: Mapping[str, Any],
    seed: int,
    initial: Arrays,
    compute: Compute = Compute(),
    max_loss_ratio: float | None = None,
    sides: Sides | None = None,
    on_read: OnRead = lambda train, test: None,
    cache: ImageCache | None = None,
) -> Client:
    """Makes the client of one node from the federation's settings and its `initial` model, block 0's aggregate.

    `data` is `{format: digits, partition: null}`, or with a partition `{scheme: classes, avg: 3, std: 1, index: 0, of:
    4, seed: 7}` the part of it that this node has. `max_loss_ratio` is as `Client` has it. `sides` is the split of a
    site's own data. `on_read` is called with the data as they were read. Images that need much memory are decoded into
    `cache`, if it is given. Raises SpecError, DataError, or MlError for a device that is not there.
    """
    device, engine = get_device(compute.device), make_engine(data, compute.engine)
    opened, spec = _Opened.load(data, federation, sides, cache), federation.get_spec()
    on_read(opened.train, opened.test)
    (net,) = _make_models(1, spec, initial, engine, device, federation.plugins)
    source, num_classes = Source(*opened, net, engine, load_transform(data), cache), len(federation.classes)
    partition = data.get("partition")
    if partition is None:
        own = None
        splits: Sequence[ClientSplit] = ()
    else:
        splits, index = splits_from_mapping(partition, source.train.y, source.test.y, source.domains)
        own = splits[index]
    deal = Deal(source, splits, 0 if partition is None else partition["seed"], num_classes)
    client = _make_client(spec, net, deal, own, initial, seed=seed, engine=engine, max_loss_ratio=max_loss_ratio)
    client.trained_range = source.measure_range(own)
    return client


def make_clients(
    federation: Federation,
    *,
    data: Mapping[str, Any],
    partition: str,
    run_seed: int,
    shots: int | None = None,
    initial: Arrays | None = None,
    compute: Compute = Compute(),
    max_loss_ratio: float | None = None,
    test_samples: int | None = None,
) -> list[Client]:
    """Makes all clients of a run, one for each of the federation's members. The test set (or `test_samples` of it) and
    what is frozen in the model are on the device only once.

    Raises as `make_client`.
    """
    device, engine = get_device(compute.device), make_engine(data, compute.engine)
    opened, spec = _Opened.load(data, federation), get_unmasked_spec(federation.get_spec())
    num_classes = len(federation.classes)
    if initial is None:
        initial = make_initial_aggregate(
            federation.model, federation.input["shape"], num_classes, run_seed, plugins=federation.plugins
        )
    seed = get_partition_seed(run_seed)
    opened = opened._replace(test=keep_test_samples(opened.test, test_samples, seed))
    nets = _make_models(federation.num_members, spec, initial, engine, device, federation.plugins)
    source = Source(*opened, nets[0], engine, load_transform(data))
    splits = make_partition(partition, source.train.y, source.test.y, len(nets), seed, shots, source.domains)
    deal = Deal(source, splits, seed, num_classes)
    more = {"engine": engine, "max_loss_ratio": max_loss_ratio, "is_rehearsal": True}
    return [
        _make_client(spec, net, deal, split, initial, seed=get_client_seed(run_seed, i), **more)
        for i, (net, split) in enumerate(zip(nets, splits, strict=True))
    ]


def _make_client(
    spec: MethodSpec, net: Model, deal: Deal, own: ClientSplit | None, initial: Arrays, **more: Any
) -> Client:
    """Makes the client that has the part `own` of the samples, or all of them. In a run that agrees on statistics the
    client receives its samples later."""
    if isinstance(spec, MaskedStatisticsSpec):
        return MaskedStatisticsClient(make_method(spec.inner.inner), net, deal.leave(own), spec, **more)
    if isinstance(spec, MaskedSpec):
        return MaskedClient(make_method(spec.inner), net, deal.take(own), spec, **more)
    if not isinstance(spec, StatisticsSpec):
        return Client(make_method(spec), net, deal.take(own), **more)
    client = AgreedClient(make_method(spec.inner), net, deal.leave(own), spec, **more)
    if spec.agreement.is_inherited:
        inherited = get_kind(initial, STATISTICS)
        if inherited is None:
            raise PayloadError("the initial model: expected statistics that the run inherits, got none")
        client.agree(inherited)
    return client


def make_initial_aggregate(
    model: Mapping[str, Any],
    input_shape: Sequence[int],
    num_classes: int,
    run_seed: int,
    *,
    pretrained: Path | Pretrained | None = None,
    plugins: Plugins = ANY_PLUGIN,
) -> dict[str, Array]:
    """Makes block 0's aggregate of a run: the initial parameters under "model/", from `pretrained` as far as it has
    them. The caller is responsible for allowing the code of a plugin that has the model."""
    seed = derive_seed(run_seed, "model")
    parameters = initial_parameters(model, input_shape, num_classes, seed, pretrained=pretrained, plugins=plugins)
    return add_kind("model", parameters)


def get_client_seed(run_seed: int, index: int) -> int:
    """Returns the seed of client `index`."""
    return derive_seed(run_seed, "client", index)


def get_device(name: str) -> torch.device:
    """Returns the device of this name: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one. Raises MlError."""
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
    """Makes the engine of these settings, with the augmentation that `data` sets. Raises DataError."""
    return Engine(**{"augment": get_augment(data), **(engine or {})})


class _Opened(NamedTuple):
    """Holds a data set as it was read, and the input that it has to be fitted to."""

    train: ArrayDataset
    test: ArrayDataset
    input: InputFormat
    scale: TargetScale

    @classmethod
    def load(
        cls,
        data: Mapping[str, Any],
        federation: Federation,
        sides: Sides | None = None,
        cache: ImageCache | None = None,
    ) -> Self:
        """Opens and checks the data. Raises DataError. Logs what may be wrong with them and does not stop training."""
        wanted = InputFormat.from_mapping(federation.input)
        if wanted.shape[1:] == (1, 1) and get_augment(data) != "none":
            raise DataError(f"data.transform.augment: expected none for samples of one pixel, got {get_augment(data)}")
        train, test = open_dataset(
            data,
            shape=wanted.shape,
            classes=federation.classes,
            task=federation.task,
            table=wanted.table,
            meaning=federation.labels,
            sides=sides,
            cache=cache,
        )
        log_findings(check_data(train, test, input_=wanted, thorough=is_quick(train, test)))
        return cls(train, test, wanted, TargetScale.from_mapping(federation.target))


def _make_models(
    num: int, spec: MethodSpec, initial: Arrays, engine: Engine, device: torch.device, plugins: Plugins
) -> list[Model]:
    """Builds so many models with block 0's parameters, on the device. All of them share one copy of what is frozen."""
    models: list[Model] = []
    while len(models) < num:
        if models and models[0].has_frozen:
            models.append(copy_model(models[0]))
        else:
            model = build_model(spec.task.model, spec.task.input_shape, spec.task.num_classes, plugins=plugins)
            arrays = get_kind(initial, "model") or {}
            if missing := sorted(spec.task.layout.frozen.keys() - arrays.keys()):
                raise PayloadError(f"the initial model: expected what is frozen, {missing[0]!r} first; got none of it")
            try:
                load_parameters(model, arrays)
            except ValueError as error:
                raise PayloadError(f"the initial model: {error}") from error
            models.append(engine.lay_out(model.to(device)))
    return models
