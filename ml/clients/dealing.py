"""A run's samples: fitted to what its model takes, and dealt to its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from ml.clients.agreed import Unplaced
from ml.clients.feature_cache import place_mapped, place_samples
from ml.data.base import AnyLabels, ArrayDataset, Images, InputFormat, Labels, SampleDomains
from ml.data.checks import log_findings
from ml.data.fit_input import fit
from ml.data.fitted import FittedImages
from ml.data.image_cache import ImageCache
from ml.data.own_transform import Transform, keep
from ml.data.partition import ClientSplit, Indices
from ml.data.partition.domain_shift import apply_domain
from ml.data.sample_notes import TrainedRange
from ml.data.split import divide
from ml.data.table_checks import check_agreed
from ml.methods.base import ClientData, Samples
from ml.models import Model
from ml.specs.statistics import Constants
from ml.tasks import TargetScale
from ml.training.loop import Engine

_Part = Literal["train", "test"]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Prepares the samples of a data set: it fits them to genesis's input, with pixels in 0..1, applies a client's
    domain, if it has one, the site's own transform and genesis's normalisation, copies them to the model's device, and
    there passes them through what is frozen in the model. Targets are scaled as the run sets it."""

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
        """The domains that the data set itself has."""
        return SampleDomains.of(self.train, self.test)

    def normalised_by(self, constants: Constants) -> Source:
        return replace(self, input=self.input.with_constants(constants.mean, constants.std))

    def check_agreed(self, constants: Constants) -> None:
        """Logs differences between a table and the statistics that members agreed on."""
        if self.train.is_table and len(self.train):
            x = self.transform(fit(self.train.x, self.input.shape))
            log_findings(check_agreed(x, self.train.features, constants.mean, constants.std))

    def take(self, split: ClientSplit | None, seed: int, everyone: Samples, num_classes: int) -> ClientData:
        """Returns the samples that one client trains on, is tested on and compares rounds by; all if they are not
        split. `seed` is the one that dealt the samples."""
        trained, val = (self._take_train(split, seed, is_val=is_val) for is_val in (False, True))
        assert trained is not None  # noqa: S101
        return ClientData(trained, everyone if split is None else everyone.take(split.test), everyone, num_classes, val)

    def _take_train(self, split: ClientSplit | None, seed: int, *, is_val: bool) -> Samples | None:
        """Returns the samples to train on, or with `is_val` the val samples; None if there are no val samples."""
        rows = self.choose_rows(split, is_val=is_val)
        if is_val and (rows is None or not len(rows)):
            return None
        if split is None:
            return self.take_all("train", rows, augmented=not is_val)
        assert rows is not None  # noqa: S101
        shown = self._show("train", rows, split.transform, seed)
        return self._place(shown, self.train.y[rows], augmented=not is_val)

    def choose_rows(self, split: ClientSplit | None, *, is_val: bool = False) -> Indices | None:
        """Returns the rows that a client trains on, None for all; or with `is_val` its val rows, None if there are
        none."""
        marked, own = self.train.is_val, None if split is None else split.train
        if marked is None:
            return None if is_val else own
        trained, val = divide(np.arange(len(self.train)) if own is None else own, marked, self.train.y)
        return val if is_val else trained

    def take_everyone(self, splits: Sequence[ClientSplit], seed: int) -> Samples:
        """Returns the whole test set, each sample in the domain of the client that it matches."""
        shown = [split for split in splits if split.transform is not None]
        if not shown:
            return self.take_all("test")
        x_NCHW = fit(self.test.x, self.input.shape).copy()  # `fit` may return the data set's own array
        for split in shown:
            x_NCHW[split.test] = self._show("test", split.test, split.transform, seed)
        return self._place(x_NCHW, self.test.y)

    def take_all(self, name: _Part, rows: Indices | None = None, *, augmented: bool = False) -> Samples:
        """Returns all samples of a part, or those at `rows`."""
        dataset: ArrayDataset = getattr(self, name)
        y = dataset.y if rows is None else dataset.y[rows]
        if self._stays_mapped(dataset):
            images = FittedImages.of(dataset.x, self.input.shape, rows)
            return place_mapped(images, self.scale_labels(y), self.model, self.engine, self.input, augmented=augmented)
        return self._place(
            fit(dataset.x if rows is None else dataset.x[rows], self.input.shape), y, augmented=augmented
        )

    def _stays_mapped(self, dataset: ArrayDataset) -> bool:
        """Says whether samples are read from their file while they are trained on. A transform of the site's own needs
        all of them at once."""
        return self.cache is not None and self.transform is keep and self.cache.is_mapped(dataset.x)

    def show_train(self, split: ClientSplit | None, seed: int) -> Images | FittedImages:
        """Returns the samples that one client trains on, before they are normalised; all if they are not split."""
        rows = self.choose_rows(split)
        if split is not None and rows is not None:
            return self.transform(self._show("train", rows, split.transform, seed))
        if self._stays_mapped(self.train):
            return FittedImages.of(self.train.x, self.input.shape, rows)
        return self.transform(fit(self.train.x if rows is None else self.train.x[rows], self.input.shape))

    def get_labels(self, split: ClientSplit | None) -> AnyLabels:
        """Returns the labels of the samples that one client trains on, as the data set has them."""
        rows = self.choose_rows(split)
        return self.train.y if rows is None else self.train.y[rows]

    def measure_range(self, split: ClientSplit | None) -> TrainedRange | None:
        """Measures the range of one client's training samples in a table; of all if they are not split."""
        rows = self.choose_rows(split)
        return TrainedRange.measure(self.train.x if rows is None else self.train.x[rows])

    def _show(self, name: _Part, rows: Indices, domain: str | None, seed: int) -> Images:
        """Returns samples fitted and in a client's domain, before the site's own transform."""
        dataset: ArrayDataset = getattr(self, name)
        x_NCHW = fit(dataset.x[rows], self.input.shape)
        return x_NCHW if domain is None else apply_domain(domain, x_NCHW, rows, seed=seed, split=name)

    def scale_labels(self, y: AnyLabels) -> Labels | Images:
        """Returns labels as a model is trained on them: classes, or labels and targets at the run's scale."""
        return np.asarray(y, np.int64) if y.ndim == 1 else self.scale.scale(y).astype(np.float32)

    def _place(self, x: Images, y: AnyLabels, *, augmented: bool = False) -> Samples:
        x, labels = self.input.normalise(self.transform(x)), self.scale_labels(y)
        return place_samples(x, labels, self.model, self.engine, augmented=augmented)


class Deal:
    """Deals a source's samples to clients by `splits`, which were made with `seed`; without splits one client has all
    samples. The test set is placed on the device once for all clients that use it."""

    def __init__(self, source: Source, splits: Sequence[ClientSplit], seed: int, num_classes: int) -> None:
        self._source, self._splits, self._seed, self._num_classes = source, splits, seed, num_classes
        self._placed: tuple[Constants | None, Source, Samples] | None = None

    def take(self, own: ClientSplit | None, constants: Constants | None = None) -> ClientData:
        """Returns one client's samples, normalised by the run's input or by `constants`."""
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
        """Returns one client's samples before they are normalised, for a run that has still to agree on statistics."""
        source = self._source
        labels = source.scale_labels(source.get_labels(own))
        num_test = len(source.test) if own is None else len(own.test)
        read, place = partial(source.show_train, own, self._seed), partial(self.take, own)
        val = source.choose_rows(own, is_val=True)
        return Unplaced(labels, num_test, self._num_classes, read, place, 0 if val is None else len(val))
