"""The rules that turn a round's contributions into one aggregate, the same bytes on every machine (PROTOCOL §2).

    out = float32( (sum over authors in key order of float64(x) * w) / sum(w) )        element by element

A float32 times an integer below 2^29 is exact in float64, so neither fused multiply-add, nor vector width, nor threads
can matter: only the order of the authors, which is that of their keys, whatever order contributions came in. Sorted
values are added in ascending order. Hence no sum of floats across elements in here, no exp or log, no matrix product;
distances are of integers. Work goes in blocks of 64 Ki elements, with all authors at once, which bounds the scratch and
changes no byte.

Averaged entries are float32 and nothing else; the class ids, counts and whatever `pool` and `stack` copy keep their
type, and sums of statistics are of integers. Integer buffers of a model (`num_batches_tracked`) are not part of a model
payload: receivers keep their own.

A rule sees the contributions, the parent block's aggregate, both without the "kind/" in front of their names (`carry`
apart, see there), and the settings that all members share. It raises AggregationError where they do not go together.
"""

from __future__ import annotations

from ml.aggregation.contributed import MAX_WEIGHT, PLAIN, Box, Contributed, Rule, RuleSettings, compute_max_liars
from ml.aggregation.fixed_point import class_fixed_mean, fixed_mean
from ml.aggregation.gathered import carry, pool, stack
from ml.aggregation.means import class_divide_by_k, class_mean, class_weighted_mean, uniform_mean, weighted_mean
from ml.aggregation.nova import nova
from ml.aggregation.robust import (
    class_clipped_mean,
    class_median,
    class_multi_krum,
    class_trimmed_mean,
    clipped_mean,
    median,
    multi_krum,
    trimmed_mean,
    trimmed_pool,
)
from ml.aggregation.sums import sum_, trimmed_sum

__all__ = [
    "MAX_WEIGHT",
    "PLAIN",
    "RULES",
    "RULES_ON_PARENT",
    "Box",
    "Contributed",
    "Rule",
    "RuleSettings",
    "carry",
    "compute_max_liars",
    "pool",
    "weighted_mean",
]

RULES: dict[str, Rule] = {
    "class_mean": class_mean,
    "class_divide_by_k": class_divide_by_k,
    "class_weighted_mean": class_weighted_mean,
    "class_median": class_median,
    "class_trimmed_mean": class_trimmed_mean,
    "class_clipped_mean": class_clipped_mean,
    "class_multi_krum": class_multi_krum,
    "class_fixed_mean": class_fixed_mean,
    "weighted_mean": weighted_mean,
    "uniform_mean": uniform_mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "clipped_mean": clipped_mean,
    "multi_krum": multi_krum,
    "fixed_mean": fixed_mean,
    "pool": pool,
    "trimmed_pool": trimmed_pool,
    "stack": stack,
    "nova": nova,
    "carry": carry,
    "sum": sum_,
    "trimmed_sum": trimmed_sum,
}
RULES_ON_PARENT = frozenset({"nova", "carry", "clipped_mean", "multi_krum"})  # they need the parent's aggregate
