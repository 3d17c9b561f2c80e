"""Labels as numbers: a source's own classes, or those of genesis' list, matched by name.

Where a class of genesis lists labels (`{no: [0], yes: [1, 2]}`) these replace its name in the data.

Whole numbers without names stand for the classes of those names where genesis' classes are numbers too ("0", "1", …),
and are indices into its list otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml.data.base import AnyLabels, Labels
from ml.data.cells import hint_at_like, tidy
from ml.data.memory import validate_fits
from ml.data.part import Part
from ml.data.source import SHARE
from ml.errors import DataError
from ml.seeding import numpy_rng

MAX_CLASSES = 65_536
MAX_TABLE_CLASSES = 100  # different labels of a table without a list of classes
IS_REGRESSION = "; is this a regression? task: regression learns numbers"
BOOLEANS = ("False", "True")  # the classes of a column of truth values, as pandas writes them
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def number_labels(
    parts: Sequence[Part], names: Sequence[str] | None, classes: Sequence[str] | None
) -> tuple[list[Labels], tuple[str, ...]]:
    """Returns each part's labels as indices into the classes, and the classes: `classes` if given, and the source's own
    otherwise.

    The source's own are `names`, or else the labels that occur, sorted; numbers count from 0 to the largest, or from 1
    where no 0 occurs. Raises DataError with the place of the first label that has no class.
    """
    if names is None and classes is not None and tuple(classes) == ("0", "1"):
        parts = [_count_booleans(part) for part in parts]
    if names is None and all(part.labels.dtype.kind in "iu" or are_numbers(np.unique(part.labels)) for part in parts):
        labels = [part.labels.astype(np.int64) for part in parts]
        return _number_integers(parts, labels, classes)
    if any(part.labels.dtype.kind == "U" for part in parts):
        labels, names = _number_names(parts, names)
    else:
        labels = [part.labels.astype(np.int64) for part in parts]
    assert names is not None  # noqa: S101 - given, or made of the labels
    for part, own in zip(parts, labels, strict=True):
        _validate_range(part, own, 0, len(names) - 1)
    if classes is None or tuple(classes) == tuple(names):
        return labels, tuple(names)
    index = {tidy(name): i for i, name in enumerate(classes)} | {name: i for i, name in enumerate(classes)}
    table = np.array([index.get(name, index.get(tidy(name), -1)) for name in names], np.int64)
    numbered = [table[own] for own in labels]
    for part, own, made in zip(parts, labels, numbered, strict=True):
        if len(made) and made.min() < 0:
            i = int(np.argmin(made))
            raise DataError(
                f"{part.locate(i)}: class {names[int(own[i])]!r} is not one of genesis' classes: {_list(classes)}"
                f"{hint_at_like(names[int(own[i])], classes)}"
            )
    return numbered, tuple(classes)


def number_by_meaning(
    parts: Sequence[Part], names: Sequence[str] | None, classes: Mapping[str, Sequence[str]]
) -> tuple[list[Labels], tuple[str, ...]]:
    """Returns each part's labels as indices into the classes, each of which lists the labels that stand for it. A whole
    number is the same however it is written. Raises DataError with the place of the first label that stands for
    none."""
    labels, own = number_labels(parts, names, None)
    place = {_unify(label): i for i, meaning in enumerate(classes.values()) for label in meaning}
    table = np.array([place.get(_unify(name), -1) for name in own], np.int64)
    numbered = [table[own_labels] for own_labels in labels]
    for part, raw, made in zip(parts, labels, numbered, strict=True):
        if len(made) and made.min() < 0:
            i = int(np.argmin(made))
            meant = "; ".join(f"{name}: {', '.join(meaning)}" for name, meaning in classes.items())
            like = hint_at_like(own[int(raw[i])], (label for meaning in classes.values() for label in meaning))
            raise DataError(f"{part.locate(i)}: label {own[int(raw[i])]!r} means no class of genesis ({meant}){like}")
    return numbered, tuple(classes)


def _unify(label: str) -> str:
    """Returns a label unchanged, or in the usual spelling of a whole number."""
    label = tidy(label)
    try:
        number = float(label)
    except ValueError:
        return label
    return str(int(number)) if number.is_integer() else label


def to_text(names: Sequence[str], place: str) -> NDArray[np.str_]:
    """Returns names of classes as an array, in which each takes as much room as the longest. Raises DataError where
    that is more than there is."""
    validate_fits(4 * len(names) * max(map(len, names), default=0), place)
    return np.array(names, np.str_)


def validate_are_classes(parts: Sequence[Part]) -> None:
    """Raises DataError where a table's labels, without a list of classes, look like measurements or identifiers."""
    if not parts or parts[0].shape[1:] != (1, 1):
        return
    place, labels = (
        parts[0].place,
        np.unique(np.concatenate([np.unique(part.labels).astype(np.str_) for part in parts])),
    )
    shown = f"such as {labels[0]} and {labels[-1]}"
    if _has_fractions(labels.tolist()):
        raise DataError(
            f"{place}: the labels are {len(labels)} numbers that are not whole, {shown}{IS_REGRESSION}: name another "
            "column by data.columns.label, or give ranges of the numbers names"
        )
    if len(labels) > MAX_TABLE_CLASSES:
        raise DataError(
            f"{place}: the labels have {len(labels)} different values, {shown}{IS_REGRESSION}: name another column by "
            "data.columns.label, or list the classes, if these are (--set classes=[…], data.classes)"
        )


def _has_fractions(labels: Sequence[str]) -> bool:
    """Says whether all labels are finite numbers, and some of them not whole."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return False
    return all(map(math.isfinite, numbers)) and not all(map(float.is_integer, numbers))


def are_numbers(names: Iterable[object]) -> bool:
    """Says whether these names of classes are whole numbers in their usual spelling."""
    return all(_NUMBER.fullmatch(str(name)) for name in names)


def choose_held_out(y_N: AnyLabels) -> NDArray[np.bool_]:
    """Returns a mask of the samples that test a source without a test set: a fifth of each class, at least one of two,
    the same samples on each call. Of labels or targets [N, T] it is a fifth of all."""
    if y_N.ndim == 2:
        y_N = np.zeros(len(y_N), np.int64)
    is_test = np.zeros(len(y_N), np.bool_)
    rng = numpy_rng("held out")
    for label in np.unique(y_N):
        of_class = rng.permutation(np.flatnonzero(y_N == label))
        count = max(round(SHARE * len(of_class)), int(len(of_class) > 1))
        is_test[of_class[:count]] = True
    return is_test


def _number_integers(
    parts: Sequence[Part], labels: Sequence[Labels], classes: Sequence[str] | None
) -> tuple[list[Labels], tuple[str, ...]]:
    for part, own in zip(parts, labels, strict=True):
        _validate_range(part, own, 0, MAX_CLASSES - 1)
    if classes is None:
        present = [own for own in labels if len(own)]
        first = 1 if present and min(int(own.min()) for own in present) == 1 else 0
        last = max((int(own.max()) for own in present), default=-1)
        return [own - first for own in labels], tuple(str(label) for label in range(first, last + 1))
    if not are_numbers(classes):
        for part, own in zip(parts, labels, strict=True):
            _validate_range(part, own, 0, len(classes) - 1)
        return list(labels), tuple(classes)
    table = np.full(MAX_CLASSES, -1, np.int64)
    for i, name in enumerate(classes):
        if int(name) < MAX_CLASSES:
            table[int(name)] = i
    numbered = [table[own] for own in labels]
    for part, own, made in zip(parts, labels, numbered, strict=True):
        if len(made) and made.min() < 0:
            i = int(np.argmin(made))
            raise DataError(f"{part.locate(i)}: label {int(own[i])} is not one of genesis' classes: {_list(classes)}")
    return numbered, tuple(classes)


def _count_booleans(part: Part) -> Part:
    """Returns the part with truth values as 0 and 1, where these are the names of the classes."""
    if part.labels.dtype.kind != "U" or not np.isin(part.labels, BOOLEANS).all():
        return part
    return replace(part, labels=(part.labels == BOOLEANS[1]).astype(np.int64))


def _number_names(parts: Sequence[Part], names: Sequence[str] | None) -> tuple[list[Labels], tuple[str, ...]]:
    texts = [part.labels.astype(np.str_) for part in parts]
    if names is None:
        names = sorted({str(name) for own in texts for name in np.unique(own)})
    index = {name: i for i, name in enumerate(names)}
    labels = []
    for part, own in zip(parts, texts, strict=True):
        distinct, inverse = np.unique(own, return_inverse=True)
        numbers = np.array([index.get(str(name), -1) for name in distinct], np.int64)[inverse]
        if len(numbers) and numbers.min() < 0:
            i = int(np.argmin(numbers))
            raise DataError(f"{part.locate(i)}: class {str(own[i])!r} is not one of the data's own: {_list(names)}")
        labels.append(numbers)
    return labels, tuple(names)


def _validate_range(part: Part, labels: Labels, first: int, last: int) -> None:
    if len(labels) and not first <= int(labels.min()) <= int(labels.max()) <= last:
        i = int(np.argmax((labels < first) | (labels > last)))
        raise DataError(f"{part.locate(i)}: expected a label from {first} to {last}, got {int(labels[i])}")


def _list(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:12])
    return shown if len(classes) <= 12 else f"{shown}, … ({len(classes)})"
