"""Agreed statistics: a run's first round, in which members add up what normalises everyone's samples.

Each site sends how many training samples it has and, for each channel of an image or feature of a table, the sum of the
values and of their squares. If the run asks for class counts, it also sends how many samples each class has. If empty
cells of a table are filled by the mean, sums are over the cells that are there, and each site sends how many these are,
feature by feature. For a column with `edges` it sends how many values are in each bin between them. If the run asks for
correlations, it sends for each class what it sends for all (`ml.specs.correlations`). The mean and the deviation of all
follow from the sums, for anyone who has them. They stay in every later aggregate of the run, so that everyone who has
one, a late joiner too, has the constants. A run that continues with `normalize: inherited` takes over those of the run
before, and has no such round.

Every method gets it without code of its own: here is a spec around the method's own, whose rounds come one later. In
that round nothing is trained, weights are 1, and the aggregate keeps the initial model beside the statistics.

If samples are hidden, values count within bounds that the run's input names, and the sums and counts have noise
(`ml.data.hidden_statistics`). The results are again sums that some samples can have, so that validators check them in
the same way.

What a site may send about few samples is bounded: `count` is 0, and all else is too, or at least `min_count`. The same
holds for each class, for the samples whose class is not sent, and for how many cells of a feature are there, in all and
in each class. Rounded down to a multiple of `min_count` are the number of values in a bin, and, if empty cells are
filled by the mean or sums are sent by class, the number of rows with a value of a category.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from ml.aggregation import RuleSettings
from ml.aggregation.sums import (
    BASE,
    CLASS_PRESENT,
    CLASS_SQUARES,
    CLASS_SUMS,
    LIMIT_BITS,
    PER_BIN,
    PER_CLASS,
    PRESENT,
    SQUARE_DIGITS,
    SUM_DIGITS,
    UNIT_BITS,
    from_digits,
)
from ml.errors import PayloadError, SpecError
from ml.payload import KINDS, Array, Arrays, ArraySchema, ArraySpec
from ml.plugins import PluginRecord
from ml.specs.base import Judging, MethodSpec, RoundKinds
from ml.specs.hyperparameters import MAX_COUNT
from ml.specs.selection import Authors, Offers
from ml.specs.sharing import AggregationHyperparameters
from ml.specs.statistics_checks import validate_by_class, validate_counts, validate_statistics
from ml.tasks import CLASSIFICATION

STATISTICS = "statistics"  # the kind
AGREED, INHERITED = "agreed", "inherited"
MIN_COUNT = 5
MAX_BOUND = 1 << (LIMIT_BITS - 1)  # of `low` and `high`: sums have room for values between them, and for their squares


@dataclass(frozen=True, slots=True)
class Agreement:
    """Holds what the run's `input` says about statistics. `min_count` is the fewest samples about which a site sends
    anything. `class_counts` says whether sites count classes, and `is_inherited` whether the sums are those of the run
    before. `bounds` are the least and the greatest value of each channel, None if they are unknown. `counts_present`
    says whether cells may be empty, so that each site sends how many are there. `edges` divide the values of each
    feature into bins, empty if a feature has none. `categories` are the features of each category, if cells may be
    empty or `correlations` are asked for, so that sums are sent by class."""

    min_count: int = MIN_COUNT
    class_counts: bool = False
    is_inherited: bool = False
    bounds: tuple[tuple[float, float], ...] | None = None
    counts_present: bool = False
    edges: tuple[tuple[float, ...], ...] = ()
    categories: tuple[range, ...] = ()
    correlations: bool = False

    @property
    def num_bins(self) -> int:
        """The number of bins of all features together."""
        return sum(len(edges) + 1 for edges in self.edges if edges)

    @classmethod
    def from_input(cls, input_: Mapping[str, Any]) -> Self | None:
        """Reads the run's `input`; None if that has constants. Raises SpecError."""
        match input_.get("normalize"):
            case None:
                return None
            case "agreed" | "inherited" as word:
                min_count = input_.get("min_count", MIN_COUNT)
                if type(min_count) is not int or not 1 <= min_count < MAX_COUNT:
                    raise SpecError("input.min_count", f"expected a whole number from 1, got {min_count!r}")
                counts = bool(input_.get("class_counts", False))
                is_filled = str(input_.get("missing", "")).startswith("mean")
                correlations = bool(input_.get("correlations", False))
                categories = read_categories(input_) if is_filled or correlations else ()
                return cls(
                    min_count,
                    counts,
                    word == INHERITED,
                    _read_bounds(input_),
                    is_filled,
                    read_edges(input_),
                    categories,
                    correlations,
                )
            case other:
                raise SpecError("input.normalize", f"expected {AGREED} or {INHERITED}, got {other!r}")


def read_categories(input_: Mapping[str, Any]) -> tuple[range, ...]:
    """Lists the places of the features that each category has become."""
    return tuple(places for column, places, _ in _place_columns(input_) if column.get("values"))


def read_edges(input_: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    """Lists the edges between the bins of each feature of a table; () if there is no histogram."""
    found: list[tuple[float, ...]] = []
    for column, places, num_flags in _place_columns(input_):
        edges = () if column.get("values") else tuple(map(float, column.get("edges") or ()))
        found += [edges, *[()] * (len(places) - 1 + num_flags)]
    return tuple(found) if any(found) else ()


def _place_columns(input_: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], range, int]]:
    """Yields each column of a table, the places of the features that its values become, and how many flags come after
    them."""
    others = int(input_.get("unknown") == "other")
    num_flags = int(str(input_.get("missing", "")).endswith("+flag"))
    start = 0
    for column in input_.get("columns") or ():
        size = len(column["values"]) + others if column.get("values") else 1
        yield column, range(start, start + size), num_flags
        start += size + num_flags


def _read_bounds(input_: Mapping[str, Any]) -> tuple[tuple[float, float], ...] | None:
    """Reads the bounds of each channel; None if there are none. Raises SpecError."""
    shape = input_.get("shape") or (0, 0, 0)
    lows, highs = input_.get("low"), input_.get("high")
    if lows is None and highs is None:
        return ((0.0, 1.0),) * shape[0] if math.prod(shape[1:]) > 1 else None
    pairs = [_read_ends(key, values, shape[0]) for key, values in (("low", lows), ("high", highs))]
    if any(low >= high for low, high in zip(*pairs, strict=True)):
        raise SpecError("input.high", f"expected numbers above those of input.low, got {highs!r}")
    return tuple(zip(*pairs, strict=True))


def _read_ends(key: str, values: Any, num_channels: int) -> list[float]:
    if not isinstance(values, list | tuple) or len(values) not in (1, num_channels):
        raise SpecError(f"input.{key}", f"expected 1 number or {num_channels}, got {values!r}")
    if not all(type(value) in (int, float) and abs(value) < MAX_BOUND for value in values):
        raise SpecError(f"input.{key}", f"expected numbers below 2^{LIMIT_BITS - 1} either way, got {values!r}")
    numbers = [float(value) for value in values]
    return numbers if len(numbers) == num_channels else numbers * num_channels


@dataclass(frozen=True, slots=True)
class Constants:
    """Holds the agreed mean and deviation of each channel; without spread the deviation is 1. `classes` is how many
    samples each class has, None if the run does not count them. `sites` have sent sums of `samples`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    sites: int
    samples: int
    classes: tuple[int, ...] | None = None

    @classmethod
    def from_arrays(cls, arrays: Arrays, num_values: int) -> Self:
        """Computes the constants from the statistics in an aggregate; each sample has `num_values` of a channel.
        Quotients of integers are rounded once, and so are the same on every machine."""
        told = zip(arrays["counts"].tolist(), *map(from_digits, (arrays["sums"], arrays["squares"])), strict=True)
        pairs = [_divide(count * num_values, total, squares) for count, total, squares in told]
        classes = tuple(arrays[PER_CLASS].tolist()) if PER_CLASS in arrays else None
        mean, std = tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs)
        return cls(mean, std, int(arrays["sites"]), int(arrays["samples"]), classes)


def _divide(count: int, total: int, squares: int) -> tuple[float, float]:
    """Returns the mean and the deviation of `count` values from their sums in units."""
    if not count:
        return 0.0, 1.0
    variance = max(count * squares - total * total, 0)  # in units, times count^2; a cap's rounding may make it negative
    std = math.ldexp(math.sqrt(variance / count**2), -UNIT_BITS)
    return math.ldexp(total / count, -UNIT_BITS), std or 1.0


def get_num_values(input_shape: Sequence[int]) -> int:
    """Returns how many values a sample has of each channel."""
    return math.prod(input_shape[1:])


def count_own_rounds(rounds: int, input_: Mapping[str, Any]) -> int:
    """Counts the rounds of a run that are the method's; 0 if there is no end to them."""
    return max(rounds - 1, 1) if rounds and input_.get("normalize") == AGREED else rounds


def agree(spec: MethodSpec, input_: Mapping[str, Any]) -> MethodSpec:
    """Returns `spec` as it is in a run with this `input`. Raises SpecError."""
    agreement = Agreement.from_input(input_)
    if spec.hyperparameters.class_weights == "agreed" and not (agreement and agreement.class_counts):
        raise SpecError(
            "method.class_weights",
            "expected none or own without class counts: agreed goes with input.normalize: agreed and "
            "input.class_counts: true",
        )
    if agreement and agreement.class_counts and spec.task.kind != CLASSIFICATION:
        raise SpecError("input.class_counts", f"expected none for task {spec.task.kind}: classes alone are counted")
    if agreement and agreement.correlations and spec.task.kind != CLASSIFICATION:
        raise SpecError("input.correlations", f"expected none for task {spec.task.kind}: sums are told by class alone")
    if agreement and spec.hyperparameters.is_private and not agreement.is_inherited and agreement.bounds is None:
        raise SpecError(
            "input.low",
            "expected low and high with dp_noise where members agree: what the values of each feature lie between",
        )
    return spec if agreement is None else StatisticsSpec(spec.task, spec.hyperparameters, spec, agreement)


@dataclass(frozen=True)
class StatisticsSpec(MethodSpec):
    """A method in a run that agrees on statistics. The first round has one voted kind, `statistics`: `count` int64[],
    `sums` int64[C, 5] and `squares` int64[C, 7] as `ml.aggregation.sums` has them; if cells may be empty, `present`
    int64[C]; with class counts, `classes` int64[K]; with histograms, `bins` int64[B] of all features in turn; and with
    correlations the same of each class: `class_present` int64[K, C], `class_sums` int64[K, C, 5] and `class_squares`
    int64[K, C, 7]."""

    inner: MethodSpec
    agreement: Agreement

    @property
    def name(self) -> str:  # type: ignore[override]  # the name of the method inside
        return self.inner.name

    @property
    def record(self) -> PluginRecord | None:  # type: ignore[override]  # likewise
        return self.inner.record

    def describe_judging(self) -> Judging:
        return self.inner.describe_judging()

    def to_mapping(self) -> dict[str, Any]:
        return self.inner.to_mapping()

    # ---- rounds

    @property
    def num_before(self) -> int:
        """The number of rounds before the method's first."""
        return 0 if self.agreement.is_inherited else 1

    def is_statistics(self, height: int) -> bool:
        """Says whether contributions of this height carry statistics."""
        return height == self.num_before == 1

    def to_inner(self, height: int) -> int:
        """Returns the method's own height."""
        return height - self.num_before

    @property
    def sharing_heights(self) -> int:
        return self.inner.sharing_heights + self.num_before

    def compute_lr(self, round_number: int, num_steps: int = 0) -> float:
        return self.inner.compute_lr(round_number, num_steps)

    def get_local_work(self, height: int) -> int:
        return 0 if self.is_statistics(height) else self.inner.get_local_work(self.to_inner(height))

    def get_collect_s(self, height: int, default: float) -> float:
        return default if self.is_statistics(height) else self.inner.get_collect_s(self.to_inner(height), default)

    # ---- payloads

    @cached_property
    def statistics_schemas(self) -> Mapping[str, ArraySchema]:
        channels, most = self.task.input_shape[0], self.task.max_weight
        arrays = {
            "count": ArraySpec("int64", (), (0, most)),
            "sums": ArraySpec("int64", (channels, SUM_DIGITS), (1 - BASE, BASE - 1)),
            "squares": ArraySpec("int64", (channels, SQUARE_DIGITS), (0, BASE - 1)),
        }
        if self.agreement.counts_present:
            arrays[PRESENT] = ArraySpec("int64", (channels,), (0, most))
        if self.agreement.class_counts:
            arrays[PER_CLASS] = ArraySpec("int64", (self.task.num_classes,), (0, most))
        if self.agreement.edges:
            arrays[PER_BIN] = ArraySpec("int64", (self.agreement.num_bins,), (0, most))
        if self.agreement.correlations:
            shape = (self.task.num_classes, channels)
            arrays[CLASS_PRESENT] = ArraySpec("int64", shape, (0, most))
            arrays[CLASS_SUMS] = ArraySpec("int64", (*shape, SUM_DIGITS), (1 - BASE, BASE - 1))
            arrays[CLASS_SQUARES] = ArraySpec("int64", (*shape, SQUARE_DIGITS), (0, BASE - 1))
        return {STATISTICS: ArraySchema(arrays)}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self.statistics_schemas if self.is_statistics(height) else self.inner.schemas(self.to_inner(height))

    def rules(self, height: int) -> Mapping[str, str]:
        return self.rules_of_statistics if self.is_statistics(height) else self.inner.rules(self.to_inner(height))

    @property
    def rules_of_statistics(self) -> Mapping[str, str]:
        is_robust = isinstance(self.hyperparameters, AggregationHyperparameters) and self.hyperparameters.is_robust
        return {STATISTICS: "trimmed_sum" if is_robust else "sum"}

    def get_kept(self, height: int) -> Collection[str]:
        if self.is_statistics(height):
            return tuple(kind for kind in KINDS if kind != STATISTICS)
        return (*self.inner.get_kept(self.to_inner(height)), STATISTICS)

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        return self.inner.carried

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        if self.is_statistics(height):
            return {}
        return self.inner.carry(self.to_inner(height), authors, made, parent)

    def get_origin(self, kind: str) -> Arrays | None:
        return self.inner.get_origin(kind)

    def list_stale(self, aggregate: Arrays | None) -> Sequence[tuple[bytes, int]]:
        return self.inner.list_stale(aggregate)

    @property
    def closing(self) -> RoundKinds | None:
        return self.inner.closing

    @property
    def sends_changes(self) -> bool:
        return self.inner.sends_changes

    def pack(self, kind: str, arrays: Arrays, parent: Arrays, height: int) -> Arrays:
        return arrays if self.is_statistics(height) else self.inner.pack(kind, arrays, parent, self.to_inner(height))

    def unpack(self, kind: str, arrays: Arrays, parent: Arrays | None, height: int) -> Arrays:
        return arrays if self.is_statistics(height) else self.inner.unpack(kind, arrays, parent, self.to_inner(height))

    @property
    def rule_settings(self) -> RuleSettings:
        return self.inner.rule_settings

    @property
    def max_weight_is_one(self) -> bool:
        return self.inner.max_weight_is_one

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        if not self.is_statistics(height):
            self.inner.validate_payload(kind, arrays, self.to_inner(height))
            return
        super().validate_payload(kind, arrays, height)
        try:
            self.validate_sums(arrays)
        except PayloadError as error:
            raise PayloadError(f"payload {kind!r}: {error}") from error

    def validate_sums(self, arrays: Arrays) -> None:
        """Raises PayloadError unless samples can have these statistics, those of one site or the sums of several
        sites."""
        num_values = get_num_values(self.task.input_shape)
        validate_statistics(arrays, self.agreement.min_count, num_values)
        validate_counts(arrays, self.agreement)
        validate_by_class(arrays, self.agreement, num_values)

    # ---- calls of the method inside

    @property
    def shares_samples(self) -> bool:
        return self.inner.shares_samples

    def get_streamed(self, height: int) -> Mapping[str, str]:
        return {} if self.is_statistics(height) else self.inner.get_streamed(self.to_inner(height))

    def get_shared_height(self, height: int) -> int | None:
        if self.is_statistics(height):
            return None
        shared = self.inner.get_shared_height(self.to_inner(height))
        return None if shared is None else shared + self.num_before

    def needed_until(self, height: int) -> int | None:
        if self.is_statistics(height):
            return height
        last = self.inner.needed_until(self.to_inner(height))
        return None if last is None else last + self.num_before

    @property
    def keeps_shared(self) -> bool:
        return self.inner.keeps_shared

    def wanted_in_training(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, gone: Authors = ()
    ) -> Sequence[bytes]:
        if self.is_statistics(height):
            return ()
        return self.inner.wanted_in_training(self.to_inner(height), beacon, me, offers, gone)

    def wanted(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Sequence[bytes]:
        if self.is_statistics(height):
            return ()
        return self.inner.wanted(self.to_inner(height), beacon, me, offers, drop_statistics(aggregate), gone)

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """Explains a round. In that of statistics, `statistics` says how many sites have sent sums, "" without the
        aggregate."""
        if self.is_statistics(height):
            return {"statistics": describe_statistics(aggregate) or ""}
        own = drop_statistics(aggregate)
        return self.inner.explain(self.to_inner(height), beacon, offers, own, shared=shared)


def describe_statistics(aggregate: Arrays | None) -> str | None:
    """Says in words how many sites have sent sums of how many samples; None if an aggregate has no statistics."""
    statistics = get_statistics(aggregate)
    if not statistics:
        return None
    sites, samples = int(statistics["sites"]), int(statistics["samples"])
    return f"agreed from {sites} site{'' if sites == 1 else 's'}, {samples} samples"


def get_statistics(aggregate: Arrays | None) -> dict[str, Array]:
    """Returns the statistics in an aggregate, without the kind in front; {} if it has none."""
    prefix = f"{STATISTICS}/"
    found = (aggregate or {}).items()
    return {name.removeprefix(prefix): array for name, array in found if name.startswith(prefix)}


def drop_statistics(aggregate: Arrays | None) -> Arrays | None:
    """Returns an aggregate as the method knows it; None if the method votes on nothing."""
    own = {name: array for name, array in (aggregate or {}).items() if not name.startswith(f"{STATISTICS}/")}
    return own or None
