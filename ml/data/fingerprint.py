"""The fingerprint of a site's data as they were read: the numbers of training and test samples by class, their columns
and a digest of all. Two fingerprints show what has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ml.data.base import ArrayDataset

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The numbers of samples of a training and a test set, in all and by class or label, and a digest of both sets.
    `terms` are those terms of the run that the samples were prepared by; under other terms the same data become other
    samples."""

    samples: tuple[int, int]  # numbers of training and of test samples
    train: Mapping[str, int]
    test: Mapping[str, int]
    columns: tuple[str, ...]
    digest: str
    is_table: bool = False
    terms: str = ""

    @classmethod
    def of(cls, train: ArrayDataset, test: ArrayDataset, terms: str = "") -> Self:
        """Returns the fingerprint of two data sets. Reads everything: about a second for a gigabyte."""
        return cls(
            (len(train), len(test)),
            dict(zip(train.classes, train.count_classes().tolist(), strict=True)),
            dict(zip(test.classes, test.count_classes().tolist(), strict=True)),
            train.features,
            hashlib.sha256((train.sha256 + test.sha256).encode()).hexdigest(),
            train.is_table,
            terms,
        )

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Returns the fingerprint in a mapping. Raises TypeError, ValueError or KeyError."""
        train, test = mapping["samples"]
        return cls(
            (int(train), int(test)),
            dict(mapping["train"]),
            dict(mapping["test"]),
            tuple(mapping["columns"]),
            str(mapping["digest"]),
            bool(mapping["is_table"]),
            str(mapping["terms"]),
        )


def describe_change(before: Fingerprint, after: Fingerprint) -> str | None:
    """Describes the difference, as `200 -> 203 rows, 1 more held out`; None where there is none."""
    if before.digest == after.digest and before.columns == after.columns:
        return None
    noun = "rows" if after.is_table else "samples"
    totals = sum(before.samples), sum(after.samples)
    told = []
    if totals[0] != totals[1]:
        told.append(f"{totals[0]} -> {totals[1]} {noun}")
    if more := after.samples[1] - before.samples[1]:
        told.append(f"{abs(more)} {'more' if more > 0 else 'fewer'} held out")
    if before.terms != after.terms:
        return ", ".join(told) or None
    if before.columns != after.columns:
        told += _describe_columns(before.columns, after.columns)
    elif totals[0] == totals[1]:
        told += _describe_classes(before, after)
    return ", ".join(told) if told else f"{totals[1]} {noun} as before, with other values or in another order"


def _describe_columns(before: tuple[str, ...], after: tuple[str, ...]) -> list[str]:
    added = [f"+{name}" for name in after if name not in before]
    gone = [f"-{name}" for name in before if name not in after]
    return [f"columns {' '.join((added + gone)[:MAX_NAMED])}" if added or gone else "columns in another order"]


def _describe_classes(before: Fingerprint, after: Fingerprint) -> list[str]:
    told = []
    for name in after.train:
        counts = [own.train.get(name, 0) + own.test.get(name, 0) for own in (before, after)]
        if counts[0] != counts[1]:
            told.append(f"{name} {counts[0]} -> {counts[1]}")
    return told[:MAX_NAMED]
