"""The extreme split by label: a few shards of sorted samples each (ALGORITHMS §7.4, McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from ml.data.partition.base import Indices, Scheme, flatten, take
from ml.errors import DataError


@dataclass(frozen=True, slots=True)
class Shards(Scheme):
    """Sorts samples by class, cuts them into shards, and deals `per_client` shards to each client. Shards differ by one
    sample at most. A shard that is no longer than the smallest class has samples of 2 classes at most."""

    name: ClassVar[str] = "shards"
    form: ClassVar[str] = "shards:S"

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise DataError(f"partition: {self.form} expects S >= 1, got {self}")

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        samples, labels = flatten(by_class)
        num_shards = num_clients * self.per_client
        if len(samples) < num_shards:
            raise DataError(
                f"partition: {self} expects a sample for each of {num_shards} shards, got {len(samples)} samples"
            )
        shards = np.array_split(np.arange(len(samples)), num_shards)  # positions in the list sorted by label
        chosen = rng.permutation(num_shards).reshape(num_clients, self.per_client)
        return [take(samples, labels, np.concatenate([shards[s] for s in own]), shots) for own in chosen]
