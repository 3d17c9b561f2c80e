"""Each client owns some classes: FedProto's scheme, by which DFPL describes its skew (ALGORITHMS §7.1).

Where we deviate: a class's samples are shuffled by the seed before they are dealt out. By default all of a class is
split evenly among its owners (`samples=all`); with `shots` each client has a block of its own in every class, as in
the source. The matched test is every test sample of the client's classes (§8.1), since digits have only 36 of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator

from ml.data.partition.base import Counts, Indices, Scheme, flag, join, share_out, validate_flags
from ml.errors import DataError

MAX_BLOCK = 110  # FedProto's stride between two clients' samples of a class
DEFAULT_SHOTS = 100
_MAX_TRIES = 10_000


@dataclass(frozen=True, slots=True)
class Classes(Scheme):
    """Deals each client about `avg` classes. `std` is a half-width, as in the ancestor's code (§11, D11), unless
    `count` is `normal`; no client owns fewer than 2 classes. `samples` follows the run's `shots` by default: all of a
    class, or that many."""

    name: ClassVar[str] = "classes"
    form: ClassVar[str] = "classes:AVG,STD"

    avg: int
    std: int
    count: Literal["uniform", "normal"] = flag("uniform", "normal", default="uniform")
    samples: Literal["all", "shots"] | None = flag("all", "shots", default=None)
    cover: bool = flag(True, False, default=False)

    def __post_init__(self) -> None:
        validate_flags(self)
        if self.avg < 2 or self.std < 0:
            raise DataError(f"partition: {self.form} expects AVG >= 2 and STD >= 0, got {self}")

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        if self.samples == "all" and shots is not None:
            raise DataError(f"partition: {self} deals all samples of a class, expected no shots, got {shots}")
        if self.samples == "shots" and shots is None:
            shots = DEFAULT_SHOTS
        owned = self._assign(len(by_class), num_clients, rng)
        if shots is None:
            return share_out(by_class, owned)
        parts: list[list[Indices]] = [[] for _ in range(num_clients)]
        for i, classes in enumerate(owned):
            draw = int(rng.integers(-self.std + 1, self.std, endpoint=True)) if self.std else 0
            for c in classes:
                block = min(MAX_BLOCK, len(by_class[c]) // num_clients)
                size = max(1, min(shots, block - self.std) + draw)
                parts[i].append(by_class[c][i * block : i * block + min(size, block)])
        return [join(part) for part in parts]

    def match(self, by_class: Sequence[Indices], train_counts_NC: Counts) -> list[Indices]:
        return [
            np.concatenate([samples for samples, count in zip(by_class, counts, strict=True) if count])
            for counts in train_counts_NC
        ]

    def get_support(self, num_classes: int) -> tuple[int, int]:
        """Returns the least and the greatest number of classes that a client may own. Raises DataError when there is
        none."""
        if self.count == "normal":
            low, high = 2, num_classes
        else:
            low, high = max(2, self.avg - self.std), min(num_classes, self.avg + self.std)
        if low > high:
            raise DataError(f"partition: {self} expects at least {low} classes, got {num_classes}")
        return low, high

    def _assign(self, num_classes: int, num_clients: int, rng: Generator) -> list[list[int]]:
        """Draws the classes of each client."""
        _, high = self.get_support(num_classes)
        if self.cover and num_clients * high < num_classes:
            raise DataError(
                f"partition: {self} gives {num_clients} clients at most {num_clients * high} classes, "
                f"expected enough to cover {num_classes}"
            )
        for _ in range(_MAX_TRIES if self.cover else 1):
            owned = [self._choose_classes(num_classes, rng) for _ in range(num_clients)]
            if not self.cover or len(set().union(*owned)) == num_classes:
                return owned
        raise DataError(
            f"partition: {self} covered all {num_classes} classes with {num_clients} clients in none of {_MAX_TRIES} "
            "draws; expected more clients or classes per client"
        )

    def _choose_classes(self, num_classes: int, rng: Generator) -> list[int]:
        low, high = self.get_support(num_classes)
        if self.count == "normal":
            count = int(np.clip(np.rint(rng.normal(self.avg, self.std)), low, high))
        else:
            count = int(rng.integers(low, high, endpoint=True))
        return sorted(int(c) for c in rng.choice(num_classes, count, replace=False))
