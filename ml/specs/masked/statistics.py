"""Statistics that members agree on without anybody seeing a single site's: a run of that alone, by masked sums.

All that a site sends are whole numbers, so that the sum of members' vectors has the sums of all sites, to the last
digit: the result is that of the rule `sum` for the same payloads. The vector is 1 if the site sends statistics and 0 if
it does not, followed by the payload's arrays by name. Digits to the base 2^40 have room for the digits of 1,024 members
below 2^62. Validators cannot check a site's own numbers as they check statistics that are in the clear. They check the
sum, which passes if each site's numbers do. `min_count` is enforced by each site for itself.

The run has one round. If its sum is lost, or out of range, it ends without statistics, and members may start another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ml.aggregation.contributed import Contributed
from ml.aggregation.fixed_point import Integers
from ml.aggregation.sums import SQUARE_DIGITS, SUM_DIGITS, from_digits, sum_, to_digits
from ml.errors import PayloadError, SpecError
from ml.payload import KINDS, Array, Arrays
from ml.specs.base import AuthorPayloads, MethodSpec
from ml.specs.masked.aggregate import MASKED, drop_masked
from ml.specs.masked.spec import MaskedSpec
from ml.specs.masked.vectors import Coding
from ml.specs.statistics import STATISTICS, StatisticsSpec, agree, drop_statistics

_DIGITS = {"sums": SUM_DIGITS, "squares": SQUARE_DIGITS, "class_sums": SUM_DIGITS, "class_squares": SQUARE_DIGITS}


def mask_statistics(spec: MethodSpec, rounds: int, input_: Mapping[str, Any]) -> MethodSpec:
    """Returns the spec of a run with masked sums, whose method sends nothing besides what members agree on. Raises
    SpecError."""
    agreed = agree(spec, input_)
    if not isinstance(agreed, StatisticsSpec) or agreed.agreement.is_inherited:
        raise SpecError(
            "method.aggregation",
            f"expected none: {spec.name} sends nothing but what members agree on, with input.normalize: agreed",
        )
    if rounds != 1:
        raise SpecError(
            "rounds",
            f"expected 1 with {spec.name} and aggregation masked_sum, a run of statistics alone, got {rounds}; "
            "training goes into a run of its own",
        )
    return MaskedStatisticsSpec(agreed.task, agreed.hyperparameters, agreed)


class StatisticsCoding(Coding):
    """Encodes a site's statistics as its arrays one after the other, after a number that says whether it sends any."""

    kind = STATISTICS
    names = ("sites", "samples", "counts", "sums", "squares")

    def __init__(self, spec: StatisticsSpec) -> None:
        self._spec = spec
        arrays = spec.statistics_schemas[STATISTICS].arrays
        self._shapes = {name: tuple(map(int, arrays[name].shape)) for name in sorted(arrays)}
        self.size = 1 + sum(map(prod, self._shapes.values()))

    def encode(self, arrays: Arrays, weight: int, bits: int) -> Integers:
        tells = np.array([arrays["count"] > 0], np.int64)
        return np.concatenate([tells, *(arrays[name].reshape(-1) for name in self._shapes)])

    def decode(
        self, total: Integers, weight: int, bits: int, num_authors: int, max_abs: float
    ) -> dict[str, Array] | None:
        """Returns the sums over all sites, as the rule `sum` has them; None if no sites can have this sum. `max_abs`
        limits models and is not used."""
        summed, start = dict[str, Array](), 1
        for name, shape in self._shapes.items():
            summed[name] = total[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        sites, samples = int(total[0]), int(summed["count"])
        least, most = sites * self._spec.agreement.min_count, sites * self._spec.task.max_weight
        if not 0 <= sites <= num_authors or not least <= samples <= most:
            return None
        if any((array < 0).any() for name, array in summed.items() if name not in _DIGITS):
            return None
        for name in _DIGITS.keys() & summed.keys():
            digits = summed[name].reshape(-1, _DIGITS[name])
            carried = to_digits(totals := from_digits(digits), _DIGITS[name])
            if from_digits(carried) != totals:  # a total has too many digits
                return None
            summed[name] = carried.reshape(summed[name].shape)
        try:
            self._spec.validate_sums(summed)
        except PayloadError:
            return None
        return sum_([Contributed(b"", 1, summed)], None) | {"sites": np.array(sites, np.int64)}


@dataclass(frozen=True)
class MaskedStatisticsSpec(MaskedSpec):
    """A run of statistics under masks, whose aggregate keeps the model with which it begins."""

    inner: StatisticsSpec

    def __post_init__(self) -> None:
        if self.inner.inner.schemas(1):
            raise SpecError("method.aggregation", f"expected none of masked_sum: {self.name} sends something besides")

    @cached_property
    def coding(self) -> Coding:
        return StatisticsCoding(self.inner)

    @property
    def fraction_bits(self) -> int:
        """The number of bits after the point: 0, as all numbers are whole."""
        return 0

    @property
    def max_aggregate_bytes(self) -> int:
        return super().max_aggregate_bytes + self.task.initial_schema.max_bytes

    def get_kept(self, height: int) -> Collection[str]:
        return tuple(kind for kind in KINDS if kind != MASKED)

    def combine(self, height: int, contributions: Sequence[AuthorPayloads], parent: Arrays | None) -> dict[str, Array]:
        if parent is None:
            return super().combine(height, contributions, parent)
        model = dict(drop_statistics(drop_masked(parent)) or {})
        before = model | {name: array for name, array in parent.items() if name not in model and height > 1}
        return model | super().combine(height, contributions, before)
