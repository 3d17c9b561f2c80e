"""Several answers for each sample: the labels of a multilabel task, 0 or 1 each, and the targets of a regression.

    columns   of a table, one for each label or target: those that `data.columns.label` lists, or those that are called
              as the run's labels or targets are, or else the one called label
    names     of a multilabel task: one column of text, with the names of the labels that a sample has, separated by
              `;`, and nothing for a sample that has none

Names are matched with the run's, in any order; a single column or target matches the run's only name, whatever it is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ml.data.base import AnyLabels, Outputs
from ml.data.memory import validate_fits
from ml.data.part import Locate, Part
from ml.data.source import DataSource, missing_label
from ml.errors import DataError
from ml.tasks import MULTILABEL, REGRESSION

SEPARATOR = ";"
LocateOne = Callable[[int, int], str]  # an output by its sample and its place among that sample's


def find_columns(source: DataSource, columns: Collection[str], place: object) -> list[str]:
    """Returns the columns with a sample's labels or targets. Raises DataError."""
    wanted = source.labels
    if wanted is None and source.outputs and all(name in columns for name in source.outputs):
        wanted = source.outputs
    if wanted is None and "label" in columns:
        wanted = ("label",)
    if wanted is None:
        raise DataError(missing_label(place, columns))
    for name in wanted:
        if name not in columns:
            raise DataError(f"data.columns.label: {place} has no column {name!r}: {', '.join(columns)}")
    return list(wanted)


def read_text_columns(
    columns: Mapping[str, Sequence[str]], task: str, known: Sequence[str], locate: Locate
) -> tuple[Outputs, tuple[str, ...]]:
    """Reads columns of text into outputs [N, T], and returns these and their names. Raises DataError."""
    if task == MULTILABEL and len(columns) == 1:
        ((_, texts),) = columns.items()
        if not set(texts) <= {"0", "1"}:
            return split_names(texts, known, locate)
    made = {name: _read_numbers(name, texts, locate) for name, texts in columns.items()}
    return stack_outputs(made, task, locate)


def split_names(texts: Sequence[str], known: Sequence[str], locate: Locate) -> tuple[Outputs, tuple[str, ...]]:
    """Reads one column that has the names of each sample's labels into outputs [N, T], and returns these and the names:
    `known` ones or, where none are known, all that occur, sorted. Raises DataError."""
    rows = [[name.strip() for name in text.split(SEPARATOR) if name.strip()] for text in texts]
    names = tuple(known) or tuple(sorted({name for row in rows for name in row}))
    if not names:
        raise DataError(f"{locate(0)}: expected labels separated by {SEPARATOR!r}, and no sample has any")
    place = {name: i for i, name in enumerate(names)}
    validate_fits(8 * len(rows) * len(names), f"{locate(0)}: {len(names)} labels of {len(rows)} rows")
    y_NL = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        for name in row:
            if name not in place:
                raise DataError(f"{locate(i)}: label {name!r} is not one of the run's: {', '.join(names)}")
            y_NL[i, place[name]] = 1.0
    return y_NL, names


def stack_outputs(
    columns: Mapping[str, NDArray[np.generic]], task: str, locate: Locate
) -> tuple[Outputs, tuple[str, ...]]:
    """Stacks columns of numbers into outputs [N, T], and returns these and their names. Raises DataError."""
    y_NT = np.stack([column.astype(np.float64) for column in columns.values()], axis=1)
    names = tuple(columns)
    validate_outputs(y_NT, task, lambda i, t: f"{locate(i)}: column {names[t]!r}")
    return y_NT, names


def validate_outputs(y_NT: Outputs, task: str, locate: LocateOne) -> None:
    """Raises DataError for a label that is neither 0 nor 1, and for a target that is no finite number."""
    if task == REGRESSION:
        is_right = np.abs(y_NT) <= float(np.finfo(np.float32).max)
        expected = "a finite number"
    else:
        is_right = (y_NT == 0) | (y_NT == 1)
        expected = "0 or 1"
    if not is_right.all():
        i, t = (int(n) for n in np.argwhere(~is_right)[0])
        raise DataError(f"{locate(i, t)}: expected {expected}, got {y_NT[i, t]:g}")


def arrange(parts: Sequence[Part], source: DataSource) -> tuple[list[AnyLabels], tuple[str, ...]]:
    """Returns the outputs of each part, in the run's order if that is known, and their names. Raises DataError."""
    names = parts[0].outputs
    for part in parts:
        if part.outputs != names:
            raise DataError(f"{part.place}: expected the columns {', '.join(names)}, got {', '.join(part.outputs)}")
    read: list[AnyLabels] = [np.asarray(part.labels, np.float64) for part in parts]
    wanted = source.outputs or names
    if len(names) == len(wanted) == 1 or names == wanted:
        return read, tuple(wanted)
    if len(names) == len(wanted) and all(name.isdecimal() for name in names):  # an array has no names
        return read, tuple(wanted)
    if sorted(names) != sorted(wanted):
        raise DataError(
            f"{parts[0].place}: expected {len(wanted)} columns, {', '.join(wanted)}, got {len(names)}: "
            f"{', '.join(names)}"
        )
    order = [names.index(name) for name in wanted]
    return [y_NT[:, order] for y_NT in read], tuple(wanted)


def _read_numbers(name: str, texts: Sequence[str], locate: Locate) -> Outputs:
    try:
        return np.array(texts, np.float64)
    except ValueError:
        pass
    for i, text in enumerate(texts):
        try:
            float(text)
        except ValueError:
            raise DataError(f"{locate(i)}: column {name!r}: expected a number, got {text!r}") from None
    raise DataError(f"column {name!r}: expected numbers")
