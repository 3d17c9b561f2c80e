"""A site's samples by the name of their format: opened, measured against genesis, and made into what its model takes.

One file reads each format, and all return an `ArrayDataset`; `ml.data.partition` deals one data set out to rehearse a
federation. Numpy only: torch, Pillow, pyarrow and scipy are imported where a format or a resize needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ml.data.base import AnyLabels, ArrayDataset, InputFormat, Labels, SampleDomains, Samples, Shape
from ml.data.columns import ColumnSummary, summarise_columns
from ml.data.cut import cut, find_groups_on_both_sides, find_trained_on, hold_out_val, leave_out_unknown, place
from ml.data.findings import Finding
from ml.data.fit_input import fit, validate_finite, validate_fit
from ml.data.image_cache import ImageCache
from ml.data.image_set import ImageSet
from ml.data.keys import read_sides
from ml.data.labels import number_by_meaning, number_labels, validate_are_classes
from ml.data.outputs import arrange
from ml.data.part import Locate, Part, RawTable
from ml.data.registry import FORMATS, TABLES, Splits, open_source, open_splits, open_table, translated
from ml.data.source import HELD_OUT, DataSource, get_augment
from ml.data.source_cache import forget_sources, open_once
from ml.data.split import Side, Sides
from ml.data.table_input import TableInput
from ml.errors import DataError, SpecError
from ml.specs.architectures import fit_input_shape
from ml.tasks import CLASSIFICATION, REGRESSION, TargetScale

if TYPE_CHECKING:
    from ml.data.readers.domain_folders import Domain

__all__ = [
    "FORMATS",
    "HELD_OUT",
    "LabelSplit",
    "Meaning",
    "Resplit",
    "Split",
    "TABLES",
    "validate_labels",
    "forget_sources",
    "get_augment",
    "get_classes",
    "get_default_input",
    "get_split_names",
    "list_domains",
    "load_dataset",
    "measure_target",
    "open_dataset",
    "open_labels",
    "open_once",
    "open_raw_table",
    "open_train",
    "split_anew",
]

Split = tuple[ArrayDataset, ArrayDataset]
Meaning = Mapping[str, Sequence[str]]  # the labels that stand for each class, by its name, in genesis' order
MAX_SUMMARISED = 1 << 26  # cells of a table: as numbers, as much as `ml.data.checks` checks on each start


def open_dataset(
    data: Mapping[str, Any],
    *,
    shape: Shape | None = None,
    classes: Sequence[str] | None = None,
    task: str = CLASSIFICATION,
    table: TableInput | None = None,
    meaning: Meaning | None = None,
    sides: Sides | None = None,
    cache: ImageCache | None = None,
) -> Split:
    """Returns the (training, test) samples that `data` of a configuration describes, not normalised.

    Samples are to be fitted to `shape`. Images that are decoded one by one, and those of several domains, are fitted
    here; arrays, which may be memory-mapped, keep their shape, but it must be one that can be fitted. Labels are
    numbered in the order of `classes`, genesis' list of names, or else of the source's own classes. Without a test
    split a fifth of each class is held out, always the same samples, and that split is called "held out". For a `task`
    other than classification a sample has labels or targets instead of a class, and `classes` are their names. `table`
    says what a table's columns become, `meaning` which labels stand for each class where these are not its name. Large
    image sets are decoded into `cache`, if there is one, and mapped from there.

    `sides` is a site's own split; with it, rows whose categories the run does not know are left out. Where `data.val`
    asks for val samples, or the data name some, these are among the training samples, and marked.

    Raises DataError, naming file and place, for a sample or label that is broken, of the wrong kind, not finite, or of
    no known class.
    """
    if cache is not None:
        cache.forget_lost(data.get("path"))
    source = replace(DataSource.from_mapping(data, task, classes), sides=sides)
    splits, notes = _open(source, data), list[Finding]()
    if table is not None:
        splits = _encode(splits if sides is None else _leave_out_unknown(splits, table), table)
    if shape is not None:
        for part in splits.parts:
            validate_fit(part.shape, shape)
    labels, names = _number_all(splits, data, task, classes, meaning)
    takes_empty = table is not None and table.leaves_empty
    train, test = splits.train, splits.test or splits.train
    if splits.test is not None:
        read = [_read(part, [np.arange(len(part.labels))], shape, cache, takes_empty) for part in (train, test)]
        [[train_x], [test_x]], (train_odd, test_odd) = zip(*read, strict=True)
        train_y, test_y = labels
        locate_train, locate_test = train.locate, test.locate
        is_val = train.is_val
        if not splits.domains:  # domains were cut one by one
            is_val, told = hold_out_val(train, source, train_y, None if train.images is not None else train_x)
            notes += told
        notes += find_groups_on_both_sides(train, test, source)
    else:
        whole = (
            None if train.images is not None else _read(train, [np.arange(len(labels[0]))], shape, None, takes_empty)
        )
        own = cut(train, source, labels[0], names, None if whole is None else whole[0][0])
        rows = [own.train, own.test]
        if whole is None:
            (train_x, test_x), train_odd = _read(train, rows, shape, cache, takes_empty)
        else:
            (train_x, test_x), train_odd = [whole[0][0][own_rows] for own_rows in rows], whole[1]
        train_y, test_y, test_odd, is_val = labels[0][own.train], labels[0][own.test], (), own.is_val
        locate_train, locate_test = _locate_rows(train.locate, own.train), _locate_rows(train.locate, own.test)
        notes += own.notes
    if cache is not None:
        cache.prune()
    domains, features, more = splits.domains, train.features, (task, train.passed_over)
    made = (
        ArrayDataset(
            train_x, train_y, names, splits.train_name, train.place, domains, train.domain_of, features, *more
        ),
        ArrayDataset(test_x, test_y, names, splits.test_name, test.place, domains, test.domain_of, features, *more),
    )
    return (
        replace(
            made[0], columns=_summarise(train, table), notes=(*train_odd, *notes), locate=locate_train, is_val=is_val
        ),
        replace(made[1], notes=test_odd, locate=locate_test),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Resplit:
    """A new split of a site's samples: the numbers of training, test and val samples. `trained_on` are the places of
    test samples that the site trained on before, None where that cannot be found out."""

    num_train: int
    num_test: int
    trained_on: tuple[str, ...] | None
    num_val: int = 0


def split_anew(
    data: Mapping[str, Any],
    before: Sides | None,
    after: Sides,
    *,
    classes: Sequence[str] | None = None,
    task: str = CLASSIFICATION,
    table: TableInput | None = None,
    meaning: Meaning | None = None,
) -> Resplit:
    """Splits samples by new sides, which record the result, and compares that with what was trained on `before`. Where
    the data themselves say which samples test, chooses val samples only. Raises DataError, also where there is nothing
    to choose."""
    source = replace(DataSource.from_mapping(data, task, classes), sides=after)
    splits = _open(source, data)
    if table is not None:
        splits = _encode(_leave_out_unknown(splits, table), table)
    (labels, *_), _ = _number_all(splits, data, task, classes, meaning)
    part = splits.train
    if splits.test is not None or source.split is not None:
        return _choose_val(part, source, labels, 0 if splits.test is None else len(splits.test.labels))
    side_N, _ = place(part, source, after, labels)
    is_test = side_N == Side.TEST.value
    try:
        was_trained = None if before is None else find_trained_on(part, source, before, labels)
    except DataError:
        was_trained = None
    places = None
    if was_trained is not None:
        places = tuple(part.locate(i) for i in np.flatnonzero(is_test & was_trained).tolist())
    num_train, num_val = (int((side_N == side.value).sum()) for side in (Side.TRAIN, Side.VAL))
    return Resplit(num_train, int(is_test.sum()), places, num_val)


def _choose_val(part: Part, source: DataSource, labels: AnyLabels, num_test: int) -> Resplit:
    """Chooses val samples where the test samples are a split of their own, or are named by a column."""
    side_N = read_sides(part, source)
    if not source.val or (side_N is not None and (side_N == Side.VAL.value).any()):
        raise DataError(f"{part.place}: the data say themselves what tests: there is nothing to split anew")
    rows = np.arange(len(labels)) if side_N is None else np.flatnonzero(side_N == Side.TRAIN.value)
    is_val, _ = hold_out_val(part.select(rows), source, labels[rows])
    num_val = 0 if is_val is None else int(is_val.sum())
    return Resplit(len(rows) - num_val, num_test or len(labels) - len(rows), (), num_val)


@dataclass(frozen=True, slots=True, eq=False)
class LabelSplit:
    """The labels of a data set without its samples, which is enough to deal the samples out. `shape` is a training
    sample's, `domains` are those of the data set, None if it has none."""

    train_y: AnyLabels
    test_y: AnyLabels
    classes: tuple[str, ...]
    shape: Shape
    domains: SampleDomains | None = None


def open_labels(
    data: Mapping[str, Any],
    *,
    classes: Sequence[str] | None = None,
    task: str = CLASSIFICATION,
    meaning: Meaning | None = None,
) -> LabelSplit:
    """Returns the labels that `open_dataset` would return, and reads no sample. Raises DataError."""
    source = DataSource.from_mapping(data, task, classes)
    splits = _open(source, data)
    labels, names = _number_all(splits, data, task, classes, meaning)
    if len(labels) == 1:
        own = cut(splits.train, source, labels[0], names)
        labels = [labels[0][own.train], labels[0][own.test]]
    train_y, test_y = labels
    domains = None
    if splits.test is not None and splits.train.domain_of is not None and splits.test.domain_of is not None:
        domains = SampleDomains(splits.domains, splits.train.domain_of, splits.test.domain_of)
    return LabelSplit(train_y, test_y, names, splits.train.shape, domains)


def validate_labels(
    data: Mapping[str, Any],
    *,
    classes: Sequence[str] | None = None,
    task: str = CLASSIFICATION,
    meaning: Meaning | None = None,
) -> None:
    """Raises DataError where `open_labels` would, apart from errors in the split of the samples."""
    _number_all(_open(DataSource.from_mapping(data, task, classes), data), data, task, classes, meaning)


def get_split_names(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the possible names in `data.train_split` and `data.test_split`, sorted. Raises DataError."""
    return tuple(sorted(set(open_source(DataSource.from_mapping(data)).splits) - {HELD_OUT}))


def list_domains(data: Mapping[str, Any]) -> tuple[Domain, ...]:
    """Returns the domains of a data set that consists of several, not fitted to each other; empty for any other data
    set. Raises DataError."""
    source = DataSource.from_mapping(data)
    if source.format != "domains":
        return ()
    from ml.data.readers.domain_folders import open_domains

    return tuple(open_domains(source))


def load_dataset(data: Mapping[str, Any], input_: Mapping[str, Any], classes: Sequence[str] | None = None) -> Split:
    """Returns the samples of `open_dataset` fitted to genesis' `input`: its channels and size, float32, normalised.
    Raises DataError."""
    wanted = InputFormat.from_mapping(input_)
    train, test = (
        _fit(part, wanted) for part in open_dataset(data, shape=wanted.shape, classes=classes, table=wanted.table)
    )
    return train, test


def get_classes(data: Mapping[str, Any], task: str = CLASSIFICATION) -> tuple[str, ...]:
    """Returns the list that genesis' `classes` would be for these data alone. Raises DataError."""
    return _number(_open(DataSource.from_mapping(data, task), data), data, task, None)[1]


def measure_target(data: Mapping[str, Any], classes: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Returns the run's `target` for these data alone: each target's mean and deviation over the training samples.
    Raises DataError."""
    split = open_labels(data, classes=classes, task=REGRESSION)
    return TargetScale.measure(np.asarray(split.train_y, np.float64)).to_mapping()


def open_train(data: Mapping[str, Any], task: str = CLASSIFICATION, classes: Sequence[str] | None = None) -> Part:
    """Returns the training part of a data set, with its labels read and its samples not. Raises DataError."""
    return _open(DataSource.from_mapping(data, task, classes), data, with_test=False).train


def open_raw_table(data: Mapping[str, Any], task: str = CLASSIFICATION) -> RawTable | None:
    """Returns the training rows of a table with all their columns, usable for training or not; None where the data are
    no table. Raises DataError."""
    return open_table(DataSource.from_mapping(data, task))


def get_default_input(
    data: Mapping[str, Any],
    model: Mapping[str, Any],
    task: str = CLASSIFICATION,
    classes: Sequence[str] | None = None,
    table: TableInput | None = None,
) -> dict[str, Any]:
    """Returns genesis' `input` for data and a model: the data's own shape, unless the model takes only another one.

    Raises DataError. A model with an unknown name is left for genesis to refuse.
    """
    train = open_train(data, task, classes)
    own = train.measure() if table is None else train.encode(table).shape
    shape: Sequence[int] = own
    if own[1:] != (1, 1):  # features are not resized for a model of images
        with suppress(SpecError):
            shape = fit_input_shape(model, own)
    resize = None if tuple(shape[1:]) == own[1:] else list(shape[1:])
    return {"shape": list(shape), "resize": resize, "mean": [0.0], "std": [1.0]}


def _open(source: DataSource, data: Mapping[str, Any], *, with_test: bool = True) -> Splits:
    """Returns the splits that `data` names, with their labels read. Raises DataError."""
    get_augment(data)
    splits = open_splits(source, with_test=with_test)
    missing = [name for name in source.classes or () if name not in (splits.classes or ())]
    if missing:
        raise DataError(f"data.classes: {source.path or source.format} has no class {missing[0]!r}")
    return splits


def _encode(splits: Splits, table: TableInput) -> Splits:
    test = None if splits.test is None else splits.test.encode(table)
    return replace(splits, train=splits.train.encode(table), test=test)


def _leave_out_unknown(splits: Splits, table: TableInput) -> Splits:
    test = None if splits.test is None else leave_out_unknown(splits.test, table)
    return replace(splits, train=leave_out_unknown(splits.train, table), test=test)


def _number_all(
    splits: Splits,
    data: Mapping[str, Any],
    task: str,
    classes: Sequence[str] | None,
    meaning: Meaning | None = None,
) -> tuple[list[AnyLabels], tuple[str, ...]]:
    """Numbers labels as `_number` does. Raises DataError for a part without samples, too."""
    labels, names = _number(splits, data, task, classes, meaning)
    for part, own in zip(splits.parts, labels, strict=True):
        if not len(own):
            raise DataError(f"{part.place}: expected samples, got none")
    return labels, names


def _number(
    splits: Splits,
    data: Mapping[str, Any],
    task: str,
    classes: Sequence[str] | None,
    meaning: Meaning | None = None,
) -> tuple[list[AnyLabels], tuple[str, ...]]:
    """Returns each part's labels as numbers, and the names of the classes. Raises DataError, also for labels that look
    like measurements where no list of classes is given."""
    if task != CLASSIFICATION:
        return arrange(splits.parts, DataSource.from_mapping(data, task, classes))
    if meaning is not None:
        labels, names = number_by_meaning(splits.parts, splits.classes, meaning)
        return [*labels], names
    if classes is None and splits.classes is None:
        validate_are_classes(splits.parts)
    labels, names = number_labels(splits.parts, splits.classes, classes)
    return [*labels], names


def _read(
    part: Part, sides: Sequence[Labels], shape: Shape | None, cache: ImageCache | None, takes_empty: bool
) -> tuple[list[Samples], tuple[Finding, ...]]:
    """Reads a part's samples, all finite but for empty cells, and returns those of each side separately, with findings
    about what is odd."""
    with translated(part.place):
        if part.images is not None:
            return _read_images(part.images, part, sides, shape, cache)
        x = part.read(shape)
    validate_finite(x, part.locate, takes_empty=takes_empty)
    return [x if len(rows) == len(x) else x[rows] for rows in sides], part.notes


def _read_images(
    images: ImageSet, part: Part, sides: Sequence[Labels], shape: Shape | None, cache: ImageCache | None
) -> tuple[list[Samples], tuple[Finding, ...]]:
    """Reads images as `_read` does, decoding them one by one: each side separately, so that it can be mapped."""
    plan, read, highest = images.plan(shape), list[Samples](), 0.0
    for rows in sides:
        own, own_plan = images.select(rows), replace(plan, count=len(rows))
        x, peak = own.read(own_plan) if cache is None else cache.read(own, own_plan)
        read.append(x)
        highest = max(highest, peak)
    return read, (*part.notes, *images.describe(plan.survey, highest))


def _locate_rows(locate: Locate, rows: Labels) -> Locate:
    return lambda i: locate(int(rows[i]))


def _summarise(part: Part, table: TableInput | None) -> tuple[ColumnSummary, ...]:
    """Returns summaries of the columns that become features; none where the part is no table, or is too large to look
    at."""
    if part.cells is None or len(part.labels) * max(1, part.shape[0]) > MAX_SUMMARISED:
        return ()
    cells = part.cells()
    if table is None:
        return summarise_columns(cells)
    columns = table.choose(list(cells), part.place)
    return summarise_columns(
        {column.name: cells[column.name] for column in columns},
        {column.name: table.get_empty(column) for column in columns},
    )


def _fit(dataset: ArrayDataset, wanted: InputFormat) -> ArrayDataset:
    x = wanted.normalise(fit(dataset.x, wanted.shape))
    return replace(dataset, x=x)
