"""Equal parts of a random permutation: `iid` (ALGORITHMS §7.5), and `domains`, which adds skew of features (§7.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from ml.data.partition.base import Counts, Indices, Scheme, cut_like, flatten, take
from ml.data.partition.domain_shift import DOMAINS


@dataclass(frozen=True, slots=True)
class Iid(Scheme):
    """Deals samples in random parts, whose sizes differ by one sample at most."""

    name: ClassVar[str] = "iid"
    form: ClassVar[str] = "iid"

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        samples, labels = flatten(by_class)
        parts = np.array_split(rng.permutation(len(samples)), num_clients)
        return [take(samples, labels, part, shots) for part in parts]


@dataclass(frozen=True, slots=True)
class Domains(Scheme):
    """Deals the parts of `iid`, and puts client i's in domain i mod 5. No test sample matches two clients, so that each
    has one domain in the global test set too. Data with domains of their own are dealt by `own_domains` instead."""

    name: ClassVar[str] = "domains"
    form: ClassVar[str] = "domains"

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        return Iid().deal(by_class, num_clients, rng, shots)

    def match(self, by_class: Sequence[Indices], train_counts_NC: Counts) -> list[Indices]:
        return cut_like(by_class, train_counts_NC, at_least_one=False)

    def get_domain(self, client: int) -> str:
        return DOMAINS[client % len(DOMAINS)]
