"""Builds clients, in the same way for the simulation and for a node's worker.

What a run of seed S fixes, in both: client i has seed derive_seed(S, "client", i), the samples are dealt by
derive_seed(S, "partition") % 2^31, and the initial model is drawn by derive_seed(S, "model"). So client i of a
simulation and node i of a test network with the same seed are the same client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch

from ml.aggregation import MAX_WEIGHT
from ml.clients.agreed import AgreedClient, Unplaced
from ml.clients.client import Client
from ml.clients.feature_cache import place_mapped, place_samples
from ml.clients.masked import MaskedClient
from ml.clients.masked_statistics import MaskedStatisticsClient
from ml.data import Meaning, get_augment, open_dataset
from ml.data.base import AnyLabels, ArrayDataset, Images, InputFormat, Labels, SampleDomains
from ml.data.checks import check_data, is_quick, log_findings
from ml.data.fewer_tests import keep_test_samples
from ml.data.fit_input import fit
from ml.data.fitted import FittedImages
from ml.data.image_cache import ImageCache
from ml.data.own_transform import Transform, keep, load_transform
from ml.data.partition import ClientSplit, Indices, make_partition, splits_from_mapping
from ml.data.partition.domain_shift import apply_domain
from ml.data.sample_notes import TrainedRange
from ml.data.split import Sides, divide
from ml.data.table_checks import check_agreed
from ml.errors import DataError, MlError, PayloadError
from ml.methods import make_method
from ml.methods.base import ClientData, Samples
from ml.models import Model, Pretrained, build_model, initial_parameters, load_parameters
from ml.models.base import copy_model
from ml.payload import Array, Arrays
from ml.plugins import ANY_PLUGIN, NO_PLUGINS, Plugins
from ml.seeding import derive_seed, get_partition_seed
from ml.specs import MaskedSpec, MaskedStatisticsSpec, MethodSpec, StatisticsSpec, add_kind, get_kind, get_spec, unmask
from ml.specs.statistics import STATISTICS, Constants
from ml.specs.task import MAX_ABS
from ml.tasks import CLASSIFICATION, TargetScale
from ml.training.loop import Engine

_Part = Literal["train", "test"]
OnRead = Callable[[ArrayDataset, ArrayDataset], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """What all clients of a run have in common, in genesis's words. `rounds` is 0 where no end is planned; without
    `num_members` nothing can be aggregated by a robust rule. Code of `plugins` may be imported, and no one else's."""

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
        """Raises SpecError."""
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
    """Where a client computes, as `get_device` reads it, and with what settings: the fields of
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
    """The client of one node: the federation's, and `initial`, block 0's aggregate, from genesis, the rest its own.

    `data` is `{format: digits, partition: null}`, or with a partition `{scheme: classes, avg: 3, std: 1, index: 0,
    of: 4, seed: 7}` the part of it that this node plays. `max_loss_ratio` is as `Client` has it. `sides` are the split
    of a site's own data, which `on_read` is given as they were read. Images that take much are decoded into `cache`,
    where there is one.
    Raises SpecError, DataError, or MlError for a device that is not there.
    """
    device, engine = get_device(compute.device), make_engine(data, compute.engine)
    opened, spec = _Opened.load(data, federation, sides, cache), federation.get_spec()
    on_read(opened.train, opened.test)
    (net,) = _make_models(1, spec, initial, engine, device, federation.plugins)
    source, num_classes = _Source(*opened, net, engine, load_transform(data), cache), len(federation.classes)
    partition = data.get("partition")
    if partition is None:
        own = None
        splits: Sequence[ClientSplit] = ()
    else:
        splits, index = splits_from_mapping(partition, source.train.y, source.test.y, source.domains)
        own = splits[index]
    deal = _Deal(source, splits, 0 if partition is None else partition["seed"], num_classes)
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
    """All clients of a run, one for each of the federation's members: the test set, or so many samples of it, and what
    is frozen in the model on the device once.

    Raises as `make_client`.
    """
    device, engine = get_device(compute.device), make_engine(data, compute.engine)
    opened, spec = _Opened.load(data, federation), unmask(federation.get_spec())  # nobody is here to hide from
    num_classes = len(federation.classes)
    if initial is None:
        initial = make_initial_aggregate(
            federation.model, federation.input["shape"], num_classes, run_seed, plugins=federation.plugins
        )
    seed = get_partition_seed(run_seed)
    opened = opened._replace(test=keep_test_samples(opened.test, test_samples, seed))
    nets = _make_models(federation.num_members, spec, initial, engine, device, federation.plugins)
    source = _Source(*opened, nets[0], engine, load_transform(data))
    splits = make_partition(partition, source.train.y, source.test.y, len(nets), seed, shots, source.domains)
    deal = _Deal(source, splits, seed, num_classes)
    return [
        _make_client(
            spec,
            net,
            deal,
            split,
            initial,
            seed=get_client_seed(run_seed, i),
            engine=engine,
            max_loss_ratio=max_loss_ratio,
            is_rehearsal=True,
        )
        for i, (net, split) in enumerate(zip(nets, splits, strict=True))
    ]


def _make_client(
    spec: MethodSpec,
    net: Model,
    deal: _Deal,
    own: ClientSplit | None,
    initial: Arrays,
    *,
    seed: int,
    engine: Engine,
    max_loss_ratio: float | None,
    is_rehearsal: bool = False,
) -> Client:
    """The client whose part of the samples is `own`, or all of them. Where the run agrees on what normalises them, it
    gets them later."""
    more: dict[str, Any] = {"seed": seed, "engine": engine, "max_loss_ratio": max_loss_ratio}
    more |= {"is_rehearsal": is_rehearsal}
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
    """Block 0's aggregate of a run: the initial parameters under "model/", from `pretrained` as far as it has them. Its
    caller asks for the model, and so for the code of a plugin that has it."""
    seed = derive_seed(run_seed, "model")
    parameters = initial_parameters(model, input_shape, num_classes, seed, pretrained=pretrained, plugins=plugins)
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


class _Opened(NamedTuple):
    """A data set as it lies there, and the input that it is to be."""

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
        """Open and check the data. Raises DataError; what may be wrong with them, but can be trained on, is logged."""
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


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """Where the samples of a data set go: fitted to genesis's input, with pixels in 0..1, then through a client's
    domain, if it has one, through the site's own transform and genesis's normalisation, onto the model's device, and
    there through what is frozen in the model. Targets are brought to the run's scale."""

    train: ArrayDataset
    test: ArrayDataset
    input: InputFormat
    scale: TargetScale
    model: Model
    engine: Engine
    transform: Transform
    cache: ImageCache | None = None

    @property
    def domains(self) -> SampleDomains | None:
        """Those that the data set has of its own."""
        return SampleDomains.of(self.train, self.test)

    def normalised_by(self, constants: Constants) -> _Source:
        return replace(self, input=self.input.with_constants(constants.mean, constants.std))

    def check_agreed(self, constants: Constants) -> None:
        """Logs what is odd about a table beside what members agreed on."""
        if self.train.is_table and len(self.train):
            x = self.transform(fit(self.train.x, self.input.shape))
            log_findings(check_agreed(x, self.train.features, constants.mean, constants.std))

    def take(self, split: ClientSplit | None, seed: int, everyone: Samples, num_classes: int) -> ClientData:
        """The samples that one client trains, is tested on and compares rounds by; all where they are not split. `seed`
        is the one that the samples were dealt by."""
        trained, val = (self._take_train(split, seed, is_val=is_val) for is_val in (False, True))
        assert trained is not None  # noqa: S101
        return ClientData(trained, everyone if split is None else everyone.take(split.test), everyone, num_classes, val)

    def _take_train(self, split: ClientSplit | None, seed: int, *, is_val: bool) -> Samples | None:
        """Those that are trained on, or those that are val, None where none is."""
        rows = self.choose_rows(split, is_val=is_val)
        if is_val and (rows is None or not len(rows)):
            return None
        if split is None:
            return self.take_all("train", rows, augmented=not is_val)
        assert rows is not None  # noqa: S101
        shown = self._show("train", rows, split.transform, seed)
        return self._place(shown, self.train.y[rows], augmented=not is_val)

    def choose_rows(self, split: ClientSplit | None, *, is_val: bool = False) -> Indices | None:
        """The rows of a client that train, None for all; or those that are val, None where none is."""
        marked, own = self.train.is_val, None if split is None else split.train
        if marked is None:
            return None if is_val else own
        trained, val = divide(np.arange(len(self.train)) if own is None else own, marked, self.train.y)
        return val if is_val else trained

    def take_everyone(self, splits: Sequence[ClientSplit], seed: int) -> Samples:
        """The whole test set, each sample in the domain of the client that it matches."""
        shown = [split for split in splits if split.transform is not None]
        if not shown:
            return self.take_all("test")
        x_NCHW = fit(self.test.x, self.input.shape).copy()  # which may be the data set's own array
        for split in shown:
            x_NCHW[split.test] = self._show("test", split.test, split.transform, seed)
        return self._place(x_NCHW, self.test.y)

    def take_all(self, name: _Part, rows: Indices | None = None, *, augmented: bool = False) -> Samples:
        """All samples of a part, or those at `rows`."""
        dataset: ArrayDataset = getattr(self, name)
        y = dataset.y if rows is None else dataset.y[rows]
        if self._stays_mapped(dataset):
            images = FittedImages.of(dataset.x, self.input.shape, rows)
            return place_mapped(images, self.scale_labels(y), self.model, self.engine, self.input, augmented=augmented)
        return self._place(
            fit(dataset.x if rows is None else dataset.x[rows], self.input.shape), y, augmented=augmented
        )

    def _stays_mapped(self, dataset: ArrayDataset) -> bool:
        """Tells whether samples are read from their file as they are trained on. A transform of the site's own has all
        of them at once."""
        return self.cache is not None and self.transform is keep and self.cache.is_mapped(dataset.x)

    def show_train(self, split: ClientSplit | None, seed: int) -> Images | FittedImages:
        """The samples that one client trains on, as they are before they are normalised; all where they are not
        split."""
        rows = self.choose_rows(split)
        if split is not None and rows is not None:
            return self.transform(self._show("train", rows, split.transform, seed))
        if self._stays_mapped(self.train):
            return FittedImages.of(self.train.x, self.input.shape, rows)
        return self.transform(fit(self.train.x if rows is None else self.train.x[rows], self.input.shape))

    def get_labels(self, split: ClientSplit | None) -> AnyLabels:
        """Those of the samples that one client trains on, as the data set has them."""
        rows = self.choose_rows(split)
        return self.train.y if rows is None else self.train.y[rows]

    def measure_range(self, split: ClientSplit | None) -> TrainedRange | None:
        """The range of what one client trains on, where that is a table; of all where it is not split."""
        rows = self.choose_rows(split)
        return TrainedRange.measure(self.train.x if rows is None else self.train.x[rows])

    def _show(self, name: _Part, rows: Indices, domain: str | None, seed: int) -> Images:
        """Fitted and in a client's domain, before the site's own transform."""
        dataset: ArrayDataset = getattr(self, name)
        x_NCHW = fit(dataset.x[rows], self.input.shape)
        return x_NCHW if domain is None else apply_domain(domain, x_NCHW, rows, seed=seed, split=name)

    def scale_labels(self, y: AnyLabels) -> Labels | Images:
        """As a model is trained on them: classes, or labels and targets at the run's scale."""
        return np.asarray(y, np.int64) if y.ndim == 1 else self.scale.scale(y).astype(np.float32)

    def _place(self, x: Images, y: AnyLabels, *, augmented: bool = False) -> Samples:
        x, labels = self.input.normalise(self.transform(x)), self.scale_labels(y)
        return place_samples(x, labels, self.model, self.engine, augmented=augmented)


class _Deal:
    """The dealing of a source's samples to clients: by `splits`, which were made with `seed`; without any, all samples
    are one client's. The test set is placed once for all who see it alike."""

    def __init__(self, source: _Source, splits: Sequence[ClientSplit], seed: int, num_classes: int) -> None:
        self._source, self._splits, self._seed, self._num_classes = source, splits, seed, num_classes
        self._placed: tuple[Constants | None, _Source, Samples] | None = None

    def take(self, own: ClientSplit | None, constants: Constants | None = None) -> ClientData:
        """One client's samples, normalised by the run's input or by `constants`."""
        if self._placed is None or self._placed[0] != constants:
            source = self._source
            if constants is not None:
                source.check_agreed(constants)
                source = source.normalised_by(constants)
            everyone = source.take_everyone(self._splits, self._seed) if self._splits else source.take_all("test")
            self._placed = constants, source, everyone
        _, source, everyone = self._placed
        return source.take(own, self._seed, everyone, self._num_classes)

    def leave(self, own: ClientSplit | None) -> Unplaced:
        """One client's samples, to be taken when it is known what normalises them."""
        source = self._source
        labels = source.scale_labels(source.get_labels(own))
        num_test = len(source.test) if own is None else len(own.test)
        read, place = partial(source.show_train, own, self._seed), partial(self.take, own)
        val = source.choose_rows(own, is_val=True)
        return Unplaced(labels, num_test, self._num_classes, read, place, 0 if val is None else len(val))


def _make_models(
    num: int, spec: MethodSpec, initial: Arrays, engine: Engine, device: torch.device, plugins: Plugins
) -> list[Model]:
    """So many models as block 0 has them, on the device. What is frozen in them is the same object in all."""
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
