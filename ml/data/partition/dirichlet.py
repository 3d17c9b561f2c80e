"""Label skew by a Dirichlet distribution, drawn for each class or for each client (ALGORITHMS §7.2).

The class form is MOON's and FedPCL's: a class is cut by p ~ Dir(ALPHA 1_N) among the clients. The client form is that
of Hsu, Qi and Brown (Measuring the effects of non-identical data distribution, 2019): a client's mixture of classes is
q_i ~ Dir(ALPHA 1_C), and every client draws n/N samples by it, without replacement.

Where we deviate from the client form as described there: clients take their samples one at a time and in random turns,
so that all of them, not the last one, get what others have left over. A class without samples left is drawn no more,
which renormalises q_i over the others; where those have no weight in q_i, any remaining sample is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator

from ml.data.partition.base import Indices, Scheme, flag, validate_flags
from ml.errors import DataError

MIN_SAMPLES = 10
_MAX_TRIES = 1_000


@dataclass(frozen=True, slots=True)
class Dirichlet(Scheme):
    """Deals samples by shares drawn from Dir(alpha), for each class or for each client. With `balance`, which the class
    form has, a client that holds its n/N samples gets no more."""

    name: ClassVar[str] = "dirichlet"
    form: ClassVar[str] = "dirichlet:ALPHA"

    alpha: float
    per: Literal["class", "client"] = flag("class", "client", default="class")
    balance: bool = flag(True, False, default=True)

    def __post_init__(self) -> None:
        validate_flags(self)
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise DataError(f"partition: {self.form} expects ALPHA > 0, got {self}")
        if self.per == "client" and not self.balance:
            raise DataError(
                f"partition: clients of per=client are of equal size, expected no balance=false, got {self}"
            )

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        total = sum(len(samples) for samples in by_class)
        if self.per == "client":
            return [
                np.concatenate([part[:shots] for part in parts])
                for parts in self._deal_by_client(by_class, num_clients, rng)
            ]
        least = min(MIN_SAMPLES, total // num_clients)
        for _ in range(_MAX_TRIES):
            dealt = self._deal_by_class(by_class, num_clients, total, rng)
            if dealt is not None and min(sum(map(len, parts)) for parts in dealt) >= least:
                return [np.concatenate([part[:shots] for part in parts]) for parts in dealt]
        raise DataError(
            f"partition: {self} gave no {num_clients} clients of at least {least} samples each in {_MAX_TRIES} draws; "
            "expected a larger alpha or fewer clients"
        )

    def _deal_by_class(
        self, by_class: Sequence[Indices], num_clients: int, total: int, rng: Generator
    ) -> list[list[Indices]] | None:
        """Returns each client's part of each class; None when Dir(alpha) underflowed to zero for all clients with room
        left."""
        parts: list[list[Indices]] = [[] for _ in range(num_clients)]
        sizes = np.zeros(num_clients, np.int64)
        for samples in by_class:
            shares = rng.dirichlet(np.full(num_clients, self.alpha))
            if self.balance:
                shares *= sizes * num_clients < total
            if not shares.sum() > 0:
                return None
            shares /= shares.sum()
            cuts = np.floor(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
            for i, part in enumerate(np.split(rng.permutation(samples), cuts)):
                parts[i].append(part)
                sizes[i] += len(part)
        return parts

    def _deal_by_client(self, by_class: Sequence[Indices], num_clients: int, rng: Generator) -> list[list[Indices]]:
        """Returns each client's part of each class."""
        left_C = np.array([len(samples) for samples in by_class])
        q_NC = rng.dirichlet(np.full(len(by_class), self.alpha), num_clients)
        turns = rng.permutation(np.arange(left_C.sum()) % num_clients)
        dealt_NC = np.zeros(q_NC.shape, np.int64)
        ends_NC = _accumulate(q_NC, left_C)
        for i, u in zip(turns.tolist(), rng.random(len(turns)).tolist(), strict=True):
            ends_C = ends_NC[i]
            # The first class that ends beyond u; u may round up to 1, the end of the last that has any weight.
            c = min(ends_C.searchsorted(u * ends_C[-1], "right"), ends_C.searchsorted(ends_C[-1]))
            dealt_NC[i, c] += 1
            left_C[c] -= 1
            if not left_C[c]:
                ends_NC = _accumulate(q_NC, left_C)
        by_class_ends = np.cumsum(dealt_NC, 0)
        cut = [np.split(samples, by_class_ends[:-1, c]) for c, samples in enumerate(by_class)]
        return [[parts[i] for parts in cut] for i in range(num_clients)]


def _accumulate(
    q_NC: np.ndarray[tuple[int, int], np.dtype[np.float64]], left_C: Indices
) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Returns the cumulated weights of each client over the classes that have samples left."""
    weights_NC = q_NC * (left_C > 0)
    weights_NC[weights_NC.sum(1) == 0] = left_C
    return list(np.cumsum(weights_NC, 1))
