"""Statistics behind masks: the sums of all come out to the last digit, and what no sites can have does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ml.aggregation import RULES, Contributed
from ml.aggregation.fixed_point import Integers
from ml.data.statistics import compute_statistics
from ml.errors import SpecError
from ml.payload import Array, Arrays
from ml.specs import AuthorPayloads, MaskedStatisticsSpec, StatisticsSpec, get_simulated_spec, get_spec
from ml.specs.run_schema import describe_payloads
from support.data.contributions import author

MASKED = {"name": "local", "aggregation": "masked_sum"}
TABLE: Mapping[str, Any] = {
    "normalize": "agreed",
    "min_count": 5,
    "class_counts": True,
    "correlations": True,
    "missing": "mean",
    "columns": [{"name": "sex", "values": ["f", "m"]}, {"name": "age", "edges": [40, 60]}, {"name": "bmi"}],
}


def make_spec(input_: Mapping[str, Any] = TABLE, method: Mapping[str, Any] = MASKED, **terms: Any) -> Any:
    named = {"rounds": 1, "num_members": 4, "input_": input_, **terms}
    return get_spec(method, {"name": "linear"}, 2, (4, 1, 1), **named)


def tell(spec: MaskedStatisticsSpec, count: int, seed: int) -> dict[str, Array]:
    """What a site of so many rows tells, some of whose cells are empty."""
    rng, x = np.random.default_rng(seed), np.zeros((count, 4), np.float32)
    x[np.arange(count), rng.integers(0, 2, count)] = 1
    x[:, 2], x[:, 3] = rng.normal(50, 9, count), -(10.0 ** rng.uniform(-9, 11, count))
    x[rng.random(count) < 0.2, 3] = np.nan
    told = compute_statistics(x.reshape(count, 4, 1, 1), rng.integers(0, 2, count), 2, spec.inner.agreement)
    spec.inner.validate_payload("statistics", told, 1)
    return told


def add_up(spec: MaskedStatisticsSpec, *counts: int) -> Integers:
    """The sum of the vectors of sites of so many rows."""
    vectors = [spec.coding.encode(tell(spec, count, i), 1, spec.fraction_bits) for i, count in enumerate(counts)]
    total: Integers = np.sum(vectors, axis=0)
    assert total.shape == (spec.coding.size,)
    return total


@pytest.mark.parametrize("counts", [(100, 40, 7), (100, 3, 60), (2, 3, 4)])  # of fewer than 5 nothing is told
def test_what_comes_out_of_the_sum_is_what_the_rule_makes_of_the_payloads(counts: tuple[int, ...]) -> None:
    spec = make_spec()
    payloads = [tell(spec, count, i) for i, count in enumerate(counts)]
    expected = RULES["sum"]([Contributed(author(i), 1, told) for i, told in enumerate(payloads)], None)
    found = spec.coding.decode(add_up(spec, *counts), 3, spec.fraction_bits, 3, 1e6)
    assert found is not None
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].tolist()) == (array.dtype, array.tolist()), name
    assert {f"statistics/{name}" for name in found} <= describe_payloads(spec)["aggregate"].keys()


def spoil(place: int, value: int) -> Callable[[Integers], None]:
    def do(total: Integers) -> None:
        total[place] = value

    return do


@pytest.mark.parametrize(
    "lie",
    [
        spoil(0, 4),  # more sites than authors
        spoil(0, 0),
        spoil(1, -7),  # bins
        spoil(-1, 1 << 40),  # the last digit of a sum, which then has no room
        spoil(-20, 1 << 61),
        lambda total: np.copyto(total, np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, total.shape)),
    ],
)
def test_a_sum_that_no_sites_can_have_is_out_of_range(lie: Callable[[Integers], None]) -> None:
    spec = make_spec()
    total = add_up(spec, 100, 40, 7)
    lie(total)
    assert spec.coding.decode(total, 3, spec.fraction_bits, 3, 1e6) is None


def test_a_run_of_statistics_is_of_one_round_and_of_nothing_besides() -> None:
    assert isinstance(make_spec(), MaskedStatisticsSpec)
    terms: Any = {"rounds": 1, "num_members": 4, "input_": TABLE}
    assert isinstance(get_simulated_spec(MASKED, {"name": "linear"}, 2, (4, 1, 1), **terms), StatisticsSpec)
    with pytest.raises(SpecError, match="rounds: expected 1 with local and aggregation masked_sum"):
        make_spec(rounds=2)
    for input_ in ({}, {**TABLE, "normalize": "inherited"}):
        with pytest.raises(SpecError, match=r"method.aggregation: expected none: local sends nothing but what members"):
            make_spec(input_)
    with pytest.raises(SpecError, match="propose statistics --masked"):
        make_spec(method={"name": "fedavg", "aggregation": "masked_sum"})


def test_the_model_that_a_run_begins_with_stays_and_statistics_of_the_run_before_do_not() -> None:
    spec = make_spec()
    key = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    opening = {"key": np.frombuffer(key, np.uint8), "seeds": np.empty((0, 32), np.uint8)}
    given = [AuthorPayloads(author(i), 1, {"masked": opening}) for i in range(4)]
    parent: Arrays = {"model/w": np.ones(3, np.float32), "statistics/samples": np.array(7)}
    first = spec.combine(1, given, parent)
    assert {name for name in first if not name.startswith("masked/")} == {"model/w"}
    later = spec.combine(
        2, [AuthorPayloads(author(0), 1, spec.empty_input)], {**first, "statistics/samples": np.array(9)}
    )
    assert {name for name in later if not name.startswith("masked/")} == {"model/w", "statistics/samples"}
