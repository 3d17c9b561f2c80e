"""Agreed statistics: exact sums whatever the split, what a validator refuses of them, and what keeps them in a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from ml.aggregation import PLAIN, RULES, Contributed, RuleSettings
from ml.aggregation.sums import BASE, SQUARE_DIGITS, SUM_DIGITS, from_digits, to_digits
from ml.data.base import Images, Labels
from ml.data.statistics import compute_statistics, count_classes
from ml.errors import AggregationError, DataError, PayloadError, SpecError
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.specs import METHODS, AuthorPayloads, MethodSpec, StatisticsSpec, compute_aggregate, get_kind, get_spec
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.run_schema import describe_payloads
from ml.specs.statistics import Agreement, Constants, drop_statistics, read_edges
from ml.specs.statistics_checks import split_bins
from support.data.contributions import author
from support.data.normed import fit_model

MLP = {"name": "mlp", "hidden": [4, 2]}
AGREED: Mapping[str, Any] = {"normalize": "agreed", "min_count": 5, "class_counts": True}
INITIAL: Arrays = {"model/w": np.arange(3, dtype=np.float32)}
BOTH = Agreement(5, class_counts=True)
FILLED, EMPTY = Agreement(5, counts_present=True), float("nan")
FILLING: Mapping[str, Any] = {"normalize": "agreed", "missing": "mean"}


BINNED: Mapping[str, Any] = {
    "normalize": "agreed",
    "missing": "mean+flag",
    "columns": [{"name": "sex", "values": ["f", "m"]}, {"name": "age", "edges": [40, 60.5]}, {"name": "bmi"}],
}


def make_spec(
    name: str = "fedavg", input_: Mapping[str, Any] = AGREED, shape: Sequence[int] = (2, 1, 1), **settings: Any
) -> MethodSpec:
    model = fit_model(name, {"name": "mlp", "hidden": [4, 2]}, 2)
    return get_spec({"name": name, **settings}, model, 2, shape, rounds=10, num_members=4, input_=input_)


def tell(values: Sequence[Sequence[float]], labels: Sequence[int] | None = None) -> dict[str, Array]:
    """The payload of rows of features, of two classes."""
    x_NCHW = np.array(values, np.float32).reshape(len(values), -1, 1, 1)
    y_N = np.array([i % 2 for i in range(len(values))] if labels is None else labels, np.int64)
    return compute_statistics(x_NCHW, y_N, 2, BOTH)


def pool(payloads: Sequence[Arrays], rule: str = "sum", settings: RuleSettings = PLAIN) -> Constants:
    contributions = [Contributed(author(i), 1, payload) for i, payload in enumerate(payloads)]
    return Constants.from_arrays(RULES[rule](contributions, None, settings), 1)


def tell_some(values: Sequence[Sequence[float]]) -> dict[str, Array]:
    """As `tell`, of rows in which cells may be empty, and without classes."""
    x_NCHW = np.array(values, np.float32).reshape(len(values), -1, 1, 1)
    return compute_statistics(x_NCHW, np.zeros(len(values), np.int64), 2, FILLED)


# ---- histograms


def tell_ages(*ages: float) -> dict[str, Array]:
    x_NF = np.array([[1, 0, 0, age, math.isnan(age), 22, 0] for age in ages], np.float32)
    spec = make_spec("local", BINNED, (7, 1, 1))
    assert isinstance(spec, StatisticsSpec)
    told = compute_statistics(x_NF.reshape(-1, 7, 1, 1), np.zeros(len(ages), np.int64), 2, spec.agreement)
    spec.validate_payload("statistics", told, 1)
    return told


def test_edges_are_those_of_features_in_turn() -> None:
    assert read_edges(BINNED) == ((), (), (), (40.0, 60.5), (), (), ())
    assert read_edges({"columns": [{"name": "age"}]}) == ()
    told = split_bins({"bins": np.arange(3)}, read_edges(BINNED))
    assert [(feature, counts.tolist()) for feature, counts in told.items()] == [(3, [0, 1, 2])]


@pytest.mark.parametrize(
    ("ages", "bins"),
    [
        ([39.9] * 5 + [40] * 10 + [60.5] * 17, [5, 10, 15]),
        ([30] * 5 + [50] * 9 + [70] * 4, [5, 5, 0]),
        ([30] * 8 + [EMPTY] * 3, [5, 0, 0]),
        ([30] * 4 + [EMPTY] * 9, [0, 0, 0]),
        ([30] * 4, [0, 0, 0]),
    ],
)
def test_bins_are_told_rounded_down_so_that_few_cannot_be_worked_out(ages: list[float], bins: list[int]) -> None:
    assert tell_ages(*ages)["bins"].tolist() == bins


@pytest.mark.parametrize("bins", [[4, 5, 5], [5, 6, 5], [5, 10, 5]])
def test_bins_that_nobody_may_tell_are_refused(bins: list[int]) -> None:
    told = tell_ages(*[39.9] * 5, *[40] * 6, *[60.5] * 7) | {"bins": np.array(bins, np.int64)}
    with pytest.raises(
        PayloadError, match="channel 3: expected for each bin a multiple of 5, and no more than 18 in all"
    ):
        make_spec("local", BINNED, (7, 1, 1)).validate_payload("statistics", told, 1)


@pytest.mark.parametrize("rule", ["sum", "trimmed_sum"])
def test_bins_of_all_sites_are_added_up(rule: str) -> None:
    told = [tell_ages(*[30] * 5, *[50] * (6 + i)) for i in range(4)]
    total = RULES[rule]([Contributed(author(i), 1, payload) for i, payload in enumerate(told)], None, PLAIN)
    assert total["bins"].tolist() == [20, 20, 0]


def tell_sexes(women: int, men: int, nobody: int = 0) -> tuple[MethodSpec, dict[str, Array]]:
    rows = [[1, 0, 0, 50, 0, 22, 0]] * women + [[0, 1, 0, 50, 0, 22, 0]] * men + [[0, 0, 1, 50, 0, 22, 0]] * nobody
    spec, x_NF = make_spec("local", BINNED, (7, 1, 1)), np.array(rows, np.float32)
    assert isinstance(spec, StatisticsSpec)
    told = compute_statistics(x_NF.reshape(-1, 7, 1, 1), np.zeros(len(rows), np.int64), 2, spec.agreement)
    spec.validate_payload("statistics", told, 1)
    return spec, told


@pytest.mark.parametrize(
    ("there", "told"), [((9, 8), [5, 5]), ((9, 10, 5), [5, 10]), ((9, 4), [5, 0]), ((0, 15), [0, 15])]
)
def test_values_of_a_category_are_told_rounded_down(there: tuple[int, ...], told: list[int]) -> None:
    sums = from_digits(tell_sexes(*there)[1]["sums"])
    assert [total / 2**44 for total in sums[:2]] == told


@pytest.mark.parametrize("women", [1, 9, 15, 7.5])
def test_other_counts_of_a_category_are_refused(women: float) -> None:
    spec, told = tell_sexes(9, 8)
    told["sums"][0] = to_digits([int(women * 2**44)], SUM_DIGITS)[0]
    told["squares"][0] = to_digits([int(women * 2**88)], SQUARE_DIGITS)[0]
    with pytest.raises(PayloadError, match=r"channels 0 to 1: expected"):
        spec.validate_payload("statistics", told, 1)


# ---- sums


@given(st.lists(st.integers(-(2**199), 2**199), min_size=1, max_size=5))
def test_digits_are_the_integers_they_came_from(totals: list[int]) -> None:
    digits = to_digits(totals, SUM_DIGITS)
    assert from_digits(digits) == totals
    assert np.abs(digits).max() < BASE


def load_table() -> tuple[Images, Labels]:
    x, y = load_breast_cancer(return_X_y=True)
    return x.astype(np.float32).reshape(len(x), -1, 1, 1), y.astype(np.int64)


@given(st.lists(st.integers(0, 569), max_size=4))
def test_what_is_agreed_is_what_the_pooled_samples_have_however_they_are_split(cuts: list[int]) -> None:
    """Features up to 4254 beside features up to 0.05."""
    x, y = load_table()
    bounds = [0, *sorted(cuts), len(x)]
    parts = [slice(a, b) for a, b in pairwise(bounds) if b - a >= 5 or a == b]
    if sum(part.stop - part.start for part in parts) < len(x):
        return  # some site would tell nothing
    agreed = pool([compute_statistics(x[part], y[part], 2, Agreement()) for part in parts])
    whole = pool([compute_statistics(x, y, 2, Agreement())])
    assert (agreed.mean, agreed.std) == (whole.mean, whole.std)  # to the last bit
    x_NF = x[:, :, 0, 0].astype(np.float64)
    np.testing.assert_allclose(agreed.mean, x_NF.mean(0), rtol=1e-12)
    np.testing.assert_allclose(agreed.std, x_NF.std(0), rtol=1e-12)
    assert agreed.samples == 569


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scales_of_twelve_decades_are_agreed_on(scale: float) -> None:
    x, y = load_table()
    x = x * np.float32(scale)
    agreed = pool([compute_statistics(x, y, 2, Agreement())])
    x_NF = x[:, :, 0, 0].astype(np.float64)
    np.testing.assert_allclose(agreed.mean, x_NF.mean(0), rtol=1e-6)
    np.testing.assert_allclose(agreed.std, x_NF.std(0), rtol=1e-6)


def test_channels_of_images_are_agreed_on_over_all_pixels() -> None:
    x_NCHW = np.random.default_rng(1).random((9, 3, 4, 5), np.float32)
    told = compute_statistics(x_NCHW, np.zeros(9, np.int64), 2, Agreement())
    agreed = Constants.from_arrays(RULES["sum"]([Contributed(author(0), 1, told)], None), 20)
    np.testing.assert_allclose(agreed.mean, x_NCHW.astype(np.float64).mean((0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(agreed.std, x_NCHW.astype(np.float64).std((0, 2, 3)), rtol=1e-9)


def test_a_feature_without_spread_has_deviation_1() -> None:
    agreed = pool([tell([[0.1, 3]] * 5), tell([[0.1, 4]] * 5)])
    assert agreed.std[0] == 1.0
    assert agreed.mean[0] == pytest.approx(0.1, rel=1e-7)
    assert (agreed.mean[1], agreed.std[1]) == (3.5, 0.5)


def test_too_few_samples_tell_nothing_and_too_large_values_are_an_error_by_name() -> None:
    told = tell([[1, 2]] * 4)
    assert all(not array.any() for array in told.values())
    make_spec().validate_payload("statistics", told, 1)
    agreed = pool([told, tell([[1, 2], [3, 2]] * 5)])
    assert (agreed.sites, agreed.samples, agreed.mean) == (1, 10, (2.0, 2.0))
    nobody = pool([told])
    assert (nobody.mean, nobody.std, nobody.sites) == ((0.0, 0.0), (1.0, 1.0), 0)
    with pytest.raises(DataError, match=r"feature 1: expected values below 2\^40"):
        tell([[0, 2e12]] * 5)
    with pytest.raises(DataError, match=r"feature 1: expected values below 2\^40"):
        tell([[0, float("nan")]] * 5)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0] * 7 + [1] * 6, [7, 6]),
        ([0] * 30 + [1] * 3, [0, 0]),  # 33 less 30 would give the 3 away
        ([0] * 30 + [1] * 3 + [2] * 3, [30, 0, 0]),
    ],
)
def test_rare_classes_are_not_told(labels: list[int], expected: list[int]) -> None:
    assert count_classes(np.array(labels), len(expected), 5).tolist() == expected


def test_a_weight_cap_bounds_what_one_site_counts() -> None:
    small, large = [tell([[0, 1]] * 10) for _ in range(3)], tell([[100, 1]] * 1000)
    agreed = pool([*small, large], settings=RuleSettings(weight_cap=4))
    assert agreed.mean[0] == pytest.approx(100 * 40 / 70)
    assert (agreed.samples, agreed.sites) == (1030, 4)  # what was told
    assert agreed.classes == (15 + 20, 15 + 20)
    assert pool([*small, large]).mean[0] == pytest.approx(100 * 1000 / 1030)


def test_with_a_robust_rule_a_liar_moves_no_feature_beyond_the_honest() -> None:
    honest = [tell([[float(i), 2.0], [float(i), 4.0]] * 5) for i in (1, 2, 3)]
    for lie in (tell([[1e11, -1e11]] * 10), tell([[0, 0]] * 10)):
        agreed = pool([*honest, lie], "trimmed_sum", RuleSettings(max_liars=1))
        assert 1 <= agreed.mean[0] <= 3
        assert agreed.mean[1] == 3
        assert agreed.std[1] == 1
    assert pool([*honest, tell([[1e11, 0]] * 10)], "trimmed_sum").mean[0] > 1e10  # with f = 0 nobody is left out


def test_arrays_that_are_no_statistics_are_refused() -> None:
    with pytest.raises(AggregationError, match="expected arrays count, sums and squares"):
        RULES["sum"]([Contributed(author(0), 1, {"w": np.zeros(2, np.int64)})], None)


# ---- what a validator refuses


HONEST = tell([[1.5, -2], [2.5, 3], [0, 1]] * 4)


def spoil(**changed: Any) -> dict[str, Array]:
    return {**HONEST, **{name: np.array(value, np.int64) for name, value in changed.items()}}


def digits(*totals: int, num: int) -> Array:
    return to_digits(totals, num)


HOSTILE = {
    "a count below the least": (spoil(count=4), "expected 0 or at least 5, got 4"),
    "sums of nobody": (spoil(count=0, classes=[0, 0]), "below"),
    "a count over the limit": (spoil(count=1 << 30), "expected numbers from 0 to"),
    "a negative count": (spoil(count=-5), "expected numbers from 0 to"),
    "negative squares": (spoil(squares=-HONEST["squares"]), "expected numbers from 0 to"),
    "squares below what the sum asks for": (spoil(squares=HONEST["squares"] * 0), "that values with this sum can have"),
    "a sum too large for the squares": (spoil(sums=digits(1 << 80, 0, num=SUM_DIGITS)), "that values with this sum"),
    "values beyond the limit": (
        spoil(
            sums=digits(13 << 84, 0, num=SUM_DIGITS),
            squares=digits(13 << 168, 0, num=SQUARE_DIGITS),
        ),
        "below 2^40 either way",
    ),
    "digits of two signs": (spoil(sums=[[-1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]), "all of one sign"),
    "a digit that is none": (spoil(sums=[[BASE, 0, 0, 0, 0], [0, 0, 0, 0, 0]]), "expected numbers from"),
    "the lowest integer": (spoil(sums=np.full((2, 5), np.iinfo(np.int64).min)), "expected numbers from"),
    "floats": ({**HONEST, "sums": HONEST["sums"].astype(np.float64)}, "expected dtype int64"),
    "channels too many": (spoil(sums=np.zeros((3, 5))), "expected shape"),
    "a class too small to tell": (spoil(classes=[9, 3]), "expected 0 or at least 5 of each"),
    "classes of more than all": (spoil(classes=[9, 9]), "expected all 12 samples"),
    "a rest too small": (spoil(classes=[9, 0]), "expected all 12 samples, or at least 5"),
    "no classes": ({name: array for name, array in HONEST.items() if name != "classes"}, "is missing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_payload_that_no_samples_can_have_is_refused(name: str) -> None:
    payload, problem = HOSTILE[name]
    make_spec().validate_payload("statistics", HONEST, 1)
    with pytest.raises(PayloadError) as caught:
        make_spec().validate_payload("statistics", payload, 1)
    assert problem in str(caught.value)


INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 20)


@given(
    INT64, st.lists(INT64, min_size=10, max_size=10), st.lists(INT64, min_size=14, max_size=14), st.tuples(INT64, INT64)
)
def test_whatever_integers_come_are_refused_or_give_constants(
    count: int, sums: list[int], squares: list[int], classes: tuple[int, int]
) -> None:
    payload = {
        "count": np.array(count, np.int64),
        "sums": np.array(sums, np.int64).reshape(2, 5),
        "squares": np.array(squares, np.int64).reshape(2, 7),
        "classes": np.array(classes, np.int64),
    }
    try:
        make_spec().validate_payload("statistics", payload, 1)
    except PayloadError:
        return
    agreed = pool([payload, HONEST])
    assert np.isfinite([*agreed.mean, *agreed.std]).all()
    assert min(agreed.std) > 0


def test_nothing_a_validator_lets_through_overflows() -> None:
    """As many of the largest values as a task allows, of as many members as a chain can have."""
    task = make_spec(shape=(1, 65536, 65536)).task
    values = task.max_weight * 65536**2
    most = {
        "count": np.array(task.max_weight, np.int64),
        "sums": digits(-values * (1 << 84), num=SUM_DIGITS),
        "squares": digits(values * (1 << 168), num=SQUARE_DIGITS),
        "classes": np.array([task.max_weight, 0], np.int64),
    }
    spec = make_spec(shape=(1, 65536, 65536))
    spec.validate_payload("statistics", most, 1)
    summed = RULES["sum"]([Contributed(i.to_bytes(32, "big"), 1, most) for i in range(300)], None)
    agreed = Constants.from_arrays(summed, 65536**2)
    assert (agreed.mean, agreed.std, agreed.classes) == ((-(2.0**40),), (1.0,), (300 * task.max_weight, 0))


# ---- rounds


def contribute(spec: MethodSpec, *payloads: Arrays) -> dict[str, Array]:
    given = [AuthorPayloads(author(i), 1, {"statistics": payload}) for i, payload in enumerate(payloads)]
    encoded = compute_aggregate(spec, 1, given, INITIAL)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


@pytest.mark.parametrize("name", METHODS)
def test_any_method_has_a_round_of_statistics_before_its_own(name: str) -> None:
    shape = (1, 4, 4)
    plain, spec = make_spec(name, {}, shape), make_spec(name, AGREED, shape)
    assert spec.name == name
    assert spec.to_mapping() == plain.to_mapping()
    assert set(spec.schemas(1)) == set(spec.rules(1)) == {"statistics"}
    assert spec.get_round_number(1) == plain.get_round_number(0)
    assert spec.sharing_heights == plain.sharing_heights + 1
    for height in (1, 2, 3):
        assert spec.schemas(height + 1) == plain.schemas(height)
        assert spec.rules(height + 1) == plain.rules(height)
        assert spec.get_round_number(height + 1) == plain.get_round_number(height)
        assert spec.get_local_work(height + 1) == plain.get_local_work(height)
        assert spec.get_streamed(height + 1) == plain.get_streamed(height)
        assert "statistics" in spec.get_kept(height + 1)
        assert spec.reads_parent(height + 1)
    schema = describe_payloads(spec)
    assert schema["rounds"]["1"].keys() == {"statistics"}
    assert "statistics/sums" in schema["aggregate"]


def test_a_learning_rate_falls_over_the_methods_own_rounds() -> None:
    """Ten rounds, of which the method has nine: the last one is not at the schedule's end, where nothing is learned."""
    method = {"name": "fedavg", "schedule": "linear"}
    spec = get_spec(method, {"name": "mlp", "hidden": [4]}, 3, (1, 4, 4), rounds=10, num_members=4, input_=AGREED)
    assert spec.compute_lr(spec.get_round_number(10)) == pytest.approx(0.1 / 9)


def test_the_initial_model_and_the_statistics_go_on_from_round_to_round() -> None:
    spec = make_spec("local")
    first = contribute(spec, HONEST, HONEST)
    assert first["model/w"].tolist() == [0, 1, 2]
    later = compute_aggregate(spec, 2, [AuthorPayloads(author(0), 1, {})], first)
    assert later is not None
    kept = decode_arrays(later, len(later))
    assert kept.keys() == {name for name in first if name.startswith("statistics/")}
    assert encode_arrays(kept) == compute_aggregate(spec, 3, [AuthorPayloads(author(0), 1, {})], kept)
    assert drop_statistics(kept) is None
    with pytest.raises(AggregationError, match="expected the parent's aggregate"):
        compute_aggregate(spec, 2, [AuthorPayloads(author(0), 1, {})], None)


def test_a_run_that_inherits_has_no_such_round() -> None:
    plain, spec = make_spec("fedavg", {}), make_spec("fedavg", {**AGREED, "normalize": "inherited"})
    assert isinstance(spec, StatisticsSpec)
    assert spec.sharing_heights == 0
    assert spec.schemas(1) == plain.schemas(1)
    assert spec.get_kept(1) == ("statistics",)
    assert describe_payloads(spec)["aggregate"] == describe_payloads(make_spec("fedavg"))["aggregate"]
    assert describe_payloads(spec)["rounds"] == describe_payloads(plain)["rounds"]


def test_a_runs_schema_does_not_hang_on_how_many_members_there_are() -> None:
    def describe(num_members: int) -> Any:
        method = {"name": "fedavg", "aggregation": "median"}
        return describe_payloads(get_spec(method, MLP, 2, (2, 1, 1), num_members=num_members, input_=AGREED))

    assert describe(3) == describe(4)
    assert describe(4)["rounds"]["1"]["statistics"]["rule"] == "trimmed_sum"


def test_a_method_counts_its_own_rounds_alone() -> None:
    assert make_spec("fedavg").task.rounds == 9
    assert make_spec("fedavg", {}).task.rounds == 10
    assert make_spec("fedavg", {"normalize": "inherited"}).task.rounds == 10


@pytest.mark.parametrize("keeps", [False, True])
def test_a_method_that_shares_sets_keeps_them_as_it_does_without_statistics(keeps: bool) -> None:
    plain, spec = (make_spec("fededs", input_, (1, 4, 4), keep_sets=keeps) for input_ in ({}, AGREED))
    assert spec.keeps_shared is plain.keeps_shared is keeps
    assert spec.needed_until(2) == (plain.needed_until(1) or 0) + 1


def test_agreed_class_weights_need_class_counts() -> None:
    assert make_spec(class_weights="agreed").hyperparameters.class_weights == "agreed"
    for input_ in ({}, {"normalize": "agreed"}):
        with pytest.raises(SpecError, match=r"method.class_weights: expected none or own without class counts"):
            make_spec(input_=input_, class_weights="agreed")
    assert isinstance(make_spec().hyperparameters, Hyperparameters)


@pytest.mark.parametrize(
    ("input_", "problem"),
    [({"normalize": "auto"}, "input.normalize"), ({"normalize": "agreed", "min_count": 0}, "input.min_count")],
)
def test_an_agreement_that_is_none_is_refused(input_: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        make_spec(input_=input_)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_class_counts_are_refused_where_there_are_no_classes(kind: str) -> None:
    terms = ({"name": "fedavg"}, {"name": "mlp", "hidden": [4]}, 2, (3, 1, 1))
    with pytest.raises(SpecError, match=f"input.class_counts: expected none for task {kind}"):
        get_spec(*terms, kind=kind, input_=AGREED)
    assert get_spec(*terms, kind=kind, input_={"normalize": "agreed"}).name == "fedavg"


def test_statistics_are_found_in_an_aggregate() -> None:
    first = contribute(make_spec(), HONEST)
    agreed = Constants.from_arrays(get_kind(first, "statistics") or {}, 1)
    assert (agreed.sites, agreed.samples, agreed.classes) == (1, 12, (6, 6))
    assert agreed.mean == pytest.approx((4 / 3, 2 / 3))


# ---- empty cells


@given(st.integers(0, 2**32), st.lists(st.integers(10, 190), max_size=2))
def test_the_mean_that_fills_empty_cells_is_that_of_the_cells_there_are_however_they_are_split(
    seed: int, cuts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 9, (200, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.3] = EMPTY
    x[:, 2] = EMPTY
    bounds = [0, *sorted(cuts), len(x)]
    parts = [x[a:b] for a, b in pairwise(bounds) if b > a]
    told = [tell_some(part.tolist()) for part in parts]
    agreed = pool(told)
    whole = pool([tell_some(x.tolist())])
    if all((one["present"][:2] > 0).all() for one in told):  # else a site has told of too few
        assert (agreed.mean, agreed.std) == (whole.mean, whole.std)
    np.testing.assert_allclose(whole.mean[:2], np.nanmean(x[:, :2].astype(np.float64), 0), rtol=1e-12)
    np.testing.assert_allclose(whole.std[:2], np.nanstd(x[:, :2].astype(np.float64), 0), rtol=1e-9)
    assert (whole.mean[2], whole.std[2]) == (0.0, 1.0)  # nobody has one


def test_of_a_feature_that_is_there_in_too_few_rows_nothing_is_told() -> None:
    told = tell_some([[1.0, 7.0 if i < 4 else EMPTY] for i in range(10)])
    assert told["present"].tolist() == [10, 0]
    assert from_digits(told["sums"])[1] == from_digits(told["squares"])[1] == 0
    make_spec(input_=FILLING).validate_payload("statistics", told, 1)
    few = tell_some([[1.0, 7.0]] * 4)
    assert all(not array.any() for array in few.values())
    agreed = pool([told, few, tell_some([[3.0, 8.0]] * 10)])
    assert (agreed.mean, agreed.samples, agreed.sites) == ((2.0, 8.0), 20, 2)


@pytest.mark.parametrize(
    ("present", "problem"),
    [
        ([11, 10], "channel 0: expected 0 or 5 to 10 values that are present, got 11"),
        ([10, 4], "channel 1: expected 0 or 5 to 10 values that are present, got 4"),
        ([0, 10], "channel 0: expected sums of 0 samples"),
        ([5, 10], "channel 0: expected a sum of squares that values with this sum can have"),
    ],
)
def test_what_no_cells_can_have_is_refused(present: list[int], problem: str) -> None:
    told = tell_some([[1.0, 2.0]] * 10) | {"present": np.array(present, np.int64)}
    with pytest.raises(PayloadError, match=problem):
        make_spec(input_=FILLING).validate_payload("statistics", told, 1)


def test_a_capped_site_counts_as_few_cells_as_samples() -> None:
    large = tell_some([[100.0 if i % 2 else EMPTY, 1.0] for i in range(1000)])
    agreed = pool([*[tell_some([[0.0, 1.0]] * 10)] * 3, large], settings=RuleSettings(weight_cap=4))
    assert agreed.mean[0] == pytest.approx(100 * 20 / 50)


def test_of_a_feature_that_few_sites_have_no_liar_among_them_is_kept() -> None:
    honest = [tell_some([[float(i), 2.0], [float(i), 4.0]] * 5) for i in (1, 2, 3)]
    nobody = tell_some([[EMPTY, 3.0]] * 10)
    agreed = pool([*honest, nobody, tell_some([[1e11, 3.0]] * 10)], "trimmed_sum", RuleSettings(max_liars=1))
    assert 1 <= agreed.mean[0] <= 3


def test_cells_are_counted_where_the_mean_fills_them_and_nowhere_else() -> None:
    def list_arrays(**input_: Any) -> list[str]:
        described = describe_payloads(make_spec(input_={"normalize": "agreed", **input_}))
        assert not any("present" in name for name in described["aggregate"])
        return sorted(described["rounds"]["1"]["statistics"]["arrays"])

    assert list_arrays() == list_arrays(missing="zero") == ["count", "squares", "sums"]
    assert list_arrays(missing="mean") == list_arrays(missing="mean+flag") == ["count", "present", "squares", "sums"]
