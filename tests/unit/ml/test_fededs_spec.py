"""FedEDS as validators know it: its schedules (ALGORITHMS §12.4), draws, sets (§12.8), and what it refuses."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from ml.aggregation import RULES, Contributed
from ml.aggregation.nova import MAX_STEPS
from ml.errors import PayloadError, SpecError
from ml.payload import CHUNK_BYTES, Array, compute_chunk_digests, encode_arrays
from ml.specs import AuthorPayloads, Offer, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.architectures import parameter_shapes
from ml.specs.methods.fededs import FedEdsSpec, compute_epochs, compute_lambdas, compute_last_round, rank_peers
from support.data.contributions import author

SMALL = {"name": "mlp", "hidden": [4, 2]}
RESNET = {"name": "resnet18_nobn"}
SHAPE = (1, 4, 4)
BEACON = bytes(range(32))


def spec_of(
    model: dict[str, Any] = SMALL, shape: tuple[int, int, int] = SHAPE, rounds: int = 0, **settings: Any
) -> FedEdsSpec:
    num_classes = 3 if model is SMALL else 10
    spec = get_spec({"name": "fededs", **settings}, model, num_classes, shape, rounds=rounds)
    assert isinstance(spec, FedEdsSpec)
    return spec


def set_of(spec: FedEdsSpec, n: int = 2) -> dict[str, Array]:
    dtype = spec.hyperparameters.share_dtype
    arrays: dict[str, Array] = {
        "x": np.full((n, *SHAPE), 3, dtype),
        "y": np.tile(np.array([0.7, 0.2, 0.1], np.float32), (n, 1)),
    }
    if dtype == "uint8":
        arrays |= {"scale": np.full(1, 0.5, np.float32), "offset": np.full(1, -1, np.float32)}
    if spec.layer_shape:
        arrays["layer"] = np.ones(spec.layer_shape, np.float32)
    return arrays


def model_of(value: float) -> dict[str, Array]:
    shapes = parameter_shapes(SMALL, SHAPE, 3)
    return {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}


def offers_of(*indices: int) -> list[Offer]:
    return [Offer(author(i), 1, {"encrypted_set": bytes([100 + i]) * 32, "chunk_digests": bytes(32)}) for i in indices]


def digest_of(offer: Offer | None) -> bytes:
    assert offer is not None
    return offer.digests["encrypted_set"]


# ---- schedules, by hand


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((5, 1, 1, 3), [5, 3, 1, 1, 1]),
        ((10, 2, 2, 7), [10, 10, 9, 7, 6, 4, 2, 2, 2]),
        ((5, 1, 2, 2), [5, 5, 1, 1]),  # a step
        ((4, 4, 1, 3), [4, 4, 4, 4]),  # no annealing
    ],
)
def test_epochs_fall_between_two_rounds(settings: tuple[int, int, int, int], expected: list[int]) -> None:
    assert [compute_epochs(t, *settings) for t in range(1, len(expected) + 1)] == expected


@pytest.mark.parametrize(("rounds", "total"), [(30, 36), (100, 106)])
def test_annealing_leaves_few_epochs_to_make(rounds: int, total: int) -> None:
    spec = spec_of()
    assert sum(spec.get_local_work(height) for height in range(2, rounds + 2)) == total


@pytest.mark.parametrize(
    ("m", "falling", "last"),
    [
        (3.0, [0.5, 0.047425873178], 2),
        (1.0, [0.5, 0.268941421370, 0.119202922022, 0.047425873178, 0.017986209962], 5),
        (0.5, [0.5], 10),
        (0.1, [0.5], 46),
    ],
)
def test_sets_weigh_less_from_round_to_round_and_then_nothing(m: float, falling: list[float], last: int) -> None:
    pairs = [compute_lambdas(t, m, 0.01) for t in range(1, last + 3)]
    assert [d for _, d in pairs[: len(falling)]] == pytest.approx(falling, abs=1e-12)
    assert all(0 < d == pytest.approx(1 - c) for c, d in pairs[:last])
    assert pairs[last:] == [(1, 0), (1, 0)]
    assert compute_last_round(m, 0.01) == last


def test_the_weights_of_the_first_rounds_are_the_papers() -> None:
    spec = spec_of()
    assert spec.compute_lambdas(1) == (1, 0)  # the sharing round, which has none
    assert [spec.compute_lambdas(height) for height in (2, 3, 4, 5)] == [
        (0.5, 0.5),
        (pytest.approx(0.952574126822, abs=1e-12), pytest.approx(0.047425873178, abs=1e-12)),
        (1, 0),
        (1, 0),
    ]
    assert compute_lambdas(3, 3.0, 0.0)[1] == pytest.approx(0.002472623157, abs=1e-12)


def test_by_the_fraction_of_the_rounds_sets_are_trained_on_to_the_end() -> None:
    spec = spec_of(lambda_clock="fraction", rounds=101)  # 100 after the sharing round
    assert spec.compute_lambdas(2) == (0.5, 0.5)
    assert spec.compute_lambdas(101)[1] == compute_lambdas(100, 3.0, 0.01, 100)[1]
    assert spec.compute_lambdas(102)[1] == pytest.approx(math.exp(-3) / (1 + math.exp(-3)), rel=1e-12)  # 0.047
    assert spec.get_shared_height(101) == 1
    assert (spec.needed_until(1) or 0) > 101


@pytest.mark.parametrize(("m", "eps", "last"), [(0.0, 0.01, None), (0.0, 0.5, None), (3.0, 0.6, 0), (3.0, 1.0, 0)])
def test_sets_may_be_trained_on_without_end_or_never(m: float, eps: float, last: int | None) -> None:
    assert compute_last_round(m, eps) == last
    spec = spec_of(m=m, eps=eps)
    assert spec.needed_until(1) == (None if last is None else 1)
    assert spec.get_shared_height(2) == (1 if last is None else None)


# ---- heights


def test_the_first_height_shares_and_the_papers_rounds_follow() -> None:
    spec = spec_of(warmup_epochs=7, share_collect_s=60)
    assert spec.shares_samples
    assert [spec.get_round_number(height) for height in (1, 2, 3)] == [0, 1, 2]
    assert [spec.get_local_work(height) for height in (1, 2, 3, 4, 5)] == [7, 5, 3, 1, 1]
    assert [spec.get_collect_s(height, 2.5) for height in (1, 2)] == [60, 2.5]
    assert [spec.get_streamed(height) for height in (1, 2)] == [{"encrypted_set": "chunk_digests"}, {}]
    assert [spec.get_shared_height(height) for height in (1, 2, 3, 4)] == [None, 1, 1, None]
    assert [spec.needed_until(height) for height in (0, 1, 2, 3)] == [0, 3, 2, 3]
    assert (spec.get_shared_height(0), spec.get_streamed(0)) == (None, {})
    assert [spec_of(keep_sets=keeps).keeps_shared for keeps in (False, True)] == [False, True]
    assert not spec_of(keep_sets=True, share=False).keeps_shared
    assert [sorted(spec.schemas(height)) for height in (1, 2)] == [["chunk_digests", "encrypted_set"], ["model"]]
    assert [spec.reads_parent(height) for height in (1, 2)] == [True, False]


def test_without_sharing_epochs_are_annealed_and_nothing_else() -> None:
    spec = spec_of(share=False, shape=(1, 2, 3), base="fedprox")
    plain = get_spec({"name": "fedavg"}, SMALL, 3, (1, 2, 3))
    assert not spec.shares_samples
    for height, epochs in ((1, 5), (2, 3), (3, 1)):
        assert (spec.get_round_number(height), spec.get_local_work(height)) == (height, epochs)
        assert (spec.schemas(height), spec.rules(height)) == (plain.schemas(height), plain.rules(height))
        assert spec.compute_lambdas(height) == (1, 0)
        assert (spec.get_shared_height(height), spec.needed_until(height)) == (None, height)
        assert spec.get_collect_s(height, 2.5) == 2.5
        assert spec.wanted_in_training(height, BEACON, author(0), offers_of(0, 1)) == ()
    assert spec.explain(1, BEACON, offers_of(0, 1), None) == {"epochs": 5, "lambda_c": 1, "lambda_dis": 0}


# ---- draws


def test_others_are_ranked_by_a_digest_of_the_beacon_the_client_and_the_draw() -> None:
    others = [author(i) for i in range(1, 6)]

    def key(other: bytes) -> bytes:
        return hashlib.sha256(b"fednode.sets" + BEACON + author(0) + bytes([0, 0, 1, 2]) + other).digest()

    assert rank_peers(BEACON, author(0), 258, [author(0), *others]) == tuple(sorted(others, key=key))
    assert rank_peers(BEACON, author(0), 0, [author(0)]) == ()


def test_each_draw_takes_the_best_ranked_whose_set_can_be_had() -> None:
    spec, offers = spec_of(), offers_of(0, 1, 2, 3)
    ranked = rank_peers(BEACON, author(2), 4, [offer.author for offer in offers])
    for missing in range(3):
        drawn = spec.draw(BEACON, author(2), offers[::-1], 4, gone=set(ranked[:missing]))
        assert drawn is not None
        assert drawn.author == ranked[missing]
    assert spec.draw(BEACON, author(2), offers, 4, gone=set(ranked)) is None
    assert spec.draw(BEACON, author(2), offers_of(2), 4) is None


def test_everyone_else_is_drawn_about_as_often() -> None:
    spec, offers = spec_of(), offers_of(*range(5))
    drawn = [spec.draw(BEACON, author(0), offers, index) for index in range(1000)]
    times = {i: sum(offer is not None and offer.author == author(i) for offer in drawn) for i in range(5)}
    assert times[0] == 0
    assert all(190 < times[i] < 310 for i in range(1, 5))


@pytest.mark.parametrize(("how", "num_draws"), [("epoch", 5), ("round", 1)])
def test_training_wants_what_is_drawn_once_each(how: str, num_draws: int) -> None:
    spec, offers = spec_of(draw=how), offers_of(0, 1, 2, 3)
    gone = frozenset({author(3)})
    drawn = [digest_of(spec.draw(BEACON, author(0), offers, index, gone)) for index in range(num_draws)]
    wanted = spec.wanted_in_training(2, BEACON, author(0), offers, gone)
    assert list(wanted) == list(dict.fromkeys(drawn))
    assert bytes([103]) * 32 not in wanted
    assert spec.wanted_in_training(4, BEACON, author(0), offers) == ()  # when they weigh nothing any more
    assert spec.wanted_in_training(1, BEACON, author(0), ()) == ()


def test_drawing_ends_when_everyone_is_drawn() -> None:
    spec = spec_of(local_epochs=1 << 30)
    wanted = spec.wanted_in_training(2, BEACON, author(0), offers_of(0, 1, 2, 3))
    assert sorted(wanted) == [bytes([100 + i]) * 32 for i in (1, 2, 3)]


def test_where_each_batch_draws_all_others_sets_are_wanted() -> None:
    spec, offers = spec_of(draw="batch"), offers_of(0, 1, 2, 3)
    assert spec.wanted_in_training(2, BEACON, author(1), offers, frozenset({author(3)})) == (
        bytes([100]) * 32,
        bytes([102]) * 32,
    )
    assert len(spec.wanted_in_training(2, BEACON, author(9), offers)) == 4  # who shared none itself draws all the same


def test_a_round_is_explained_by_its_epochs_its_weights_and_its_draws() -> None:
    spec, shared = spec_of(), offers_of(0, 1, 2, 3)
    block = [Offer(author(i), 1, {"model": bytes(32)}) for i in (1, 3)]
    assert spec.explain(1, BEACON, shared, None) is None
    plain = {"epochs": 5, "lambda_c": 0.5, "lambda_dis": 0.5}
    assert spec.explain(2, BEACON, block, None) == plain
    told = spec.explain(2, BEACON, block, None, shared=shared)
    assert told is not None
    place = {author(1): 0, author(3): 1}
    expected = [
        [place[offer.author] for offer in spec.get_drawn(2, BEACON, me, shared) if offer.author in place]
        for me in place
    ]
    assert told == {**plain, "nodes": [{"peers": peers} for peers in expected]}
    assert any(expected)  # five draws of three, two of whom are in the block


# ---- sets


@pytest.mark.parametrize(
    ("num_clients", "cifar_mb", "fmnist_mb"), [(5, 123.28, 38.11), (10, 61.64, 19.06), (20, 30.82, 9.53)]
)
def test_sets_weigh_what_the_paper_says(num_clients: int, cifar_mb: float, fmnist_mb: float) -> None:
    for shape, num_samples, megabytes in (((3, 32, 32), 50_000, cifar_mb), ((1, 28, 28), 60_000, fmnist_mb)):
        share_max = num_samples // num_clients
        plain = spec_of(RESNET, shape, share_max=share_max, layer="identity").schemas(1)["encrypted_set"].max_bytes
        schemas = spec_of(RESNET, shape, share_max=share_max).schemas(1)
        assert plain / 1e6 == pytest.approx(megabytes, abs=0.005)
        assert schemas["encrypted_set"].max_bytes == pytest.approx(plain + 512 * 512 * 4, abs=100)
        assert schemas["chunk_digests"].bounds["m"] == (1, -(-schemas["encrypted_set"].max_bytes // CHUNK_BYTES))


def test_a_smaller_type_makes_a_smaller_set() -> None:
    sizes = [
        spec_of(RESNET, (3, 32, 32), share_dtype=dtype, layer="identity").schemas(1)["encrypted_set"].max_bytes / 1e6
        for dtype in ("float32", "float16", "uint8")
    ]
    assert sizes == pytest.approx([123.28, 61.84, 31.12], abs=0.005)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [("gaussian", (2, 2)), ("orthogonal", (2, 2)), ("conv1x1", (2, 2)), ("diag", (2,)), ("identity", ())],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_a_set_has_samples_soft_labels_and_the_layer(layer: str, shape: tuple[int, ...], dtype: str) -> None:
    spec = spec_of(layer=layer, share_dtype=dtype, share_max=2)
    assert spec.layer_shape == shape
    made = set_of(spec)
    assert len(encode_arrays(made)) == spec.schemas(1)["encrypted_set"].max_bytes
    spec.validate_payload("encrypted_set", made, 1)
    spec.validate_payload("chunk_digests", {"digests": compute_chunk_digests(made)}, 1)
    spec.validate_kinds(["encrypted_set", "chunk_digests"], 1)
    with pytest.raises(PayloadError, match=r"expected \['model'\], got"):
        spec.validate_kinds(["encrypted_set", "chunk_digests"], 2)


def test_the_layer_is_as_wide_as_what_the_last_linear_takes() -> None:
    assert spec_of({"name": "cnn_cifar"}, (3, 32, 32)).layer_shape == (512, 512)
    assert spec_of({"name": "vgg11", "classifier": 4096}, (3, 32, 32), layer="diag").layer_shape == (4096,)


NAN = np.float32(np.nan)


@pytest.mark.parametrize(
    ("dtype", "name", "value", "message"),
    [
        ("float32", "x", np.full((3, *SHAPE), 1, np.float32), "expected 1 <= n <= 2, got 3"),
        ("float32", "x", np.full((0, *SHAPE), 1, np.float32), "expected 1 <= n <= 2, got 0"),
        ("float32", "x", np.full((1, *SHAPE), 1, np.float32), r"'y': expected shape \[n, 3\], n = 1, got \[2, 3\]"),
        ("float32", "x", np.full((2, 1, 4, 5), 1, np.float32), r"'x': expected shape \[n, 1, 4, 4\]"),
        ("float32", "x", np.full((2, *SHAPE), 1, np.float16), "'x': expected dtype float32, got float16"),
        ("uint8", "x", np.full((2, *SHAPE), 1, np.float32), "'x': expected dtype uint8, got float32"),
        ("float32", "x", np.full((2, *SHAPE), np.inf, np.float32), "'x': expected finite"),
        ("float32", "x", np.full((2, *SHAPE), -10_001, np.float32), "'x': expected numbers from -10000 to 10000, got"),
        ("float16", "x", np.full((2, *SHAPE), 10_008, np.float16), "'x': expected numbers from -10000 to 10000, got"),
        ("float32", "layer", np.full((2, 2), 10_001, np.float32), "'layer': expected numbers from"),
        ("float32", "layer", np.full((2, 2), np.nan, np.float32), "'layer': expected finite"),
        ("float32", "layer", np.ones(2, np.float32), r"'layer': expected shape \[2, 2\]"),
        ("float32", "layer", None, "'layer' is missing"),
        ("float32", "scale", np.ones(1, np.float32), "'scale' is not expected"),
        ("uint8", "scale", None, "'scale' is missing"),
        ("uint8", "scale", np.full(1, -0.1, np.float32), "'scale': expected numbers from 0 to 10000"),
        ("uint8", "scale", np.full(1, 10_001, np.float32), "'scale': expected numbers from 0"),
        ("uint8", "offset", np.full(1, -10_001, np.float32), "'offset': expected numbers from -10000"),
        ("uint8", "offset", np.full(1, np.nan, np.float32), "'offset': expected finite"),
        (
            "float32",
            "y",
            np.array([[1, 0, 0], [0.5, 0.5, 0.0011]], np.float32),
            "'y': expected rows that sum to 1, got",
        ),
        ("float32", "y", np.array([[1, 0, 0], [0.4, 0.5, 0]], np.float32), "'y': expected rows that sum to 1, got 0.9"),
        (
            "float32",
            "y",
            np.array([[1, 0, 0], [1.5, -0.5, 0]], np.float32),
            "'y': expected numbers from 0 to 1, got -0.5",
        ),
        ("float32", "y", np.array([[1, 0, 0], [NAN, 1, 0]], np.float32), "'y': expected finite"),
        ("float32", "y", np.array([[1, 0, 0], [0, 1, 0]], np.float64), "'y': expected dtype float32"),
    ],
)
def test_a_set_that_nobody_should_train_on_is_refused(dtype: str, name: str, value: Array | None, message: str) -> None:
    spec = spec_of(share_dtype=dtype, share_max=2)
    made = {key: array for key, array in (set_of(spec) | {name: value}).items() if array is not None}
    with pytest.raises(PayloadError, match=rf"payload 'encrypted_set': .*{message}"):
        spec.validate_payload("encrypted_set", made, 1)


def test_labels_may_be_off_by_as_much_as_rounding_makes() -> None:
    spec = spec_of()
    spec.validate_payload("encrypted_set", set_of(spec) | {"y": np.array([[1, 0, 0], [0.5, 0.5, 9e-4]], np.float32)}, 1)
    further = set_of(spec) | {"y": np.array([[1, 0, 0], [0.5, 0.5, 2e-3]], np.float32)}
    with pytest.raises(PayloadError, match=r"rows that sum to 1, got 1\.002"):
        spec.validate_payload("encrypted_set", further, 1)


@pytest.mark.parametrize("where", ["x", "y"])
def test_a_large_set_is_looked_at_in_little_memory(where: str) -> None:
    spec, n = spec_of(share_max=200_000), 200_000
    made = set_of(spec, n)
    tracemalloc.start()
    try:
        spec.validate_payload("encrypted_set", made, 1)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20 < made[where].nbytes
    finally:
        tracemalloc.stop()
    made[where][-1] += 2e4  # the last of all blocks
    with pytest.raises(PayloadError, match=f"array '{where}': expected numbers from"):
        spec.validate_payload("encrypted_set", made, 1)


# ---- what is aggregated


def test_the_sharing_rounds_aggregate_is_block_0s() -> None:
    spec = spec_of()
    assert spec.rules(1) == {"encrypted_set": "carry", "chunk_digests": "carry"}
    initial = add_kind("model", model_of(0.5))
    given = [AuthorPayloads(author(i), 1, {}) for i in (1, 0)]  # nobody needs the sets for it
    assert compute_aggregate(spec, 1, given, initial) == encode_arrays(initial)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, "weighted_mean"),
        ({"weights": "uniform"}, "uniform_mean"),
        ({"base": "fedprox"}, "weighted_mean"),
        ({"base": "fednova"}, "nova"),
    ],
)
def test_models_combine_as_the_base_does(settings: dict[str, Any], rule: str) -> None:
    spec = spec_of(**settings)
    assert spec.rules(2) == {"model": rule}
    numbers = spec.make_numbers(3) if rule == "nova" else {}
    payloads = [{**model_of(value), **numbers} for value in (1.0, 2.0)]
    initial = add_kind("model", model_of(0.0))
    for payload in payloads:
        spec.validate_payload("model", payload, 2)
    given = [AuthorPayloads(author(i), 1, {"model": payload}) for i, payload in enumerate(payloads)]
    expected = RULES[rule]([Contributed(g.author, 1, g.payloads["model"]) for g in given], get_kind(initial, "model"))
    assert compute_aggregate(spec, 2, given, initial) == encode_arrays(add_kind("model", expected))


def test_with_fednova_epochs_are_known_and_steps_are_the_authors_word() -> None:
    by_step, by_epoch = spec_of(base="fednova", momentum=0.9), spec_of(base="fednova", momentum=0.9, unit="epochs")
    assert [by_epoch.get_fixed_steps(height) for height in (2, 3, 4)] == [5, 3, 1]
    assert by_step.get_fixed_steps(2) is None
    sent = {**model_of(1.0), **by_step.make_numbers(3)}
    assert sent["norm"].tolist() == [pytest.approx(5.61)]
    by_step.validate_payload("model", sent, 2)
    by_epoch.validate_payload("model", sent, 3)
    with pytest.raises(PayloadError, match="expected local_steps 5, got 3"):
        by_epoch.validate_payload("model", sent, 2)
    with pytest.raises(PayloadError, match=r"expected norm 5.6\d* of 3 steps, got 5.0"):
        by_step.validate_payload("model", {**sent, "norm": np.array([5.0])}, 2)
    with pytest.raises(PayloadError, match="'local_steps' is not expected"):
        spec_of().validate_payload("model", sent, 2)


# ---- settings


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        ({"local_iterations": 5}, "method.local_iterations", "fededs expects local_epochs, which it anneals, got 5"),
        ({"local_iterations": 5, "local_epochs": 5}, "method.local_epochs", "got both"),
        ({"budget_s": 5}, "method.budget_s", "fededs expects none"),
        ({"min_epochs": 6}, "method.min_epochs", "expected local_epochs, 5, at most, got 6"),
        ({"anneal_from": 4}, "method.anneal_to", "expected anneal_from, 4, at least, got 3"),
        ({"min_epochs": 0}, "method.min_epochs", "expected a whole number from 1"),
        ({"share_max": 0}, "method.share_max", "expected a whole number from 1"),
        (
            {"share_max": 1 << 30, "shape": (64, 1024, 1024)},
            "method.share_max",
            "such a set cannot be sent: .*too large",
        ),
        ({"share_per_class": 0}, "method.share_per_class", "expected a whole number from 1"),
        ({"eps": 1.1}, "method.eps", r"expected a number in \[0, 1\]"),
        ({"m": -1}, "method.m", r"expected a number in \[0, inf\)"),
        ({"layer": "none"}, "method.layer", "expected one of gaussian, orthogonal, diag, conv1x1, identity"),
        ({"base": "moon"}, "method.base", "expected one of fedavg, fedprox, fednova, got 'moon'"),
        ({"base": "fednova", "decay_unit": "step"}, "method.decay_unit", "expected round"),
        (
            {"base": "fednova", "unit": "epochs", "local_epochs": MAX_STEPS + 1},
            "method.local_epochs",
            f"fednova expects at most {MAX_STEPS}",
        ),
        ({"lambda_clock": "fraction"}, "rounds", "expects 2 at least with lambda_clock fraction, got no end"),
        ({"lambda_clock": "fraction", "rounds": 1}, "rounds", "expects 2 at least with lambda_clock fraction, got 1"),
        ({"shape": (1, 4, 6)}, "input.shape", r"multiples of 4 to share sets, got \[1, 4, 6\]"),
        ({"shape": (1, 6, 4)}, "input.shape", r"multiples of 4 to share sets, got \[1, 6, 4\]"),
        (
            {"model": {"name": "head_256"}, "shape": (3, 32, 32)},
            "model",
            "fededs expects one that sees images, got head_256",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_place(settings: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        spec_of(**settings)
    assert caught.value.path == path


def test_a_models_own_norm_is_in_fednovas_way_alone() -> None:
    own = {
        "name": "mine:make",
        "plugin": {"name": "mine", "version": "1", "sha256": "0" * 64},
        "parameters": {"norm": [4], "fc.weight": [10, 4]},
        "buffers": {},
        "embedding": 4,
        "layers": [4],
        "classifier": ["fc.weight"],
    }
    assert spec_of(own).layer_shape == (4, 4)
    with pytest.raises(SpecError, match="fednova expects a model without a 'norm' of its own"):
        spec_of(own, base="fednova")


def test_defaults_are_the_papers_where_it_gives_them_and_are_written_out() -> None:
    spec = spec_of()
    assert spec.to_mapping() == {
        "name": "fededs",
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "decay": 1.0,
        "decay_unit": "round",
        "batch_size": 32,
        "drop_last": False,
        "local_epochs": 5,
        "aggregation": "mean",
        "weights": "samples",
        "bn_buffers": "average",
        "base": "fedavg",
        "mu": 0.1,
        "unit": "steps",
        "share": True,
        "min_epochs": 1,
        "anneal_from": 1,
        "anneal_to": 3,
        "m": 3.0,
        "eps": 0.01,
        "lambda_clock": "round",
        "draw": "epoch",
        "layer": "gaussian",
        "warmup_epochs": 5,
        "encryptor_epochs": 20,
        "encryptor_lr": 0.001,
        "encryptor_weight_decay": 0.01,
        "unet_width": 64,
        "unet_out": "linear",
        "share_dtype": "float32",
        "share_max": 10000,
        "share_collect_s": 3600.0,
        "keep_sets": False,
    }
    changed = spec_of(local_epochs=9, share_per_class=50, base="fednova", unit="epochs")
    assert (changed.hyperparameters.counts_epochs, changed.hyperparameters.local_work) == (True, 9)
    assert spec_of(**{k: v for k, v in changed.to_mapping().items() if k != "name"}).hyperparameters == (
        changed.hyperparameters
    )
