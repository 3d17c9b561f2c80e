"""The rules of aggregation: values by hand, bit-for-bit agreement between machines, golden vectors, and refusals."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.aggregation import RULES, Contributed, RuleSettings
from ml.errors import AggregationError
from ml.payload import Array, Arrays, encode_arrays
from support.data.contributions import author, compute_digests, make_given, prototypes
from support.data.plain_rules import compute, decode_hex, load_vectors, read_vector

TESTS = Path(__file__).parents[2]
VECTORS = load_vectors()["vectors"]
UNBLOCKED = ("pool", "stack", "carry", "sum", "trimmed_sum", "fixed_mean", "class_fixed_mean")
PARENT: Arrays = {"model/w": np.arange(3, dtype=np.float32)}

# ALGORITHMS §12.1
A = Contributed(author(0), 1, prototypes({0: [2, 3], 1: [5, 0]}, {0: 2, 1: 1}))
B = Contributed(author(1), 1, prototypes({0: [4, 1]}, {0: 1}))
C = Contributed(author(2), 1, prototypes({1: [1, 2], 2: [0, 6]}, {1: 1, 2: 1}))


def compute_rows(rule: str, contributions: Sequence[Contributed]) -> dict[int, list[float]]:
    out = RULES[rule](contributions, None)
    assert out["classes"].dtype == np.int64
    assert out["prototypes"].dtype == np.float32
    return dict(zip(out["classes"].tolist(), out["prototypes"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("class_mean", {0: [3, 2], 1: [3, 1], 2: [0, 6]}),
        ("class_divide_by_k", {0: [2, 1.3333333], 1: [2, 0.6666667], 2: [0, 2]}),
        ("class_weighted_mean", {0: [2.6666667, 2.3333333], 1: [3, 1], 2: [0, 6]}),
    ],
)
def test_dfpls_worked_example(rule: str, expected: dict[int, list[float]]) -> None:
    got = compute_rows(rule, [A, B, C])
    assert list(got) == list(expected)
    for class_id, row in expected.items():
        assert got[class_id] == pytest.approx(row, rel=1e-6)


def test_class_mean_ignores_weights_and_leaves_out_classes_nobody_holds() -> None:
    heavy = Contributed(B.author, 1000, B.arrays)
    assert compute_rows("class_mean", [A, heavy]) == {0: [3, 2], 1: [5, 0]}


def test_class_means_of_members_that_hold_nothing_are_empty() -> None:
    nothing: dict[str, Array] = {"classes": np.empty(0, np.int64), "prototypes": np.empty((0, 2), np.float32)}
    out = RULES["class_mean"]([Contributed(author(0), 1, nothing), Contributed(author(1), 1, nothing)], None)
    assert out["classes"].shape == (0,)
    assert out["prototypes"].shape == (0, 2)


def test_a_weighted_mean_by_hand() -> None:
    models = [
        Contributed(author(1), 3, {"w": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([-1], np.float32)}),
        Contributed(author(0), 1, {"w": np.array([[5, 6], [7, 8]], np.float32), "b": np.array([3], np.float32)}),
    ]
    weighted = RULES["weighted_mean"](models, None)
    assert weighted["w"].tolist() == [[2, 3], [4, 5]]
    assert weighted["b"].tolist() == [0]
    uniform = RULES["uniform_mean"](models, None)
    assert uniform["w"].tolist() == [[3, 4], [5, 6]]
    assert uniform["b"].tolist() == [1]


def test_no_author_counts_more_than_so_many_times_the_lower_median() -> None:
    """Weights 1, 2, 10 and 1000: their lower median is 2, and four times that 8."""
    given = [model(i, weight, x=np.array([i], np.float32)) for i, weight in enumerate((1000, 1, 2, 10))]
    capped = RULES["weighted_mean"](given, None, RuleSettings(weight_cap=4))
    assert capped["x"].tolist() == [np.float32((0 * 8 + 1 * 1 + 2 * 2 + 3 * 8) / (8 + 1 + 2 + 8))]
    assert RULES["weighted_mean"](given, None)["x"].tolist() == [np.float32((1 + 4 + 30) / 1013)]
    assert RULES["uniform_mean"](given, None, RuleSettings(weight_cap=4))["x"].tolist() == [1.5]


def test_the_cap_on_class_sizes_is_that_of_the_classs_own_holders() -> None:
    """Class 0 has holders of 1, 3 and 100 samples, class 1 only those of 50 and 100."""
    given = [
        Contributed(author(0), 1, prototypes({0: [0]}, {0: 1})),
        Contributed(author(1), 1, prototypes({0: [1], 1: [0]}, {0: 3, 1: 50})),
        Contributed(author(2), 1, prototypes({0: [2], 1: [1]}, {0: 100, 1: 100})),
    ]
    out = RULES["class_weighted_mean"](given, None, RuleSettings(weight_cap=1))
    assert out["prototypes"].tolist() == [[np.float32((0 * 1 + 1 * 3 + 2 * 3) / 7)], [0.5]]
    assert RULES["class_mean"](given, None, RuleSettings(weight_cap=1))["prototypes"].tolist() == [[1.0], [0.5]]


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.lists(st.tuples(floats, st.integers(1, (1 << 29) - 1)), min_size=1, max_size=8))
def test_the_mean_is_the_formulas_bit_for_bit(given: list[tuple[float, int]]) -> None:
    acc = 0.0
    for x, weight in given:  # Python's floats are float64
        acc += x * weight
    expected = np.float32(acc / sum(weight for _, weight in given))
    models = [Contributed(author(i), w, {"x": np.array([x], np.float32)}) for i, (x, w) in enumerate(given)]
    assert RULES["weighted_mean"](models, None)["x"].tobytes() == expected.tobytes()


def test_authors_are_added_in_key_order_so_rounding_is_the_same_for_all() -> None:
    big, one, minus = (np.array([x], np.float32) for x in (2.0**60, 1.0, -(2.0**60)))
    models = [Contributed(author(i), 1, {"x": x}) for i, x in enumerate((big, one, minus))]
    assert RULES["weighted_mean"](models, None)["x"].tolist() == [0.0]  # the one is lost in the big
    models = [Contributed(author(i), 1, {"x": x}) for i, x in enumerate((big, minus, one))]
    assert RULES["weighted_mean"](models[::-1], None)["x"].tolist() == [np.float32(1 / 3)]


@pytest.mark.parametrize("rule", RULES)
def test_arrival_order_does_not_change_a_bit(rule: str) -> None:
    contributions, parent, settings = make_given(rule)
    digests = set()
    for seed in range(5):
        random.Random(seed).shuffle(contributions)
        digests.add(encode_arrays(RULES[rule](contributions, parent, settings)))
    assert len(digests) == 1


@pytest.mark.parametrize("rule", [name for name in RULES if name not in UNBLOCKED])
def test_block_size_does_not_change_a_bit(rule: str) -> None:
    given = make_given(rule)
    whole = encode_arrays(RULES[rule](*given))
    for block_elements in (97, 1000, 1 << 20):
        assert encode_arrays(RULES[rule](*given, block_elements=block_elements)) == whole  # type: ignore[call-arg]


@pytest.mark.outer
def test_aggregates_agree_whatever_numpy_may_use_of_the_processor_and_however_many_threads() -> None:
    mine = compute_digests()
    features = " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))
    for disabled, threads in (("", "1"), ("", "4"), (features, "1"), (features, "4")):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
            "NPY_DISABLE_CPU_FEATURES": disabled,
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        }
        done = subprocess.run(
            [sys.executable, "-m", "support.data.contributions"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert json.loads(done.stdout) == mine, f"without {disabled!r}, {threads} threads"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["rule"])
def test_golden_aggregates(vector: dict[str, Any]) -> None:
    """A change here is a fork of every chain there is, and must be meant: see `support.data.plain_rules`."""
    data = encode_arrays(RULES[vector["rule"]](*read_vector(vector)))
    assert data.hex() == vector["aggregate"]
    assert hashlib.sha256(data).hexdigest() == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["rule"])
def test_golden_aggregates_are_those_of_plain_python(vector: dict[str, Any]) -> None:
    assert encode_arrays(compute(vector["rule"], *read_vector(vector))).hex() == vector["aggregate"]


def test_every_rule_that_computes_has_a_golden_aggregate() -> None:
    assert {vector["rule"] for vector in VECTORS} == RULES.keys() - {"stack", "carry"}


def test_golden_mean_by_hand() -> None:
    golden = next(v for v in VECTORS if v["rule"] == "class_mean")
    out = decode_hex(golden["aggregate"])
    assert out["classes"].tolist() == [0, 1, 2]
    assert out["prototypes"].tobytes() == struct.pack("<6f", 3, 2, 3, 1, 0, 6)


def test_stacked_rows_are_the_authors_in_key_order() -> None:
    units = [Contributed(author(i), 1, {"unit": np.array([i, 10 * i], np.int64)}) for i in (2, 0, 1)]
    out = RULES["stack"](units, None)["unit"]
    assert out.dtype == np.int64
    assert out.tolist() == [[0, 0], [1, 10], [2, 20]]


def test_pooled_rows_are_ordered_by_class_then_author_then_as_they_came() -> None:
    def centres(classes: list[int], rows: list[list[float]]) -> dict[str, Array]:
        return {"classes": np.array(classes, np.int64), "prototypes": np.array(rows, np.float32)}

    out = RULES["pool"](
        [
            Contributed(author(1), 1, centres([0, 1, 1], [[7, 7], [8, 8], [8, 0]])),
            Contributed(author(0), 1, centres([1, 1, 3], [[2, 2], [2, 0], [3, 3]])),
        ],
        None,
    )
    assert out["classes"].tolist() == [0, 1, 1, 1, 1, 3]
    assert out["authors"].tolist() == [1, 0, 0, 1, 1, 0]
    assert out["prototypes"].tolist() == [[7, 7], [2, 2], [2, 0], [8, 8], [8, 0], [3, 3]]


def test_carry_gives_the_parents_aggregate_and_refuses_when_there_is_none() -> None:
    assert encode_arrays(RULES["carry"]([A], PARENT)) == encode_arrays(PARENT)
    with pytest.raises(AggregationError, match="got none"):
        RULES["carry"]([A], None)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "carry"])
def test_nothing_and_the_same_author_twice_are_refused(rule: str) -> None:
    (one, *_), parent, settings = make_given(rule)
    with pytest.raises(AggregationError, match="at least one contribution"):
        RULES[rule]([], parent, settings)
    with pytest.raises(AggregationError, match="one contribution per author"):
        RULES[rule]([one, one], parent, settings)


def model(index: int, weight: int = 1, **arrays: Array) -> Contributed:
    return Contributed(author(index), weight, arrays)


@pytest.mark.parametrize(
    ("rule", "contributions", "message"),
    [
        ("weighted_mean", [model(0, 0, x=np.ones(1, np.float32))], "expected weights from 1 to 536870911, got 0"),
        ("weighted_mean", [model(0, 1 << 29, x=np.ones(1, np.float32))], "got 536870912"),
        ("weighted_mean", [model(0, x=np.ones(1, np.int64))], "'x': only float32 is averaged, got int64"),
        (
            "weighted_mean",
            [model(0, x=np.ones(1, np.float32)), model(1, x=np.ones(2, np.float32))],
            r"'x': expected float32 \[1\] of every author, got float32 \[2\]",
        ),
        (
            "uniform_mean",
            [model(0, x=np.ones(1, np.float32)), model(1, y=np.ones(1, np.float32))],
            r"expected arrays \['x'\] as of 00000000, got \['y'\]",
        ),
        ("stack", [model(0, x=np.ones(1, np.float32)), model(1, x=np.ones(1, np.int64))], "got int64"),
        ("pool", [model(0, x=np.ones(1, np.float32))], "expected an array 'classes'"),
        ("pool", [model(0, classes=np.arange(2), x=np.ones(1, np.float32))], "not one row per class entry"),
        ("class_mean", [model(0, x=np.ones(1, np.float32))], "expected arrays 'classes' and 'prototypes'"),
        (
            "class_mean",
            [model(0, classes=np.array([1, 0]), prototypes=np.ones((2, 1), np.float32))],
            "sorted and once each",
        ),
        (
            "class_mean",
            [model(0, classes=np.array([1]), prototypes=np.ones((2, 1), np.float32))],
            "one row of 'prototypes' per class",
        ),
        (
            "class_mean",
            [
                model(0, classes=np.array([0]), prototypes=np.ones((1, 1), np.float32)),
                model(1, classes=np.array([1]), prototypes=np.ones((1, 2), np.float32)),
            ],
            "expected prototypes of length 1, got 2",
        ),
    ],
)
def test_contributions_that_do_not_go_together_are_refused(
    rule: str, contributions: list[Contributed], message: str
) -> None:
    with pytest.raises(AggregationError, match=message):
        RULES[rule](contributions, None)
