"""Who gets which samples, when one data set rehearses a federation (ALGORITHMS §7, §8.1).

    classes:AVG,STD   each client owns AVG-STD to AVG+STD classes (FedProto's scheme, which DFPL uses)   §7.1
    dirichlet:ALPHA   each class is cut by Dir(ALPHA), clients being held to about equal sizes           §7.2
    iid               a random permutation cut into equal parts                                          §7.5

Every partition is a function of (labels, parameters, seed) alone. No training sample goes to two clients and no client
is empty. A client's `matched` test set follows its training labels and holds its own classes only; the `global` one is
the whole test set, which needs no partition.

Where we deviate from §7.1: a class's samples are shuffled by the seed before they are dealt out. By default all of a
class is split evenly among its owners (`part.samples: all`); with `shots` each client has a block of its own in every
class, as in the source. The matched test of `classes` is every test sample of the client's classes (§8.1), since
digits have only 36 of each.

Legend: n number of samples, c a class, C their number, N the number of clients, _M indices into the data set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ml.data.base import Labels
from ml.errors import DataError, suggest
from ml.seeding import numpy_rng

Indices = NDArray[np.int64]

MAX_BLOCK = 110  # §7.1: FedProto's stride between two clients' samples of a class
MIN_SAMPLES = 10  # §7.2
_MAX_TRIES = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class ClientSplit:
    """One client's samples: sorted indices into the training set and into the test set (its matched test)."""

    train: Indices
    test: Indices


class Scheme(Protocol):
    """A way to deal samples out. `str(scheme)` is what `parse_partition` reads."""

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        """The training samples of each client. `by_class[c]` holds the samples of class c, shuffled."""
        ...

    def match(self, by_class: Sequence[Indices], train_counts_NC: NDArray[np.int64]) -> list[Indices]:
        """The matched test samples of each client, out of the test set's `by_class`."""
        ...

    def to_mapping(self) -> dict[str, Any]:
        """The scheme as `data.partition` of a node's configuration has it."""
        ...


def make_partition(
    scheme: str | Scheme, train_y: Labels, test_y: Labels, num_clients: int, seed: int, shots: int | None = None
) -> list[ClientSplit]:
    """Deal a training and a test set out to `num_clients` clients. `shots` limits the samples per class of each; under
    `classes` a client draws by how much it differs from it, up to STD.

    Raises DataError when the scheme cannot be met with these labels, or would leave a client without samples.
    """
    if isinstance(scheme, str):
        scheme = parse_partition(scheme)
    if num_clients < 1:
        raise DataError(f"partition: expected at least 1 client, got {num_clients}")
    if shots is not None and shots < 1:
        raise DataError(f"partition: expected at least 1 shot per class, got {shots}")
    if len(train_y) < num_clients:
        raise DataError(
            f"partition: expected at least one sample for each of {num_clients} clients, got {len(train_y)}"
        )
    num_classes = int(train_y.max()) + 1
    rng = numpy_rng("partition", seed)
    train_M = scheme.deal(_shuffle_by_class(train_y, num_classes, rng), num_clients, rng, shots)
    counts_NC = np.stack([np.bincount(train_y[own], minlength=num_classes) for own in train_M])
    test_M = scheme.match(_shuffle_by_class(test_y, num_classes, rng), counts_NC)
    splits = [ClientSplit(np.sort(train), np.sort(test)) for train, test in zip(train_M, test_M, strict=True)]
    _validate(splits, str(scheme))
    return splits


def parse_partition(text: str) -> Scheme:
    """Read `classes:3,1`, `dirichlet:0.3` or `iid`. Raises DataError."""
    name, _, parameters = text.partition(":")
    try:
        numbers = [float(part) for part in parameters.split(",")] if parameters else []
    except ValueError:
        raise DataError(f"partition: expected {_FORMS.get(name, 'SCHEME:NUMBERS')}, got {text!r}") from None
    if name not in _FORMS:
        raise DataError(f"partition: unknown scheme {name!r}: {suggest(name, _FORMS)}")
    if len(numbers) != _FORMS[name].count(",") + (":" in _FORMS[name]):
        raise DataError(f"partition: expected {_FORMS[name]}, got {text!r}")
    if name == "classes":
        return Classes(_read_int(numbers[0], text), _read_int(numbers[1], text))
    return Dirichlet(numbers[0]) if name == "dirichlet" else Iid()


def partition_from_mapping(mapping: Mapping[str, Any]) -> Scheme:
    """The scheme in `{scheme: dirichlet, alpha: 0.3, …}`; other keys are not looked at. Raises DataError."""
    name = mapping.get("scheme")
    keys = {"classes": ("avg", "std"), "dirichlet": ("alpha",), "iid": ()}.get(str(name))
    if keys is None:
        raise DataError(f"data.partition.scheme: unknown scheme {name!r}: {suggest(str(name), _FORMS)}")
    for key in keys:
        value = mapping.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"data.partition.{key}: expected a number, got {value!r}")
    return parse_partition(f"{name}:{','.join(str(mapping[key]) for key in keys)}" if keys else str(name))


def split_from_mapping(mapping: Mapping[str, Any], train_y: Labels, test_y: Labels) -> ClientSplit:
    """The samples that `{scheme: iid, index: 3, of: 4, seed: 7, shots: null}` gives client 3 of 4. Raises DataError."""
    index, of, seed = (_get_int(mapping, key) for key in ("index", "of", "seed"))
    if index >= of:
        raise DataError(f"data.partition.index: expected 0 to {of - 1}, got {index}")
    shots = None if mapping.get("shots") is None else _get_int(mapping, "shots")
    return make_partition(partition_from_mapping(mapping), train_y, test_y, of, seed, shots)[index]


@dataclass(frozen=True, slots=True)
class Classes:
    """§7.1. `std` is a half-width, as in the ancestor's code, and no client owns fewer than 2 classes."""

    avg: int
    std: int

    def __post_init__(self) -> None:
        if self.avg < 2 or self.std < 0:
            raise DataError(f"partition: classes:AVG,STD expects AVG >= 2 and STD >= 0, got {self}")

    def __str__(self) -> str:
        return f"classes:{self.avg},{self.std}"

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        owned = [self._choose_classes(len(by_class), rng) for _ in range(num_clients)]
        parts: list[list[Indices]] = [[] for _ in range(num_clients)]
        if shots is None:
            for c, samples in enumerate(by_class):
                owners = [i for i in range(num_clients) if c in owned[i]]
                for owner, part in zip(owners, np.array_split(samples, max(len(owners), 1)), strict=False):
                    parts[owner].append(part)
        else:
            for i, classes in enumerate(owned):
                draw = int(rng.integers(-self.std + 1, self.std, endpoint=True)) if self.std else 0
                for c in classes:
                    block = min(MAX_BLOCK, len(by_class[c]) // num_clients)
                    size = max(1, min(shots, block - self.std) + draw)
                    parts[i].append(by_class[c][i * block : i * block + min(size, block)])
        return [np.concatenate(part) if part else np.empty(0, np.int64) for part in parts]

    def match(self, by_class: Sequence[Indices], train_counts_NC: NDArray[np.int64]) -> list[Indices]:
        return [
            np.concatenate([samples for samples, count in zip(by_class, counts, strict=True) if count])
            for counts in train_counts_NC
        ]

    def to_mapping(self) -> dict[str, Any]:
        return {"scheme": "classes", "avg": self.avg, "std": self.std}

    def _choose_classes(self, num_classes: int, rng: Generator) -> list[int]:
        low, high = max(2, self.avg - self.std), min(num_classes, self.avg + self.std)
        if low > high:
            raise DataError(f"partition: {self} expects at least {low} classes, got {num_classes}")
        count = int(rng.integers(low, high, endpoint=True))
        return sorted(int(c) for c in rng.choice(num_classes, count, replace=False))


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """§7.2, `part.dirichlet: class` with `part.balance: true`: a client that has its n/N samples gets no more."""

    alpha: float

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise DataError(f"partition: dirichlet:ALPHA expects ALPHA > 0, got {self}")

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}"

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        total = sum(len(samples) for samples in by_class)
        least = min(MIN_SAMPLES, total // num_clients)
        for _ in range(_MAX_TRIES):
            dealt = self._try(by_class, num_clients, total, rng)
            if dealt is not None and min(sum(map(len, parts)) for parts in dealt) >= least:
                return [np.concatenate([part[:shots] for part in parts]) for parts in dealt]
        raise DataError(
            f"partition: {self} gave no {num_clients} clients of at least {least} samples each in {_MAX_TRIES} draws; "
            "expected a larger alpha or fewer clients"
        )

    def match(self, by_class: Sequence[Indices], train_counts_NC: NDArray[np.int64]) -> list[Indices]:
        return _cut_like(by_class, train_counts_NC)

    def to_mapping(self) -> dict[str, Any]:
        return {"scheme": "dirichlet", "alpha": self.alpha}

    def _try(
        self, by_class: Sequence[Indices], num_clients: int, total: int, rng: Generator
    ) -> list[list[Indices]] | None:
        """By client, its part of each class; None when Dir(alpha) underflowed to nothing for those with room left."""
        parts: list[list[Indices]] = [[] for _ in range(num_clients)]
        sizes = np.zeros(num_clients, np.int64)
        for samples in by_class:
            shares = rng.dirichlet(np.full(num_clients, self.alpha)) * (sizes * num_clients < total)
            if not shares.sum() > 0:
                return None
            shares /= shares.sum()
            cuts = np.floor(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
            for i, part in enumerate(np.split(rng.permutation(samples), cuts)):
                parts[i].append(part)
                sizes[i] += len(part)
        return parts


@dataclass(frozen=True, slots=True)
class Iid:
    """§7.5."""

    def __str__(self) -> str:
        return "iid"

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        labels = np.concatenate([np.full(len(samples), c) for c, samples in enumerate(by_class)])
        order = rng.permutation(len(labels))
        samples = np.concatenate(list(by_class))
        dealt = []
        for part in np.array_split(order, num_clients):
            kept = [part[labels[part] == c][:shots] for c in range(len(by_class))]
            dealt.append(samples[np.concatenate(kept)])
        return dealt

    def match(self, by_class: Sequence[Indices], train_counts_NC: NDArray[np.int64]) -> list[Indices]:
        return _cut_like(by_class, train_counts_NC)

    def to_mapping(self) -> dict[str, Any]:
        return {"scheme": "iid"}


_FORMS = {"classes": "classes:AVG,STD", "dirichlet": "dirichlet:ALPHA", "iid": "iid"}


def _shuffle_by_class(y_N: Labels, num_classes: int, rng: Generator) -> list[Indices]:
    return [rng.permutation(np.flatnonzero(y_N == c)) for c in range(num_classes)]


def _cut_like(by_class: Sequence[Indices], train_counts_NC: NDArray[np.int64]) -> list[Indices]:
    """Cut each class of the test set by the clients' shares of it in training; an owner whose share rounds to nothing
    is given one sample that another has too (§8.1: at least one per owned class)."""
    parts: list[list[Indices]] = [[] for _ in train_counts_NC]
    for c, samples in enumerate(by_class):
        counts_N = train_counts_NC[:, c]
        if not len(samples) or not counts_N.sum():
            continue
        ends = np.cumsum(counts_N) * len(samples) // counts_N.sum()  # integers: nothing depends on rounding
        for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if counts_N[i]:
                start = min(start, len(samples) - 1)
                parts[i].append(samples[start : max(end, start + 1)])
    return [np.concatenate(part) if part else np.empty(0, np.int64) for part in parts]


def _validate(splits: Sequence[ClientSplit], scheme: str) -> None:
    for i, split in enumerate(splits):
        if not len(split.train) or not len(split.test):
            raise DataError(
                f"partition: {scheme} over {len(splits)} clients leaves client {i} with {len(split.train)} training "
                f"and {len(split.test)} test samples; expected at least one of each"
            )
    everyone = np.concatenate([split.train for split in splits])
    if len(np.unique(everyone)) != len(everyone):
        raise DataError(f"partition: {scheme} over {len(splits)} clients gave a training sample to two of them")


def _get_int(mapping: Mapping[str, Any], key: str) -> int:
    value = mapping.get(key)
    if type(value) is not int or value < 0:
        raise DataError(f"data.partition.{key}: expected a whole number, got {value!r}")
    return value


def _read_int(number: float, text: str) -> int:
    if not number.is_integer():
        raise DataError(f"partition: expected whole numbers, got {text!r}")
    return int(number)
