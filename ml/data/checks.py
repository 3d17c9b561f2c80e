"""Checks of data that can be read but may be wrong; they run before anything trains.

Data that cannot be trained on raise DataError in the reader. Data that are reported here can be trained on, but their
figures may mislead:

    files            files that were passed over, and images of several pages or of fewer bits than they claim
    duplicates       the same sample in training and test, which then measures memory; twice in one split; two labels
    near twins       as `ml.data.twins` defines them
    empty classes    a class without training samples, or without test samples; a domain that lacks a class
    constant         samples with one value everywhere, as after a failed export
    scale            floats far from 0..1, such as pixels that were not divided by 255
    tables           findings of `ml.data.table_checks`, `ml.data.column_checks` and, by the cells, `ml.data.columns`
    other tasks      findings of `ml.data.output_checks`, in place of those about classes

A sample's identity is the SHA-256 of its bytes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ml.data.base import ArrayDataset, InputFormat
from ml.data.column_checks import check_columns
from ml.data.columns import check_summaries, find_alike
from ml.data.findings import Finding
from ml.data.fit_input import fit
from ml.data.keys import hash_samples
from ml.data.output_checks import check_outputs
from ml.data.table_checks import FLOAT32_NOISE, check_features, check_labels
from ml.data.twins import check_twins
from ml.tasks import CLASSIFICATION

QUICK_BYTES = 256 << 20  # about 0.3 s of hashing; above that only `fednode data inspect` looks at every sample
_PROBES = 16  # pixels: enough to tell nearly every image from a constant one
_LARGE = 10.0  # floats beyond this are no pixels in 0..1, and hardly normalised ones

_log = logging.getLogger(__name__)


def check_data(
    train: ArrayDataset, test: ArrayDataset, *, input_: InputFormat | None = None, thorough: bool = True
) -> list[Finding]:
    """Returns the findings about a training and a test set, after genesis' `input_` has encoded them where that is
    known. Without `thorough` it looks at labels only, at no sample."""
    found: list[Finding] = []
    if train.task == CLASSIFICATION:
        found += [*_check_classes(train, test), *check_labels(train)]
    else:
        found += check_outputs(train, test)
    found = [*dict.fromkeys((*train.notes, *test.notes)), *found, *check_columns(train, input_)]
    if not thorough:
        found.append(Finding("note", "too large to look at every sample on each start: fednode data inspect does"))
    else:
        found += [*_check_scale(train), *check_summaries(train.columns), *check_features(train, input_)]
        for part in (train, test):
            found += _check_constant(part)
        found += [*_check_duplicates(train, test), *check_twins(train, test)]
    return found


def is_quick(train: ArrayDataset, test: ArrayDataset) -> bool:
    """Says whether a thorough check takes hardly any time."""
    return train.x.nbytes + test.x.nbytes <= QUICK_BYTES


def log_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        _log.log(logging.WARNING if finding.level == "warning" else logging.INFO, "data: %s", finding.text)


def compute_stats(dataset: ArrayDataset, shape: tuple[int, int, int]) -> tuple[list[float], list[float]]:
    """Computes the mean and standard deviation of each channel, over samples fitted to `shape`: values for `input.mean`
    and `input.std`, to six digits of the deviation. A channel without any spread gets deviation 1."""
    total = squares = np.zeros(shape[0], np.float64)
    shift_C11 = np.zeros((shape[0], 1, 1))  # near the mean, so that the squares lose no digits
    count = 0
    for start in range(0, len(dataset), 1024):
        x = fit(dataset.x[start : start + 1024], shape).astype(np.float64)
        if not start:
            shift_C11 = x.mean((0, 2, 3)).reshape(-1, 1, 1)
        x -= shift_C11
        total = total + x.sum((0, 2, 3))
        squares = squares + np.square(x).sum((0, 2, 3))
        count += x.size // shape[0]
    offset = total / max(count, 1)
    mean, std = shift_C11.reshape(-1) + offset, np.sqrt(np.maximum(squares / max(count, 1) - offset**2, 0))
    rounded = [_round_stats(*stats) for stats in zip(mean.tolist(), std.tolist(), strict=True)]
    return [own_mean for own_mean, _ in rounded], [own_std for _, own_std in rounded]


def _round_stats(mean: float, std: float) -> tuple[float, float]:
    if std <= max(1e-12, FLOAT32_NOISE * abs(mean)):
        return float(f"{mean:.9g}"), 1.0
    digits = 5 - math.floor(math.log10(std))
    return round(mean, digits), round(std, digits)


def _check_classes(train: ArrayDataset, test: ArrayDataset) -> Iterable[Finding]:
    in_train, in_test = train.count_classes() > 0, test.count_classes() > 0
    for level, missing, text in (
        ("note", ~in_train & ~in_test, "no sample at all of"),
        ("warning", ~in_train & in_test, f"tested, but without a sample in {train.split}:"),
        ("warning", in_train & ~in_test, f"trained on, but without a sample in {test.split}:"),
    ):
        if missing.any():
            names = ", ".join(train.classes[label] for label in np.flatnonzero(missing))
            yield Finding("note" if level == "note" else "warning", f"{text} {_shorten(names)}")
    for d, name in enumerate(train.domains):
        in_domain = np.bincount(train.y[train.domain_of == d], minlength=len(train.classes)) > 0
        if (in_train & ~in_domain).any():
            names = ", ".join(train.classes[label] for label in np.flatnonzero(in_train & ~in_domain))
            yield Finding("note", f"domain {name} has no training sample of {_shorten(names)}")
    for name, other in find_alike(train.classes):
        yield Finding("warning", f"the classes {name!r} and {other!r} differ by case or blanks only: are they one?")
    if int(in_train.sum()) == 1:
        yield Finding(
            "warning", f"{train.split} has samples of one class alone: {train.classes[int(in_train.argmax())]}"
        )


def _check_scale(train: ArrayDataset) -> Iterable[Finding]:
    if train.x.dtype == np.float32 and train.shape[1:] != (1, 1) and len(train):
        low, high = float(train.x.min()), float(train.x.max())
        if max(-low, high) > _LARGE:
            yield Finding(
                "warning",
                f"{train.origin}: floats from {low:g} to {high:g}: pixels are expected in 0..1, or as uint8",
            )


def _check_constant(part: ArrayDataset) -> Iterable[Finding]:
    if part.shape[1:] == (1, 1) or not len(part):
        return
    size = int(np.prod(part.shape))
    at = np.unique(np.linspace(0, size - 1, _PROBES).astype(np.int64))
    channel, row, column = np.unravel_index(at, part.shape)
    probes = part.x[:, channel, row, column]
    suspects = np.flatnonzero((probes == probes[:, :1]).all(1))
    constant = [i for i in suspects.tolist() if (part.x[i] == part.x[i].flat[0]).all()]
    if constant:
        yield Finding(
            "warning",
            f"{len(constant)} of {part.split} are one value all over, the first is {_locate(part, constant[0])}",
        )


def _check_duplicates(train: ArrayDataset, test: ArrayDataset) -> Iterable[Finding]:
    train_ids, test_ids = hash_samples(train.x), hash_samples(test.x)
    for part, ids in ((train, train_ids), (test, test_ids)):
        first: dict[bytes, int] = {}
        again = [(i, first[own]) for i, own in enumerate(ids) if first.setdefault(own, i) != i]
        if again:
            i, earlier = again[0]
            i_at, earlier_at = _locate_both(part, i, part, earlier)
            yield Finding("warning", f"{len(again)} of {part.split} are there twice, as {i_at} and {earlier_at} are")
        if part.task == CLASSIFICATION:
            yield from _check_labels(part, again)
    place = {own: i for i, own in enumerate(train_ids)}
    shared = [(i, place[own]) for i, own in enumerate(test_ids) if own in place]
    if shared:
        i, twin = shared[0]
        noun = "rows" if test.is_table else "samples"
        i_at, twin_at = _locate_both(test, i, train, twin)
        text = f"{len(shared)} of {len(test)} {noun} of {test.split} are in {train.split} too: {i_at} is {twin_at}"
        yield Finding("warning", text)


def _check_labels(part: ArrayDataset, again: Sequence[tuple[int, int]]) -> Iterable[Finding]:
    other = [(i, earlier) for i, earlier in again if part.y[i] != part.y[earlier]]
    if other:
        i, earlier = other[0]
        names = part.classes[int(part.y[earlier])], part.classes[int(part.y[i])]
        i_at, earlier_at = _locate_both(part, i, part, earlier)
        yield Finding(
            "warning",
            f"{len(other)} of {part.split} have two labels: {earlier_at} is {names[0]!r}, "
            f"and again as {i_at} {names[1]!r}",
        )


def _locate(part: ArrayDataset, i: int) -> str:
    """Returns the place of a sample; its number where its place is not known."""
    return str(i) if part.locate is None else part.locate(i)


def _locate_both(part: ArrayDataset, i: int, other: ArrayDataset, k: int) -> tuple[str, str]:
    """Returns the places of two samples, without the file where it is the same."""
    at, other_at = _locate(part, i), _locate(other, k)
    file = at.rpartition(": ")[0]
    if file and other_at.rpartition(": ")[0] == file:
        return at.rpartition(": ")[2], other_at.rpartition(": ")[2]
    return at, other_at


def _shorten(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
