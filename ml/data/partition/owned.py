"""The classes of each client, listed: `owned:0+1,0+1,2+3,2+3`, for the four clients of UA-PDFL's figure 4."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from numpy.random import Generator

from ml.data.partition.base import Counts, Indices, Scheme, join, share_out, text
from ml.errors import DataError

_LISTS = re.compile(r"\d{1,6}(\+\d{1,6})*(,\d{1,6}(\+\d{1,6})*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Owned(Scheme):
    """Deals each class in equal shares to the clients that list it; a class that no client lists is not dealt."""

    name: ClassVar[str] = "owned"
    form: ClassVar[str] = "owned:C+C,C+C,…"

    classes: str = text()  # numbers of classes, joined by + for a client, with commas between clients

    def __post_init__(self) -> None:
        if _LISTS.fullmatch(self.classes) is None:
            raise DataError(f"partition: expected {self.form}, the classes of each client by number, got {self}")
        for i, own in enumerate(self._list_classes()):
            if len(set(own)) < len(own):
                raise DataError(f"partition: expected each class once for a client, got {self.classes} (client {i})")

    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        owned = self._list_classes()
        if len(owned) != num_clients:
            raise DataError(f"partition: {self} is for {len(owned)} clients, got {num_clients}")
        if (most := max(map(max, owned))) >= len(by_class):
            raise DataError(f"partition: {self} expects a class {most}, got classes 0 to {len(by_class) - 1}")
        return share_out(by_class, owned, shots)

    def match(self, by_class: Sequence[Indices], train_counts_NC: Counts) -> list[Indices]:
        """Returns all test samples of each client's classes, as the scheme `classes` does."""
        return [join([by_class[c] for c in own]) for own in self._list_classes()]

    def _list_classes(self) -> list[list[int]]:
        return [[int(c) for c in own.split("+")] for own in self.classes.split(",")]
