"""The base of every partition scheme: its parameters and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ml.errors import DataError

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ClientSplit:
    """One client's samples: sorted indices into the training set and into the test set (its matched test), and the
    domain of all of them, or None. If `is_own`, it is a domain of the data set itself, and the samples stay unchanged;
    otherwise they are transformed into it (`ml.data.partition.domain_shift`)."""

    train: Indices
    test: Indices
    domain: str | None = None
    is_own: bool = False

    @property
    def transform(self) -> str | None:
        """The domain that the samples are transformed into, None where they stay unchanged."""
        return None if self.is_own else self.domain


class Scheme(ABC):
    """A rule that deals samples out to clients.

    A scheme is a frozen dataclass. Its parameters are numbers, in the order of the command line, and flags, made by
    `flag`; or one `text`, which is all that follows its name. `parse_partition` reads `str(scheme)`, and
    `partition_from_mapping` reads `to_mapping()`.
    """

    __slots__ = ()
    name: ClassVar[str]
    form: ClassVar[str]  # the name with its numbers

    @abstractmethod
    def deal(self, by_class: Sequence[Indices], num_clients: int, rng: Generator, shots: int | None) -> list[Indices]:
        """Returns the training samples of each client. `by_class[c]` has the samples of class c, shuffled."""

    def match(self, by_class: Sequence[Indices], train_counts_NC: Counts) -> list[Indices]:
        """Returns the matched test samples of each client, from the test set's `by_class`."""
        return cut_like(by_class, train_counts_NC)

    def get_domain(self, client: int) -> str | None:
        """Returns the domain that a client's samples are transformed into."""
        return None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the scheme as `data.partition` of a node's configuration, without flags that have their default."""
        return {"scheme": self.name} | {
            parameter.name: getattr(self, parameter.name)
            for parameter in get_parameters(type(self))
            if not is_flag(parameter) or getattr(self, parameter.name) != parameter.default
        }

    def __str__(self) -> str:
        mapping = self.to_mapping()
        numbers = [show_value(mapping.pop(p.name)) for p in get_parameters(type(self)) if not is_flag(p)]
        flags = [f"{key}={show_value(value)}" for key, value in mapping.items() if key != "scheme"]
        return ":".join([self.name, *([",".join([*numbers, *flags])] if numbers or flags else [])])


def flag(*choices: str | bool, default: str | bool | None) -> Any:
    """Makes a field that is one of `choices`: `key=choice` on the command line."""
    return field(default=default, metadata={"choices": choices})


def is_flag(parameter: Field[Any]) -> bool:
    return "choices" in parameter.metadata


def text() -> Any:
    """Makes a field with a text that the scheme parses."""
    return field(metadata={"text": True})


def is_text(parameter: Field[Any]) -> bool:
    return "text" in parameter.metadata


def get_parameters(scheme: type[Scheme]) -> tuple[Field[Any], ...]:
    """Returns the fields of a scheme, numbers first."""
    return fields(scheme)  # type: ignore[arg-type] # every scheme is a dataclass


def show_value(value: Any) -> str:
    """Formats a parameter for the command line: `0.3`, `5`, `true`, `client`. Reading it returns the same value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def cut_like(by_class: Sequence[Indices], train_counts_NC: Counts, *, at_least_one: bool = True) -> list[Indices]:
    """Cuts each class of the test set by the clients' shares of it in training. With `at_least_one`, an owner whose
    share rounds to nothing gets one sample that another has too (§8.1: at least one per owned class)."""
    parts: list[list[Indices]] = [[] for _ in train_counts_NC]
    for c, samples in enumerate(by_class):
        counts_N = train_counts_NC[:, c]
        if not len(samples) or not counts_N.sum():
            continue
        ends = np.cumsum(counts_N) * len(samples) // counts_N.sum()  # integers: nothing depends on rounding
        for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if counts_N[i] and at_least_one:
                start = min(start, len(samples) - 1)
                parts[i].append(samples[start : max(end, start + 1)])
            elif counts_N[i]:
                parts[i].append(samples[start:end])
    return [join(part) for part in parts]


def share_out(by_class: Sequence[Indices], owned: Sequence[Sequence[int]], shots: int | None = None) -> list[Indices]:
    """Deals each class in equal shares to the clients that have `owned` it, of which each keeps the first `shots`.
    Returns the samples of each client."""
    parts: list[list[Indices]] = [[] for _ in owned]
    for c, samples in enumerate(by_class):
        owners = [i for i, own in enumerate(owned) if c in own]
        for owner, part in zip(owners, np.array_split(samples, max(len(owners), 1)), strict=False):
            parts[owner].append(part[:shots])
    return [join(part) for part in parts]


def flatten(by_class: Sequence[Indices]) -> tuple[Indices, Indices]:
    """Returns all samples sorted by class, and the class of each."""
    return np.concatenate(by_class), np.repeat(np.arange(len(by_class)), [len(samples) for samples in by_class])


def take(samples: Indices, labels: Indices, positions: Indices, shots: int | None) -> Indices:
    """Returns the samples at `positions`, by class, the first `shots` of each."""
    own, own_labels = samples[positions], labels[positions]
    return np.concatenate([own[own_labels == c][:shots] for c in np.unique(own_labels)])


def join(parts: Sequence[Indices]) -> Indices:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def validate_flags(scheme: Scheme) -> None:
    """Raises DataError for a flag that is none of its choices."""
    for parameter in filter(is_flag, get_parameters(type(scheme))):
        value, choices = getattr(scheme, parameter.name), parameter.metadata["choices"]
        if value is not parameter.default and not any(value == c and type(value) is type(c) for c in choices):
            expected = "|".join(map(show_value, choices))
            raise DataError(f"partition: {scheme.name} expects {parameter.name}={expected}, got {value!r}")
