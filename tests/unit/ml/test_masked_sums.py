"""Masked sums as validators recompute them: the method's own mean to the bit, whoever drops out, and nothing of what a
member must not send."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from chain.codec import MAX_MEMBERS
from ml.aggregation.masks import commit, list_opened, mask_vector, unmask
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, Arrays, decode_arrays, encode_arrays, to_rows
from ml.specs import (
    METHODS,
    AuthorPayloads,
    MaskedSpec,
    MethodSpec,
    compute_aggregate,
    get_kind,
    get_simulated_spec,
    get_spec,
)
from ml.specs.masked.aggregate import (
    count_clipped,
    count_spoiled,
    drop_masked,
    explain_lost,
    read_roster,
    read_shown,
    read_summed,
)
from ml.specs.masked.spec import EMPTY_INPUT, EMPTY_INPUT_BYTES, MOST_MEMBERS, describe_shown, get_unmasked_spec
from ml.specs.run_schema import describe_payloads
from support.data.contributions import author, prototypes
from support.data.normed import fit_model

MLP: Mapping[str, Any] = {"name": "mlp", "hidden": [2]}
INITIAL: Arrays = {
    "model/fc1.weight": np.ones((2, 3), np.float32),
    "model/fc1.bias": np.zeros(2, np.float32),
    "model/fc2.weight": np.full((2, 2), 0.5, np.float32),
    "model/fc2.bias": np.zeros(2, np.float32),
}
NUM_NUMBERS = 14  # of that model
ALL = (0, 1, 2, 3)


def make_plain(method: str = "fedavg", **terms: Any) -> MethodSpec:
    names = ("num_members", "max_weight", "max_abs", "rounds", "input_")
    given = {"num_members": 4, "max_weight": 1000, **{name: terms.pop(name) for name in names if name in terms}}
    return get_spec({"name": method, **terms}, fit_model(method, MLP, 2), 2, (3, 1, 1), **given)


def make_spec(method: str = "fedavg", **terms: Any) -> MaskedSpec:
    spec = make_plain(method, aggregation="masked_sum", **terms)
    assert isinstance(spec, MaskedSpec)
    return spec


def make_key(index: int, height: int = 1) -> bytes:
    """The public half of the key that a member shows at a height."""
    private = hashlib.sha256(f"key {index} of {height}".encode()).digest()
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def share(one: bytes, other: bytes, height: int) -> bytes:
    """The seed of two members, or of one with itself, for the inputs of a height."""
    return hashlib.sha256(b"".join(sorted([one, other])) + bytes([height])).digest()


def make_input(
    spec: MaskedSpec, index: int, height: int, roster: Sequence[bytes], arrays: Arrays, weight: int
) -> Arrays:
    me, values = author(index), spec.coding.encode(arrays, weight, spec.fraction_bits)
    seeds = [(other, share(me, other, height)) for other in roster]
    masked = mask_vector(values, me, share(me, me, height), [(other, seed) for other, seed in seeds if other != me])
    return {"values": masked, "commitments": to_rows([commit(seed) for _, seed in seeds])}


def make_opening(key: bytes, seeds: Sequence[bytes] = ()) -> Arrays:
    return {"key": np.frombuffer(key, np.uint8), "seeds": to_rows(seeds)}


def make_empty(spec: MaskedSpec, *who: int) -> list[AuthorPayloads]:
    """Inputs of members that have no part in the sum."""
    return [AuthorPayloads(author(i), 1, spec.empty_input) for i in who]


@dataclass(frozen=True)
class Sent:
    """What a member would send without masks, and what it shows beside that."""

    weight: int
    arrays: Arrays
    shown: Mapping[str, Arrays] = field(default_factory=dict)


class Played:
    """A run as validators see it: each height's contributions, checked and combined, and the aggregate of the last."""

    def __init__(self, spec: MaskedSpec, aggregate: Arrays = INITIAL) -> None:
        self.spec = spec
        self.aggregate = aggregate
        self.height = 0

    def add(self, contributions: Sequence[AuthorPayloads]) -> Arrays:
        """The aggregate of the next height."""
        self.height += 1
        for c in contributions:
            self.spec.validate_kinds(c.payloads, self.height)
            self.spec.validate_weight(c.weight)
            for kind, arrays in c.payloads.items():
                self.spec.validate_payload(kind, arrays, self.height)
            self.spec.validate_on_parent(c.author, c.payloads, self.aggregate, self.height)
        encoded = compute_aggregate(self.spec, self.height, contributions, self.aggregate)
        assert encoded is not None
        self.aggregate = decode_arrays(encoded, len(encoded))
        return self.aggregate

    def make_inputs(self, sent: Mapping[int, Sent]) -> list[AuthorPayloads]:
        roster = read_roster(self.aggregate)
        assert roster is not None
        return [
            AuthorPayloads(
                author(i),
                one.weight,
                {
                    "masked": make_input(self.spec, i, self.height + 1, roster.members, one.arrays, one.weight),
                    **one.shown,
                },
            )
            for i, one in sent.items()
        ]

    def make_seeds(self, index: int) -> list[bytes]:
        summed, me = read_summed(self.aggregate), author(index)
        if summed is None or me not in summed.members:
            return []
        return [share(me, other, self.height) for other in list_opened(me, summed.roster, summed.members)]

    def make_openings(self, *who: int) -> list[AuthorPayloads]:
        made = {i: make_opening(make_key(i, self.height + 1), self.make_seeds(i)) for i in who}
        return [AuthorPayloads(author(i), 1, {"masked": opening}) for i, opening in made.items()]

    def send(self, sent: Mapping[int, Sent]) -> Arrays:
        return self.add(self.make_inputs(sent))

    def open(self, *who: int, lost: Sequence[int] = ()) -> Arrays:
        """Those that have `lost` their seeds open nothing, and show a key all the same."""
        keys = [AuthorPayloads(author(i), 1, {"masked": make_opening(make_key(i, self.height + 1))}) for i in lost]
        return self.add([*self.make_openings(*(i for i in who if i not in lost)), *keys])


def combine_plain(spec: MaskedSpec, sent: Mapping[int, Sent], before: Arrays | None = None) -> Arrays:
    """What the method's own rule makes of the same, unmasked, after the aggregate `before`."""
    given = [
        AuthorPayloads(author(i), one.weight, {spec.coding.kind: one.arrays, **one.shown}) for i, one in sent.items()
    ]
    encoded = compute_aggregate(spec.inner, 1, given, before)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


def is_same(one: Arrays | None, other: Arrays) -> bool:
    """To the last bit."""
    return one is not None and encode_arrays(one) == encode_arrays(other)


def make_model(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name.removeprefix("model/"): rng.standard_normal(array.shape, np.float32) for name, array in INITIAL.items()
    }


def fill_model(value: float) -> dict[str, Array]:
    return {name.removeprefix("model/"): np.full(array.shape, value, np.float32) for name, array in INITIAL.items()}


def send_models(*who: int, seed: int = 0, weights: Sequence[int] = (7, 100, 999, 31)) -> dict[int, Sent]:
    return {i: Sent(weights[i], make_model(10 * seed + i)) for i in who}


def send_prototypes(*who: int, counted: bool, seed: int = 0) -> dict[int, Sent]:
    """Members 0 and 1 hold class 0 alone, the others both; class sizes as the number of a member has it."""
    sent = {}
    for i in who:
        rng = np.random.default_rng(10 * seed + i)
        rows = {c: rng.standard_normal(2).tolist() for c in ((0,) if i < 2 else (0, 1))}
        sent[i] = Sent(1, prototypes(rows, {c: 5 * i + c + 1 for c in rows} if counted else None))
    return sent


# ---- the mean


@dataclass(frozen=True)
class Case:
    """A method, what its members send in a round, and what its common part is called."""

    method: str
    settings: Mapping[str, Any]
    send: Callable[..., dict[int, Sent]]

    def make_spec(self) -> MaskedSpec:
        return make_spec(self.method, **self.settings)


def send_at_one(*who: int, seed: int = 0) -> dict[int, Sent]:
    return send_models(*who, seed=seed, weights=(1, 1, 1, 1))


def send_powers(*who: int, seed: int = 0) -> dict[int, Sent]:
    return send_models(*who, seed=seed, weights=(4, 64, 512, 16))


def send_owned(*who: int, seed: int = 0) -> dict[int, Sent]:
    return send_prototypes(*who, counted=False, seed=seed)


def send_counted(*who: int, seed: int = 0) -> dict[int, Sent]:
    return send_prototypes(*who, counted=True, seed=seed)


def make_pooled(seed: int, *classes: int) -> dict[str, Array]:
    """Prototypes that are kept apart, two of each of these classes, no longer than 1."""
    rows = np.random.default_rng(seed).uniform(-0.7, 0.7, (2 * len(classes), 2)).astype(np.float32)
    return {"classes": np.repeat(np.array(classes, np.int64), 2), "prototypes": rows}


def send_beside(*who: int, seed: int = 0) -> dict[int, Sent]:
    """Models, and prototypes beside them: member 0 holds no class, and member 1 one."""
    held = ((), (1,), (0, 1), (0, 1))
    models = send_models(*who, seed=seed)
    return {i: replace(one, shown={"prototypes": make_pooled(10 * seed + i, *held[i])}) for i, one in models.items()}


BESIDE = "models beside prototypes"
CASES = {
    "models by samples": Case("fedavg", {}, send_models),
    "models alike": Case("fedavg", {"weights": "uniform"}, send_at_one),
    "models in buckets": Case("fedavg", {"weights": "bucketed"}, send_powers),
    "models of another method": Case("moon", {}, send_models),
    "prototypes of owners": Case("dfpl", {}, send_owned),
    "prototypes by class sizes": Case("dfpl", {"proto_agg": "samples"}, send_counted),
    "prototypes of another method": Case("fedproto", {}, send_owned),
    BESIDE: Case("mpfedcl", {}, send_beside),
}


BOXED = {
    "models in a box": Case("fedavg", {"masked_radius": 0.5}, send_models),
    "prototypes in a box": Case("dfpl", {"masked_radius": 0.5}, send_owned),
    "models in a box beside prototypes": Case("mpfedcl", {"masked_radius": 0.5}, send_beside),
}


@pytest.mark.parametrize("name", CASES | BOXED)
def test_the_mean_is_that_of_the_methods_own_rule_to_the_bit_in_each_round(name: str) -> None:
    case = (CASES | BOXED)[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    means = []
    for seed in (0, 1):
        sent = case.send(*ALL, seed=seed)
        before = drop_masked(run.aggregate)
        assert is_same(drop_masked(run.send(sent)) or {}, before or {})
        means.append(drop_masked(run.open(*ALL)))
        assert is_same(means[-1], combine_plain(run.spec, sent, before))
    assert not is_same(means[0], means[1] or {})
    assert run.height == 5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gone", ALL)
def test_a_member_that_drops_out_between_keys_and_inputs_is_not_in_the_mean(name: str, gone: int) -> None:
    case = CASES[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    sent = case.send(*(i for i in ALL if i != gone))
    run.send(sent)
    mean = drop_masked(run.open(*ALL))  # it is back, with a key and nothing to open
    assert is_same(mean, combine_plain(run.spec, sent))
    run.send(case.send(*ALL, seed=1))
    assert is_same(drop_masked(run.open(*ALL)), combine_plain(run.spec, case.send(*ALL, seed=1)))


def test_a_mean_by_hand() -> None:
    """(1 * 3 + 2 * 1 + 3 * 1 + 4 * 3) / 8"""
    run = Played(make_spec())
    run.open(*ALL)
    run.send({i: Sent(weight, fill_model(i + 1)) for i, weight in enumerate((3, 1, 1, 3))})
    mean = run.open(*ALL)
    assert mean["model/fc1.weight"].tolist() == [[2.5] * 3] * 2
    assert mean["model/fc2.bias"].tolist() == [2.5] * 2
    assert mean["model/fc2.bias"].dtype == np.float32


def test_a_mean_of_classes_by_hand() -> None:
    run = Played(make_spec("dfpl", proto_agg="samples"), {})
    run.open(*ALL)
    rows = [({0: [1, 0]}, {0: 3}), ({0: [5, 4]}, {0: 1}), ({}, {}), ({1: [-2, 2]}, {1: 7})]
    run.send({i: Sent(1, prototypes(of, counts)) for i, (of, counts) in enumerate(rows) if of})
    mean = drop_masked(run.open(0, 1, 3))
    assert mean is not None
    assert mean["prototypes/classes"].tolist() == [0, 1]
    assert mean["prototypes/prototypes"].tolist() == [[2, 1], [-2, 2]]


def test_members_that_hold_no_class_have_prototypes_of_none() -> None:
    run = Played(make_spec("dfpl"), {})
    run.open(*ALL)
    nothing: dict[str, Array] = {"classes": np.empty(0, np.int64), "prototypes": np.empty((0, 2), np.float32)}
    sent = {i: Sent(1, nothing) for i in ALL}
    run.send(sent)
    mean = drop_masked(run.open(*ALL))
    assert is_same(mean, combine_plain(run.spec, sent))
    assert mean is not None
    assert mean["prototypes/prototypes"].shape == (0, 2)


def test_what_a_member_sends_does_not_show_who_holds_which_class() -> None:
    """The vectors of a member with a class and of one with none are alike long, and alike masked."""
    spec = make_spec("dfpl")
    roster = [author(i) for i in ALL]
    sent = [prototypes({0: [1, 2]}), prototypes({0: [1, 2], 1: [3, 4]})]
    values = [make_input(spec, 0, 2, roster, arrays, 1)["values"] for arrays in sent]
    assert [len(v) for v in values] == [spec.coding.size] * 2 == [2 * (2 + 1)] * 2
    assert spec.coding.encode(sent[0], 1, 3).tolist() == [8, 16, 0, 0, 1, 0]


def test_members_at_their_limits_have_a_mean() -> None:
    run = Played(make_spec(max_abs=100.0))
    run.open(*ALL)
    run.send({i: Sent(1000, fill_model(100)) for i in ALL})
    assert is_same(get_kind(run.open(*ALL), "model"), fill_model(100))


def test_the_order_of_contributions_does_not_count() -> None:
    run, backwards = Played(make_spec()), Played(make_spec())
    for height in (1, 2, 3):
        made = run.make_inputs(send_models(*ALL)) if run.spec.has_inputs(height) else run.make_openings(*ALL)
        assert encode_arrays(run.add(made)) == encode_arrays(backwards.add(made[::-1]))


# ---- what the aggregate carries


def test_after_keys_it_has_the_roster_and_the_model_before() -> None:
    aggregate = Played(make_spec()).open(2, 0, 3)
    assert is_same(drop_masked(aggregate), INITIAL)
    roster = read_roster(aggregate)
    assert roster is not None
    assert roster.members == (author(0), author(2), author(3))
    assert roster.keys == (make_key(0), make_key(2), make_key(3))
    assert read_summed(aggregate) is None


def test_after_inputs_it_has_their_sum_and_the_model_before() -> None:
    run = Played(make_spec())
    run.open(*ALL)
    inputs = run.make_inputs(send_models(0, 1, 3))
    summed = read_summed(run.add(inputs[::-1]))
    assert summed is not None
    assert (summed.roster, summed.members) == (tuple(map(author, ALL)), (author(0), author(1), author(3)))
    assert summed.keys == tuple(make_key(i) for i in ALL)
    assert (summed.weight, summed.fraction_bits) == (7 + 100 + 31, run.spec.fraction_bits)
    total = sum(sum(c.payloads["masked"]["values"].tolist()) for c in inputs)
    assert sum(summed.total.tolist()) % 2**64 == total % 2**64
    assert (summed.commitments == np.stack([c.payloads["masked"]["commitments"] for c in inputs])).all()
    assert read_roster(run.aggregate) is None
    assert is_same(drop_masked(run.aggregate), INITIAL)


def test_after_openings_it_has_the_mean_and_the_next_roster() -> None:
    run = Played(make_spec())
    run.open(0, 1, 2)
    run.send(send_models(0, 1, 2))
    roster = read_roster(run.open(0, 1, 2, 3))
    assert roster is not None
    assert roster.keys == tuple(make_key(i, 3) for i in ALL)
    assert not is_same(drop_masked(run.aggregate), INITIAL)


def test_of_the_parent_nothing_but_the_methods_own_kind_is_kept() -> None:
    run = Played(make_spec("dfpl"))
    assert drop_masked(run.open(*ALL)) is None  # the initial model is no prototype
    run.send(send_owned(*ALL))
    assert drop_masked(run.open(*ALL)) is not None


def test_drop_masked_leaves_what_the_method_knows() -> None:
    model = {"model/w": np.ones(2, np.float32)}
    assert drop_masked({**model, "masked/keys": np.zeros((1, 32), np.uint8)}) == model
    assert drop_masked({"masked/keys": np.zeros((1, 32), np.uint8)}) is None
    assert drop_masked({}) is drop_masked(None) is None


# ---- a run that follows another


def leave_summed() -> Played:
    """A run whose members have sent their inputs, and that opens nothing any more."""
    run = Played(make_spec())
    run.open(*ALL)
    run.send(send_models(*ALL))
    return run


@pytest.mark.parametrize("hidden", [[2], [1], [3]])
def test_the_first_height_of_a_run_takes_nothing_of_a_sum_that_the_run_before_has_left(hidden: list[int]) -> None:
    """A change that came after inputs has begun it: of the same model, or of more or fewer numbers."""
    method, model = {"name": "fedavg", "aggregation": "masked_sum"}, {"name": "mlp", "hidden": hidden}
    spec = get_spec(method, model, 2, (3, 1, 1), num_members=4, max_weight=1000)
    assert isinstance(spec, MaskedSpec)
    run = Played(spec, leave_summed().aggregate)
    keys = [AuthorPayloads(author(i), 1, {"masked": make_opening(make_key(i, 3))}) for i in ALL]
    assert is_same(drop_masked(run.add(keys)), INITIAL)
    assert read_roster(run.aggregate) is not None


def test_a_sum_that_the_run_before_has_left_is_opened_by_nobody() -> None:
    """Its members have sent inputs to another run, and seeds of that one are no openings of this."""
    before = leave_summed()
    seeds = before.make_seeds(0)
    assert len(seeds) == 1
    run = Played(make_spec(), before.aggregate)
    late = AuthorPayloads(author(0), 1, {"masked": make_opening(make_key(0, 3), seeds)})
    refuse(run, late, "expected no seeds of a member that is in no sum, got 1")


def test_a_sum_is_to_be_opened_at_the_height_after_it_and_at_no_other() -> None:
    run = leave_summed()
    assert [height for height in range(1, 8) if run.spec.read_summed(run.aggregate, height)] == [3, 5, 7]
    run.open(*ALL)
    assert not any(run.spec.read_summed(run.aggregate, height) for height in range(1, 8))
    assert run.spec.read_summed(None, 3) is None


def test_a_run_that_follows_begins_to_count_spoiled_sums_anew() -> None:
    before = Played(make_spec())
    before.open(*ALL)
    before.add(spoil(before.make_inputs(send_models(*ALL)), noise))
    assert count_spoiled(before.open(*ALL)) == 1
    assert count_spoiled(Played(make_spec(), before.aggregate).open(*ALL)) == 0


# ---- sums that come to nothing


@pytest.mark.parametrize("silent", [0, 2])
@pytest.mark.parametrize("name", ["models by samples", "prototypes by class sizes", BESIDE])
def test_where_one_in_the_sum_does_not_open_the_aggregate_before_stays(name: str, silent: int) -> None:
    case = CASES[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    run.send(case.send(0, 1, 2))
    first = drop_masked(run.open(*ALL))
    assert first is not None
    run.send(case.send(0, 1, 2, seed=1))
    others = [i for i in ALL if i != silent]
    aggregate = run.open(*others)
    assert is_same(drop_masked(aggregate), first)
    assert count_spoiled(aggregate) == 0  # nobody has lied
    sent = {i: one for i, one in case.send(*ALL, seed=2).items() if i != silent}
    run.send(sent)
    assert is_same(drop_masked(run.open(*ALL)), combine_plain(run.spec, sent))


@pytest.mark.parametrize("lost", [[0], [2], [0, 1, 2]])
@pytest.mark.parametrize("name", ["models by samples", "prototypes by class sizes", BESIDE])
def test_where_one_in_the_sum_opens_nothing_the_round_is_lost_and_the_next_is_not(name: str, lost: list[int]) -> None:
    """It has lost its key, and shows another; it sits out a round, in which the sum of all others would bare what the
    lost one has of it, and is in the sum after that."""
    case = CASES[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    run.send(case.send(0, 1, 2))
    first = drop_masked(run.open(*ALL))
    assert first is not None
    run.send(case.send(0, 1, 2, seed=1))
    assert is_same(drop_masked(run.open(*ALL, lost=lost)), first)
    roster = read_roster(run.aggregate)
    assert roster is not None
    others = [i for i in ALL if i not in lost]
    assert roster.members == tuple(map(author, others))
    sent = case.send(*others, seed=2)
    run.add([*run.make_inputs(sent), *make_empty(run.spec, *lost)])
    run.open(*ALL)
    if len(others) >= run.spec.quorum:
        assert is_same(drop_masked(run.aggregate), combine_plain(run.spec, sent))
    sent = case.send(*ALL, seed=3)
    run.send(sent)
    assert is_same(drop_masked(run.open(*ALL)), combine_plain(run.spec, sent))


def test_a_round_in_which_one_opens_nothing_is_neither_spoiled_nor_whole() -> None:
    """Else who lies could begin the count anew by opening nothing now and then, or blame whoever has lost a key."""
    run = Played(make_spec())
    run.open(*ALL)
    for _ in range(2):
        run.add(spoil(run.make_inputs(send_models(*ALL)), noise))
        run.open(*ALL)
    run.add(spoil(run.make_inputs(send_models(*ALL)), noise))
    assert count_spoiled(run.open(*ALL, lost=[3])) == 2
    run.add([*run.make_inputs(send_models(0, 1, 2)), *make_empty(run.spec, 3)])
    assert count_spoiled(run.open(*ALL, lost=[2])) == 2
    run.add([*spoil(run.make_inputs(send_models(0, 1, 3)), noise), *make_empty(run.spec, 2)])
    assert count_spoiled(run.open(*ALL)) == 3


def test_prototypes_of_a_first_round_that_comes_to_nothing_are_none() -> None:
    run = Played(make_spec("dfpl"), {})
    run.open(*ALL)
    run.send(send_owned(*ALL))
    assert drop_masked(run.open(0, 1, 2)) is None


# ---- why a round has no mean


def explain(aggregate: Arrays | None) -> str | None:
    return explain_lost(aggregate, lambda member: f"node{member[0]}")


def test_a_round_that_has_its_own_mean_has_nothing_to_explain() -> None:
    run = Played(make_spec())
    run.open(*ALL)
    assert explain(run.send(send_models(*ALL))) is None  # it is not over
    assert explain(run.open(*ALL)) is None
    run.add([*run.make_inputs(send_models(0, 2, 3)), *make_empty(run.spec, 1)])
    assert explain(run.open(0, 2, 3)) is None
    assert explain(INITIAL) is explain(None) is None


def test_a_round_names_whoever_has_not_opened_its_sum() -> None:
    """Who has sent no opening, and who has opened nothing; nobody that was in no sum."""
    run = Played(make_spec())
    run.open(*ALL)
    run.send(send_models(0, 1, 3))
    assert explain(run.open(0, 2, 3)) == "its sum was not opened by node1"
    run.send(send_models(0, 2, 3))
    assert explain(run.open(0, 1, 2, lost=[0])) == "its sum was not opened by node0, node3"


def test_a_round_whose_sum_is_out_of_range_says_so_and_names_nobody() -> None:
    run = Played(make_spec())
    run.open(*ALL)
    problem = "its sum is out of range, as somebody has lied"
    run.add(spoil(run.make_inputs(send_models(*ALL)), noise))
    assert explain(run.open(*ALL)) == problem
    run.add(spoil(run.make_inputs(send_models(*ALL)), noise))
    assert explain(run.open(0, 1, 2)) == "its sum was not opened by node3"  # and shows nothing
    run.send(send_models(0, 1, 2))
    assert explain(run.open(*ALL)) is None


def test_a_round_of_too_few_inputs_says_so() -> None:
    run = Played(make_spec())
    run.open(*ALL)
    run.add([*run.make_inputs(send_models(0, 1)), *make_empty(run.spec, 2, 3)])
    assert explain(run.open(*ALL)) == "too few members had a part in its sum"


# ---- members that have no part in a sum


@pytest.mark.parametrize("name", CASES)
def test_an_empty_input_is_in_no_sum_and_costs_it_nothing(name: str) -> None:
    """Of a member that has shown a key, and of one that has not."""
    case = CASES[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    sent = case.send(0, 2, 3)
    run.add([*run.make_inputs(sent), *make_empty(run.spec, 1, 9)])
    summed = read_summed(run.aggregate)
    assert summed is not None
    assert summed.members == (author(0), author(2), author(3))
    assert summed.weight == sum(one.weight for one in sent.values())
    assert is_same(drop_masked(run.open(*ALL, 9)), combine_plain(run.spec, sent))


@pytest.mark.parametrize("who", [1, 9])
def test_who_has_sent_an_empty_input_opens_nothing(who: int) -> None:
    """What it shares with those in the sum they open, and its own seed hides nothing."""
    run = Played(make_spec())
    run.open(*ALL)
    run.add([*run.make_inputs(send_models(0, 2, 3)), *make_empty(run.spec, who)])
    seeds = [share(author(who), author(who), 2)]
    opening = AuthorPayloads(author(who), 1, {"masked": make_opening(make_key(who, 3), seeds)})
    refuse(run, opening, "expected no seeds of a member that is in no sum, got 1", run.make_openings(0, 2, 3))
    assert len(run.make_seeds(0)) == 2  # its own, and what it shares with member 1


@pytest.mark.parametrize(("num_members", "least"), [(4, 3), (5, 4), (6, 5), (7, 5), (10, 7)])
def test_a_sum_is_of_a_quorum_of_real_inputs_at_least(num_members: int, least: int) -> None:
    everybody = range(num_members)
    spec = make_spec(num_members=num_members)
    assert spec.quorum == least
    for number in (least - 1, least):
        run = Played(spec)
        run.open(*everybody)
        sent = {i: Sent(1, make_model(i)) for i in range(number)}
        run.add([*run.make_inputs(sent), *make_empty(run.spec, *everybody[number:])])
        assert (read_summed(run.aggregate) is not None) is (number == least)


@pytest.mark.parametrize("real", [(), (2,), (0, 3)])
@pytest.mark.parametrize("name", ["models by samples", "prototypes by class sizes", BESIDE])
def test_of_fewer_inputs_than_a_quorum_nothing_is_summed_or_opened_and_keys_are_shown_anew(
    name: str, real: tuple[int, ...]
) -> None:
    case = CASES[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    run.send(case.send(*ALL))
    first = drop_masked(run.open(*ALL))
    assert first is not None
    inputs = run.make_inputs(case.send(*real, seed=1))
    run.add([*inputs, *make_empty(run.spec, *(i for i in ALL if i not in real))])
    assert is_same(drop_masked(run.aggregate), first)
    carried = {"masked/spoiled"} | ({"masked/shown"} if run.spec.shown else set())
    assert {name for name in run.aggregate if name.startswith("masked/")} == carried
    assert (read_summed(run.aggregate), read_roster(run.aggregate)) == (None, None)
    seeds = [share(author(2), author(2), 4)]
    bare = AuthorPayloads(author(2), 1, {"masked": make_opening(make_key(2, 5), seeds)})
    refuse(run, bare, "expected no seeds of a member that is in no sum, got 1", run.make_openings(0, 1, 3))
    assert is_same(drop_masked(run.open(*ALL)), first)
    roster = read_roster(run.aggregate)
    assert roster is not None
    assert roster.keys == tuple(make_key(i, 5) for i in ALL)
    sent = case.send(*ALL, seed=2)
    run.send(sent)
    assert is_same(drop_masked(run.open(*ALL)), combine_plain(run.spec, sent))


def test_a_block_of_empty_inputs_alone_needs_no_roster() -> None:
    """After a height of inputs that had too few, say, none is there."""
    spec = make_spec()
    encoded = compute_aggregate(spec, 2, make_empty(spec, *ALL), INITIAL)
    assert encoded is not None
    assert is_same(drop_masked(decode_arrays(encoded, len(encoded))), INITIAL)


def test_an_empty_input_is_the_shortest_payload_of_its_height() -> None:
    run = Played(make_spec("dfpl"), {})
    run.open(*ALL)
    lengths = [len(encode_arrays(c.payloads["masked"])) for c in run.make_inputs(send_owned(*ALL))]
    assert len(encode_arrays(EMPTY_INPUT)) == EMPTY_INPUT_BYTES < min(lengths)
    assert EMPTY_INPUT["values"].dtype == np.int64


# ---- a sum that grows while it waits


def test_a_sum_is_opened_as_it_was_sent_whoever_has_come_since() -> None:
    """Of three of four, where three are no quorum of the seven that there are at the openings; by the bits of then."""
    run = Played(make_spec())
    run.open(*ALL)
    sent = send_models(0, 1, 3)
    run.send(sent)
    bits, before = run.spec.fraction_bits, run.spec
    run.spec = make_spec(num_members=7)
    assert (run.spec.quorum, run.spec.fraction_bits) == (5, bits - 1)
    assert is_same(drop_masked(run.open(*range(7))), combine_plain(before, sent))
    sent = {i: Sent(1, make_model(i)) for i in range(5)}
    run.send(sent)
    assert is_same(drop_masked(run.open(*range(7))), combine_plain(run.spec, sent))


# ---- one opened mean is remembered


def open_again(run: Played, *who: int) -> Arrays:
    """The aggregate once more, as of another candidate for the same height."""
    encoded = compute_aggregate(run.spec, run.height + 1, run.make_openings(*who), run.aggregate)
    assert encoded is not None
    return decode_arrays(encoded, len(encoded))


def hide_sums(spec: MaskedSpec, *seeds: int) -> list[Played]:
    """Runs that one spec judges, whose members hide other numbers by the same seeds; each is about to be opened."""
    runs = [Played(spec) for _ in seeds]
    for run, seed in zip(runs, seeds, strict=True):
        run.open(*ALL)
        run.send(send_models(*ALL, seed=seed))
    return runs


def test_candidates_that_open_one_sum_have_the_same_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of it are taken off once: they are as long as the model, and as many as its members."""
    (run,) = hide_sums(make_spec(), 0)
    taken = []

    def count(*given: Any) -> Any:
        taken.append(given)
        return unmask(*given)

    monkeypatch.setattr("ml.specs.masked.spec.unmask", count)
    means = [get_kind(open_again(run, *who), "model") for who in (ALL, (*ALL, 9), ALL)]
    expected = get_kind(combine_plain(run.spec, send_models(*ALL)), "model")
    assert expected is not None
    assert all(is_same(mean, expected) for mean in means)
    assert len(taken) == 1


def test_a_mean_that_is_remembered_is_given_for_no_other_total() -> None:
    runs = hide_sums(make_spec(), 0, 1)
    for which in (0, 1, 0, 1, 1, 0):
        sent = send_models(*ALL, seed=which)
        assert is_same(drop_masked(open_again(runs[which], *ALL)), combine_plain(runs[which].spec, sent))


def test_a_mean_that_is_remembered_is_given_for_no_other_seeds() -> None:
    """Behind which the same total is noise."""
    (run,) = hide_sums(make_spec(), 0)
    mean = drop_masked(open_again(run, *ALL))
    assert not is_same(mean, INITIAL)
    other = Played(run.spec, dict(run.aggregate))
    other.height = run.height
    seeds = {i: [hashlib.sha256(bytes([i])).digest()] for i in ALL}
    commitments = run.aggregate["masked/commitments"].copy()
    for i, (seed,) in seeds.items():
        commitments[i, i] = np.frombuffer(commit(seed), np.uint8)
    other.aggregate = {**run.aggregate, "masked/commitments": commitments}
    openings = [AuthorPayloads(author(i), 1, {"masked": make_opening(make_key(i, 3), seeds[i])}) for i in ALL]
    assert is_same(drop_masked(other.add(openings)), INITIAL)
    assert count_spoiled(other.aggregate) == 1
    assert is_same(drop_masked(open_again(run, *ALL)), mean or {})


def test_that_a_sum_was_spoiled_is_remembered_of_no_other() -> None:
    run, other = hide_sums(make_spec(), 0, 1)
    run.aggregate = {**run.aggregate, "masked/total": noise(run.aggregate["masked/total"])}
    for _ in range(2):
        assert count_spoiled(open_again(run, *ALL)) == 1
        assert count_spoiled(open_again(other, *ALL)) == 0


@pytest.mark.parametrize(("name", "value"), [("weight", 2 * 1137), ("fraction_bits", 31)])
def test_a_mean_that_is_remembered_is_given_for_no_other_weight(name: str, value: int) -> None:
    """Of the same total by the same seeds: half as large."""
    (run,) = hide_sums(make_spec(), 0)
    mean = get_kind(open_again(run, *ALL), "model")
    assert mean is not None
    assert int(run.aggregate["masked/weight"]) == 1137
    run.aggregate = {**run.aggregate, f"masked/{name}": np.array(value, np.int64)}
    halved = {array_name: array / np.float32(2) for array_name, array in mean.items()}
    assert is_same(get_kind(open_again(run, *ALL), "model"), halved)


# ---- what is shown beside a sum


def start_beside(*who: int, seed: int = 0) -> Played:
    """A run whose inputs of its first round are in, with prototypes in the clear."""
    run = Played(CASES[BESIDE].make_spec())
    run.open(*ALL)
    run.add([*run.make_inputs(send_beside(*who, seed=seed)), *make_empty(run.spec, *(i for i in ALL if i not in who))])
    return run


def get_pool(aggregate: Arrays) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in (get_kind(aggregate, "prototypes") or {}).items()}


NO_POOL: dict[str, list[Any]] = {"classes": [], "prototypes": [], "authors": []}


def test_prototypes_come_into_force_with_the_mean_of_their_round_and_name_who_was_in_it() -> None:
    run = start_beside(0, 2, 3)
    assert get_pool(run.aggregate) == NO_POOL
    assert read_shown(run.aggregate) == []
    pool = get_pool(run.open(*ALL))
    assert pool["classes"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert pool["authors"] == [1, 1, 2, 2, 1, 1, 2, 2]
    assert read_shown(run.aggregate) == [author(0), author(2), author(3)]
    assert pool["prototypes"][:2] == make_pooled(2, 0, 1)["prototypes"][:2].tolist()


@pytest.mark.parametrize("how", ["silent", "spoiled", "too few"])
def test_where_a_round_is_lost_its_prototypes_are_too(how: str) -> None:
    """Model and pool are of one round always."""
    run = start_beside(0, 1, 2, 3)
    first, who = run.open(*ALL), read_shown(run.aggregate)
    assert get_pool(first)["classes"]
    given = run.make_inputs(send_beside(*ALL, seed=1))
    if how == "spoiled":
        given = spoil(given, noise)
    if how == "too few":
        given = [*given[:2], *make_empty(run.spec, 2, 3)]
    run.add(given)
    lost = run.open(*((0, 1, 2) if how == "silent" else ALL))
    assert explain(lost) is not None
    assert is_same(drop_masked(lost), drop_masked(first) or {})
    assert read_shown(lost) == who == [author(i) for i in ALL]
    assert not [name for name in lost if name.startswith("masked/prototypes/")]


def test_a_first_round_that_is_lost_leaves_the_model_it_began_with_and_no_prototypes() -> None:
    run = start_beside(*ALL)
    lost = run.open(0, 1, 2)
    assert is_same(get_kind(lost, "model"), get_kind(INITIAL, "model") or {})
    assert get_pool(lost) == NO_POOL
    assert run.spec.has_mean(lost)
    assert not run.spec.has_mean(INITIAL)


@pytest.mark.parametrize("left", ["inputs", "openings", "another method"])
def test_a_run_begins_without_prototypes_whatever_the_run_before_has_left(left: str) -> None:
    before = start_beside(*ALL)
    if left == "openings":
        before.open(*ALL)
    aggregate = before.aggregate
    if left == "another method":
        aggregate = {**INITIAL, "prototypes/classes": np.zeros(1, np.int64), "prototypes/sums": np.zeros((1, 7))}
    run = Played(CASES[BESIDE].make_spec(), aggregate)
    keys = [AuthorPayloads(author(i), 1, {"masked": make_opening(make_key(i))}) for i in ALL]
    assert get_pool(run.add(keys)) == NO_POOL
    assert read_shown(run.aggregate) == []
    assert {name for name in run.aggregate if name.startswith("prototypes/")} == {
        f"prototypes/{name}" for name in NO_POOL
    }


def test_who_has_no_part_in_the_sum_has_none_in_what_is_shown() -> None:
    """Else it could add to what others train against without the model that goes with it."""
    run = Played(CASES[BESIDE].make_spec())
    run.open(*ALL)
    shown = {"masked": EMPTY_INPUT, "prototypes": make_pooled(1, 0)}
    others = run.make_inputs(send_beside(1, 2, 3))
    refuse(run, AuthorPayloads(author(0), 1, shown), "expected no prototypes of a member that has no part", others)


def test_an_input_has_all_that_is_shown_and_openings_have_none_of_it() -> None:
    run = Played(CASES[BESIDE].make_spec())
    opening = run.make_openings(0)[0].payloads
    with pytest.raises(PayloadError, match=r"expected \['masked'\], got \['masked', 'prototypes'\]"):
        run.spec.validate_kinds([*opening, "prototypes"], 1)
    run.open(*ALL)
    payloads = run.make_inputs(send_beside(0))[0].payloads
    with pytest.raises(PayloadError, match=r"expected \['masked', 'prototypes'\], got \['masked'\]"):
        run.spec.validate_kinds(["masked"], 2)
    with pytest.raises(PayloadError, match="expected a payload 'prototypes', got none"):
        run.spec.validate_on_parent(author(0), {"masked": payloads["masked"]}, run.aggregate, 2)
    with pytest.raises(PayloadError, match="'prototypes' at height 3"):
        run.spec.validate_payload("prototypes", payloads["prototypes"], 3)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"classes": np.array([1, 1, 0, 0])}, "expected classes in ascending order"),
        ({"classes": np.array([0, 0, 0, 1])}, "expected at most 2 of a class, got 3"),
        ({"classes": np.array([0, 0, 2, 2])}, "array 'classes'"),
        ({"prototypes": np.full((4, 2), 0.8, np.float32)}, "expected rows of length 1.01 at most"),
        ({"prototypes": np.zeros((4, 3), np.float32)}, "array 'prototypes'"),
        ({"prototypes": np.zeros((5, 2), np.float32)}, "array 'prototypes'"),
        ({"prototypes": np.full((4, 2), np.nan, np.float32)}, "array 'prototypes'"),
        ({"authors": np.zeros(4, np.int64)}, "array 'authors' is not expected"),
    ],
)
def test_what_is_shown_is_held_to_the_methods_own_rules(change: dict[str, Array], problem: str) -> None:
    spec, sent = CASES[BESIDE].make_spec(), make_pooled(1, 0, 1)
    for height in (2, 4):
        spec.validate_payload("prototypes", sent, height)
        with pytest.raises(PayloadError, match=problem):
            spec.validate_payload("prototypes", {**sent, **change}, height)


@pytest.mark.parametrize("num_prototypes", [1, 50])
def test_no_aggregate_is_longer_than_is_said(num_prototypes: int) -> None:
    """Of members who show as much as they may, in two rounds, and the bound is near it."""
    run = Played(make_spec("mpfedcl", num_prototypes=num_prototypes))
    rows = 2 * num_prototypes
    full: Arrays = {
        "classes": np.repeat(np.arange(2), num_prototypes),
        "prototypes": np.zeros((rows, 2), np.float32),
    }
    run.open(*ALL)
    for _ in range(2):
        run.send({i: replace(one, shown={"prototypes": full}) for i, one in send_models(*ALL).items()})
        length, most = len(encode_arrays(run.aggregate)), run.spec.max_aggregate_bytes
        assert length <= most
        run.open(*ALL)
        assert len(encode_arrays(run.aggregate)) <= most
    assert most - length < 64 * 1024


@pytest.mark.parametrize("name", sorted({case.method for case in CASES.values()}))
def test_an_empty_input_is_valid_for_each_method(name: str) -> None:
    spec = make_spec(name)
    spec.validate_kinds(spec.empty_input, 2)
    for kind, arrays in spec.empty_input.items():
        spec.validate_payload(kind, arrays, 2)
    spec.validate_on_parent(author(0), spec.empty_input, INITIAL, 2)


def test_what_is_not_hidden_is_said() -> None:
    assert describe_shown(CASES[BESIDE].make_spec()) == (
        "masks hide the model alone: everybody sees prototypes, and they tell which classes a member holds, and how "
        "its own model embeds its samples"
    )
    assert describe_shown(make_spec()) is describe_shown(make_plain("mpfedcl")) is None


@pytest.mark.parametrize("cluster", ["kmeans", "mean", "dbscan"])
def test_whatever_makes_prototypes_goes_with_masks(cluster: str) -> None:
    """MP-FedCL, SP-FedCL and DP-FedCL."""
    spec = make_spec("mpfedcl", cluster=cluster)
    assert spec.rules(2) == {"masked": "masked_inputs", "prototypes": "pool"}
    assert spec.rules(3) == {"masked": "masked_openings"}
    assert spec.get_kept(2) == ("model", "prototypes")


def test_noise_in_prototypes_goes_with_masks_where_it_goes_without() -> None:
    assert make_spec("mpfedcl", cluster="mean", dp_noise=1.0).explain_not_private() is None
    assert "mean is one prototype a class" in (make_spec("mpfedcl").explain_not_private() or "")
    with pytest.raises(SpecError, match=r"^method\.dp_noise: .*mean is one prototype a class"):
        make_spec("mpfedcl", dp_noise=1.0)
    with pytest.raises(SpecError, match=r"^method\.dp_update_noise: .*sends something besides its model"):
        make_spec("mpfedcl", dp_update_noise=1.0)


# ---- sums that nobody can have sent


def spoil(inputs: list[AuthorPayloads], change: Callable[[Array], Array]) -> list[AuthorPayloads]:
    """The first of them with other values, behind the masks that it has committed to."""
    first, *others = inputs
    arrays = {**first.payloads["masked"], "values": change(first.payloads["masked"]["values"].copy())}
    return [replace(first, payloads={**first.payloads, "masked": arrays}), *others]


def add_at(index: int, value: int) -> Callable[[Array], Array]:
    def change(values: Array) -> Array:
        values[index : index + 1] += value  # modulo 2^64
        return values

    return change


def noise(values: Array) -> Array:
    return np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, len(values))


BOUND = 4000 * 10**6 * 2**30  # of a sum of four members of weight 1000, at 30 bits: as far as one number may be


@pytest.mark.parametrize("name", ["models by samples", "prototypes of owners", "prototypes by class sizes", BESIDE])
def test_an_input_of_random_bytes_leaves_the_aggregate_before_and_is_counted(name: str) -> None:
    case = CASES[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    run.send(case.send(*ALL))
    first = drop_masked(run.open(*ALL))
    assert first is not None
    for spoiled in (1, 2):
        run.add(spoil(run.make_inputs(case.send(*ALL, seed=1)), noise))
        assert count_spoiled(run.aggregate) == spoiled - 1
        assert is_same(drop_masked(run.open(*ALL)), first)
        assert count_spoiled(run.aggregate) == spoiled
    run.add(spoil(run.make_inputs(case.send(*ALL, seed=1)), noise))
    run.open(1, 2, 3)
    assert count_spoiled(run.aggregate) == 2  # what has not been opened shows nothing
    sent = case.send(1, 2, 3, seed=2)
    run.send(sent)
    assert is_same(drop_masked(run.open(*ALL)), combine_plain(run.spec, sent))
    assert count_spoiled(run.aggregate) == 0


@pytest.mark.parametrize(("index", "value"), [(0, 1 << 62), (NUM_NUMBERS - 1, -(1 << 62)), (3, (1 << 63) - 1)])
def test_one_number_out_of_range_spoils_a_sum_of_models(index: int, value: int) -> None:
    run = Played(make_spec())
    run.open(*ALL)
    run.add(spoil(run.make_inputs({i: Sent(1000, fill_model(0)) for i in ALL}), add_at(index, value)))
    assert is_same(drop_masked(run.open(*ALL)), INITIAL)
    assert count_spoiled(run.aggregate) == 1


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_is_told_to_be_out_of_range_by_what_real_numbers_could_come_to(sign: int) -> None:
    """Four members at weight 1000 and 1e6 from 0, at 30 bits, and rounded by half a unit each at most."""
    assert make_spec().fraction_bits == 30
    for value, mean in ((BOUND + 4, 1e6), (BOUND + 5, None)):
        run = Played(make_spec())
        run.open(*ALL)
        run.add(spoil(run.make_inputs({i: Sent(1000, fill_model(0)) for i in ALL}), add_at(0, sign * value)))
        aggregate = run.open(*ALL)
        if mean is None:
            assert is_same(drop_masked(aggregate), INITIAL)
        else:
            assert aggregate["model/fc1.bias"].tolist() == [sign * mean, 0]


@pytest.mark.parametrize(
    ("proto_agg", "index", "value", "is_taken"),
    [
        ("owners", 4, -4, True),  # of which class 0 has none then
        ("owners", 4, -5, False),
        ("owners", 5, 2, True),
        ("owners", 5, 3, False),  # 5 members of 4 that hold class 1
        ("samples", 4, 4000 - 34, True),
        ("samples", 4, 4000 - 33, False),  # 1 + 6 + 11 + 16 are there
        ("samples", 4, -35, False),
        ("owners", 0, 1 << 62, False),
    ],
)
def test_counts_of_a_class_that_nobody_can_have_spoil_a_sum(
    proto_agg: str, index: int, value: int, is_taken: bool
) -> None:
    """Behind the four numbers of two classes' sums there are two counts."""
    run = Played(make_spec("dfpl", proto_agg=proto_agg))
    run.open(*ALL)
    sent = send_prototypes(*ALL, counted=proto_agg == "samples")
    sent = {i: Sent(1, {**one.arrays, "prototypes": one.arrays["prototypes"] * 0}) for i, one in sent.items()}
    run.add(spoil(run.make_inputs(sent), add_at(index, value)))
    assert (drop_masked(run.open(*ALL)) is not None) is is_taken


# ---- one member that sets the mean


def set_mean(run: Played, sent: Mapping[int, Sent], target: Arrays) -> list[AuthorPayloads]:
    """Inputs of whose members the last puts into the sum what that lacks of `target` as the mean."""
    *_, liar = sent
    spec, bits = run.spec, run.spec.fraction_bits
    weight = sum(one.weight for one in sent.values())
    total = sum(spec.coding.encode(one.arrays, one.weight, bits) for one in sent.values())
    *honest, lie = run.make_inputs(sent)
    assert lie.author == author(liar)
    return [*honest, *spoil([lie], lambda values: values + spec.coding.encode(target, weight, bits) - total)]


WEIGHTS = {0: 1000, 1: 1000, 2: 1000, 3: 1}  # of which the last lies


def send_at_weights(seed: int = 0) -> dict[int, Sent]:
    return {i: Sent(weight, make_model(10 * seed + i)) for i, weight in WEIGHTS.items()}


def test_one_member_of_weight_1_sets_the_mean_to_any_model_each_round_where_nothing_bounds_it() -> None:
    run = Played(make_spec())
    run.open(*ALL)
    for target in (fill_model(123.5), fill_model(-1e5), make_model(99)):
        run.add(set_mean(run, send_at_weights(), target))
        mean = get_kind(run.open(*ALL), "model") or {}
        for name, array in target.items():
            assert np.abs(mean[name] - array).max() <= 1e-7 * np.abs(array).max()
        assert explain_lost(run.aggregate, bytes.hex) is None
        assert "masked/clipped" not in run.aggregate


@pytest.mark.parametrize("weight", [1, 1000])
def test_within_a_radius_it_moves_no_number_farther_than_that_whatever_its_weight(weight: int) -> None:
    run = Played(make_spec(masked_radius=0.25))
    run.open(*ALL)
    assert count_clipped(run.aggregate) == 0
    sent = {**send_at_weights(), 3: Sent(weight, make_model(3))}
    before = dict(drop_masked(run.aggregate) or {})
    for round_number in (1, 2, 3):
        run.add(set_mean(run, sent, fill_model(1000)))
        assert count_clipped(run.aggregate) is None  # after inputs there is no mean
        after = drop_masked(run.open(*ALL)) or {}
        for name, array in before.items():
            assert (after[name] == array + 0.25 * round_number).all()
        assert count_clipped(run.aggregate) == NUM_NUMBERS
        assert explain_lost(run.aggregate, bytes.hex) is None


def test_a_round_without_lies_is_the_same_where_its_radius_is_wide_enough() -> None:
    run, boxed = Played(make_spec()), Played(make_spec(masked_radius=10.0))
    for each in (run, boxed):
        each.open(*ALL)
        each.send(send_at_weights())
        each.open(*ALL)
    assert is_same(drop_masked(boxed.aggregate), drop_masked(run.aggregate) or {})
    assert count_clipped(boxed.aggregate) == 0
    assert count_clipped(run.aggregate) is None


def test_a_sum_out_of_range_is_not_taken_in_a_box_either() -> None:
    run = Played(make_spec(masked_radius=0.25))
    run.open(*ALL)
    run.add(spoil(run.make_inputs(send_at_weights()), noise))
    assert is_same(drop_masked(run.open(*ALL)), INITIAL)
    assert (count_spoiled(run.aggregate), count_clipped(run.aggregate)) == (1, 0)


def test_a_member_that_takes_a_class_out_of_the_counts_does_not_unbind_it() -> None:
    run = Played(make_spec("dfpl", masked_radius=0.25), {})
    run.open(*ALL)
    run.send({i: Sent(1, prototypes({0: [0.125, 0], 1: [0, 0.125]})) for i in ALL})
    run.open(*ALL)
    sent = {i: Sent(1, prototypes({0: [0, 0], 1: [0, 0.125]})) for i in ALL}
    run.add(spoil(run.make_inputs(sent), add_at(4, -4)))  # the count of class 0
    rows = run.open(*ALL)
    assert rows["prototypes/classes"].tolist() == [0, 1]
    assert rows["prototypes/prototypes"].tolist() == [[0.125, 0], [0, 0.125]]
    run.add(set_mean(run, sent, prototypes({0: [9, 9], 1: [0, 0.125]})))
    assert run.open(*ALL)["prototypes/prototypes"].tolist() == [[0.375, 0.25], [0, 0.125]]


# ---- what validators refuse


def refuse(run: Played, contribution: AuthorPayloads, problem: str, others: Sequence[AuthorPayloads] = ()) -> None:
    """Both of one contribution alone, and of a block that has it."""
    height = run.height + 1
    for kind, arrays in contribution.payloads.items():
        run.spec.validate_payload(kind, arrays, height)  # nothing is wrong with it by itself
    with pytest.raises(PayloadError, match=problem):
        run.spec.validate_on_parent(contribution.author, contribution.payloads, run.aggregate, height)
    with pytest.raises(AggregationError, match=f"{contribution.author.hex()[:8]}: {problem}"):
        compute_aggregate(run.spec, height, [*others, contribution], run.aggregate)


def stand_before_openings(*summed: int) -> Played:
    run = Played(make_spec())
    run.open(*ALL)
    run.send(send_models(*summed))
    return run


@pytest.mark.parametrize("who", ALL[:3])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda seeds: [bytes(32), *seeds[1:]], "expected the seed that it has committed to for {me}, got another"),
        (lambda seeds: [*seeds[:-1], seeds[-1][::-1]], "expected the seed that it has committed to for 03030303"),
        (lambda seeds: seeds[::-1], "expected the seed that it has committed to for {me}"),
        (lambda seeds: seeds[:1], "expected 2 seeds, got 1"),
        (lambda seeds: [*seeds, seeds[0]], "expected 2 seeds, got 3"),
    ],
)
def test_what_is_opened_has_to_be_what_was_committed_to(
    who: int, change: Callable[[list[bytes]], list[bytes]], problem: str
) -> None:
    run = stand_before_openings(0, 1, 2)
    opening = make_opening(make_key(who, 3), change(run.make_seeds(who)))
    others = [c for c in run.make_openings(*ALL) if c.author != author(who)]
    wrong = AuthorPayloads(author(who), 1, {"masked": opening})
    refuse(run, wrong, problem.format(me=author(who).hex()[:8]), others)


def test_seeds_of_members_in_the_sum_are_opened_by_nobody() -> None:
    """Else two members could be told apart from the others."""
    run = stand_before_openings(0, 1, 2)
    seeds = [*run.make_seeds(0), share(author(0), author(1), 2)]
    refuse(run, AuthorPayloads(author(0), 1, {"masked": make_opening(make_key(0), seeds)}), "expected 2 seeds, got 3")


@pytest.mark.parametrize("who", [3, 9])
def test_who_is_in_no_sum_opens_nothing(who: int) -> None:
    """One that was too late with its input, whose own seed would show it, and one that has never shown a key."""
    run = stand_before_openings(0, 1, 2)
    opening = make_opening(make_key(who), [share(author(who), author(who), 2)])
    refuse(
        run,
        AuthorPayloads(author(who), 1, {"masked": opening}),
        "expected no seeds of a member that is in no sum, got 1",
        run.make_openings(0, 1, 2),
    )
    run.add(run.make_openings(0, 1, 2) + run.make_openings(who))


def test_before_there_was_a_sum_nothing_is_opened() -> None:
    opening = make_opening(make_key(0), [bytes(32)])
    refuse(Played(make_spec()), AuthorPayloads(author(0), 1, {"masked": opening}), "expected no seeds of a member")


P = 2**255 - 19
ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
ALSO_ORDER_8 = 39382357235489614581723060781553021112529911719440698176882885853963445705823
SMALL_ORDER = [0, 1, ORDER_8, ALSO_ORDER_8, P - 1, P, P + 1]  # u-coordinates, the last two not in their least form


@pytest.mark.parametrize("point", [*SMALL_ORDER, *(point | 1 << 255 for point in SMALL_ORDER)])
def test_a_key_whose_secrets_everybody_knows_is_refused(point: int) -> None:
    """At the first height as well as beside openings; its highest bit is not looked at."""
    key, problem = point.to_bytes(32, "little"), "expected a key of X25519, got a point of small order"
    first = Played(make_spec())
    refuse(first, AuthorPayloads(author(0), 1, {"masked": make_opening(key)}), problem, first.make_openings(1, 2, 3))
    run = stand_before_openings(0, 1, 2)
    opening = make_opening(key, run.make_seeds(0))
    refuse(run, AuthorPayloads(author(0), 1, {"masked": opening}), problem, run.make_openings(1, 2, 3))


def test_an_input_of_somebody_who_has_shown_no_key_is_refused() -> None:
    run = Played(make_spec())
    run.open(0, 1, 2)
    late = Played(make_spec())
    late.open(*ALL)
    masked = dict(late.make_inputs(send_models(3))[0].payloads["masked"])
    masked["commitments"] = masked["commitments"][:3]
    problem = "expected an input of a member that has shown its key in time, and this one has not"
    refuse(run, AuthorPayloads(author(3), 1, {"masked": masked}), problem, run.make_inputs(send_models(0, 1, 2)))


@pytest.mark.parametrize(("count", "num_commitments"), [(0, 4), (1, 4), (NUM_NUMBERS - 1, 4), (NUM_NUMBERS - 1, 0)])
def test_values_have_to_be_all_of_the_models_or_none(count: int, num_commitments: int) -> None:
    """Nor is an input empty that commits to something."""
    run = Played(make_spec())
    run.open(*ALL)
    first, *others = run.make_inputs(send_models(*ALL))
    arrays = first.payloads["masked"]
    wrong = {"values": arrays["values"][:count], "commitments": arrays["commitments"][:num_commitments]}
    problem = f"expected {NUM_NUMBERS} values, or none, got {count}"
    refuse(run, AuthorPayloads(author(0), 1, {"masked": wrong}), problem, others)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_commitments_have_to_be_as_many_as_the_roster(count: int) -> None:
    run = Played(make_spec())
    run.open(*ALL)
    first, *others = run.make_inputs(send_models(*ALL))
    commitments = np.resize(first.payloads["masked"]["commitments"], (count, 32))
    wrong = {**first.payloads["masked"], "commitments": commitments}
    problem = f"expected 4 commitments, got {count}"
    refuse(run, AuthorPayloads(author(0), 1, {"masked": wrong}), problem, others)


def test_a_payload_of_another_height_or_none_is_refused() -> None:
    run = Played(make_spec())
    opening, spec = run.make_openings(0)[0], run.spec
    with pytest.raises(PayloadError, match="'values' is missing"):
        spec.validate_payload("masked", opening.payloads["masked"], 2)
    with pytest.raises(PayloadError, match="expected \\['masked'\\], got \\['model'\\]"):
        spec.validate_kinds(["model"], 2)
    with pytest.raises(PayloadError, match="expected a payload 'masked', got none"):
        spec.validate_on_parent(author(0), {}, INITIAL, 1)
    with pytest.raises(PayloadError, match="has shown its key in time"):
        spec.validate_on_parent(
            author(0), {"masked": make_input(spec, 0, 2, [author(0)], make_model(0), 1)}, INITIAL, 2
        )


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.zeros(NUM_NUMBERS + 1, np.int64)},
        {"values": np.zeros(NUM_NUMBERS, np.float64)},
        {"values": np.zeros((1, NUM_NUMBERS), np.int64)},
        {"values": np.zeros((0, 1), np.int64)},
        {"commitments": np.zeros((4, 31), np.uint8)},
        {"commitments": np.zeros(0, np.uint8)},
        {"commitments": np.zeros((MOST_MEMBERS + 1, 32), np.uint8)},
        {"commitments": np.zeros((4, 32), np.int64)},
        {"more": np.zeros(1, np.int64)},
    ],
)
def test_an_input_of_another_form_is_refused(change: Mapping[str, Array]) -> None:
    run = Played(make_spec())
    run.open(*ALL)
    masked = run.make_inputs(send_models(0))[0].payloads["masked"]
    run.spec.validate_payload("masked", masked, 2)
    with pytest.raises(PayloadError):
        run.spec.validate_payload("masked", {**masked, **change}, 2)


def test_no_payload_has_more_rows_than_there_can_be_members() -> None:
    assert MOST_MEMBERS > MAX_MEMBERS
    spec = make_spec()
    seeds = [bytes(32)] * MOST_MEMBERS
    spec.validate_payload("masked", make_opening(make_key(0), seeds), 3)
    with pytest.raises(PayloadError):
        spec.validate_payload("masked", make_opening(make_key(0), [*seeds, bytes(32)]), 3)


def test_contributions_of_nobody_of_one_author_twice_or_without_a_parent_are_no_aggregate() -> None:
    run = Played(make_spec())
    openings = run.make_openings(*ALL)
    for given, parent in (([], INITIAL), ([*openings, openings[0]], INITIAL), (openings, None)):
        with pytest.raises(AggregationError, match="masked_sum: expected"):
            compute_aggregate(run.spec, 1, given, parent)


# ---- which methods hide what they send

TAKEN = {
    "fedavg",
    "dfpl",
    "blade_fl",
    "moon",
    "swim",
    "fedintr",
    "fedprox",
    "fedproto",
    "mpfedcl",
    "fedrep",
    "ditto",
    "fedbn",
    "fedala",
}
BESIDES = {"fededs", "scaffold", "feddbe"}  # whose members have something else to tell each other
NO_MEAN = {"uapdfl", "fedper", "fedavg_p2p", "dfedavgm", "dispfl", "criticalfl"}  # nobody votes on one


def test_each_method_is_known_to_take_masks_or_not() -> None:
    assert METHODS.keys() == TAKEN | BESIDES | NO_MEAN | {"fednova", "local"}


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_a_method_under_masks_is_the_method_itself(name: str) -> None:
    spec, plain = make_spec(name, rounds=10), make_plain(name, rounds=10)
    assert spec.name == name
    assert spec.to_mapping() == {**plain.to_mapping(), "aggregation": "masked_sum"}
    assert spec.hides_samples is plain.hides_samples
    assert get_unmasked_spec(spec) is spec.inner
    assert spec.task == plain.task
    assert get_unmasked_spec(plain) is plain


@pytest.mark.parametrize("name", sorted(BESIDES))
def test_a_method_that_exchanges_something_else_besides_is_refused(name: str) -> None:
    method = {"name": name, "aggregation": "masked_sum"}
    with pytest.raises(SpecError, match=f"^method.aggregation: expected none of masked_sum: {name} exchanges somethin"):
        get_spec(method, MLP, 2, (3, 4, 4), num_members=4, max_weight=1000)


@pytest.mark.parametrize("name", sorted(NO_MEAN))
def test_a_method_without_a_common_model_knows_no_aggregation(name: str) -> None:
    with pytest.raises(SpecError, match=r"^method\.aggregation: unknown key"):
        make_spec(name)


@pytest.mark.parametrize(
    ("method", "terms", "problem"),
    [
        ("fednova", {}, "method.aggregation: expected mean, got 'masked_sum'"),
        (
            "fedavg",
            {"model_dtype": "float16"},
            "method.aggregation: expected none of masked_sum: models that travel as changes are no sum",
        ),
        ("fedavg", {"weight_cap": 3}, "method.weight_cap: expected none with aggregation masked_sum"),
        ("dfpl", {"weight_cap": 3}, "method.weight_cap: expected none with aggregation masked_sum"),
        ("mpfedcl", {"weight_cap": 3}, "method.weight_cap: expected none with aggregation masked_sum"),
        ("mpfedcl", {"model_dtype": "float16"}, "method.aggregation: .*models that travel as changes are no sum"),
        ("mpfedcl", {"reembed": True}, "method.aggregation: .*with reembed the last round of a run exchanges prototyp"),
        ("fedavg", {"clip": 1.0}, "method.clip: expected none with aggregation masked_sum"),
        ("fedavg", {"masked_radius": 0.0}, "method.masked_radius: expected a number in"),
        ("fedavg", {"masked_buffer_radius": 1.0}, "method.masked_buffer_radius: expected none without masked_radius"),
        (
            "fedavg",
            {"masked_radius": 0.1, "masked_buffer_radius": 1.0},
            "method.masked_buffer_radius: expected none: members send no running statistics",
        ),
        ("dfpl", {"masked_radius": 0.1, "masked_buffer_radius": 1.0}, "method.masked_buffer_radius: unknown key"),
        ("dfpl", {"proto_agg": "divide_by_K"}, "method.proto_agg: expected owners or samples with"),
        ("fedavg", {"input_": {"normalize": "agreed"}}, "input.normalize: expected none with aggregation masked_sum"),
        ("fedavg", {"input_": {"normalize": "inherited"}}, "input.normalize: expected none with"),
        ("fedavg", {"max_weight": 10_000, "max_abs": 1e12}, "limits.max_weight: .*sum of 4 members 8 bits.* leave 6$"),
        ("dfpl", {"num_members": 4, "max_abs": 1e17}, "limits.max_weight: .*leave 3$"),
    ],
)
def test_settings_that_do_not_go_with_masks_are_refused(method: str, terms: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=f"^{problem}"):
        make_spec(method, **terms)


@pytest.mark.parametrize("name", ["fedavg", "dfpl"])
def test_a_radius_is_of_masked_sums_alone(name: str) -> None:
    for aggregation in ("mean", "trimmed_mean"):
        with pytest.raises(
            SpecError, match=f"^method.masked_radius: expected none with aggregation {aggregation}: only"
        ):
            make_plain(name, aggregation=aggregation, masked_radius=0.1)


@pytest.mark.parametrize("name", ["fedavg", "dfpl"])
def test_a_radius_needs_the_aggregate_before(name: str) -> None:
    assert make_spec(name, masked_radius=0.1).inner.reads_parent(1)
    assert not make_spec(name).inner.reads_parent(1)


def test_running_statistics_that_are_sent_need_a_radius_of_their_own() -> None:
    def make(**terms: Any) -> MethodSpec:
        method = {"name": "fedavg", "aggregation": "masked_sum", "masked_radius": 0.1, **terms}
        return get_spec(method, {"name": "resnet18"}, 2, (3, 32, 32), num_members=4, max_weight=1000)

    with pytest.raises(
        SpecError, match=r"^method\.masked_buffer_radius: expected a number .*running_.*, or bn_buffers"
    ):
        make()
    assert make(masked_buffer_radius=2.0).to_mapping()["masked_buffer_radius"] == 2.0
    make(bn_buffers="local")
    with pytest.raises(SpecError, match=r"^method\.masked_buffer_radius: expected none: members send no running"):
        make(bn_buffers="local", masked_buffer_radius=2.0)


def test_how_many_bits_a_sum_has_follows_from_the_members_and_their_limits() -> None:
    assert make_spec().fraction_bits == 30  # 4 * 1000 * 1000000 < 2^32
    assert make_spec(num_members=5).fraction_bits == 29
    assert make_spec(weights="uniform").fraction_bits == 40
    assert make_spec(weights="bucketed").fraction_bits == 30
    assert make_spec("dfpl").fraction_bits == 40
    assert make_spec("dfpl", proto_agg="samples").fraction_bits == 30
    assert make_spec("mpfedcl").fraction_bits == 30


def test_where_nobody_has_said_how_many_members_there_are_nothing_is_hidden() -> None:
    """With no bits behind the point, say, as if there were none to have."""
    spec = make_spec(num_members=0)
    problem = "expected the number of members, which says how exact a sum can be"
    with pytest.raises(AggregationError, match=problem):
        _ = spec.fraction_bits
    run = Played(spec)
    run.open(*ALL)
    with pytest.raises(AggregationError, match=problem):
        run.make_inputs(send_models(*ALL))


def test_where_weights_say_nothing_they_are_one() -> None:
    for spec in (make_spec(weights="uniform"), make_spec("dfpl", proto_agg="samples")):
        spec.validate_weight(1)
        with pytest.raises(PayloadError, match="weight: expected 1, got 2"):
            spec.validate_weight(2)
    make_spec().validate_weight(1000)
    with pytest.raises(PayloadError, match="weight: expected 1 to 1000"):
        make_spec().validate_weight(1001)


# ---- heights and the method's own rounds


def test_a_round_takes_two_heights_after_one_of_keys() -> None:
    spec = make_spec(local_iterations=7)
    assert [spec.has_inputs(height) for height in range(1, 6)] == [False, True, False, True, False]
    assert [spec.to_inner(height) for height in range(1, 6)] == [0, 1, 1, 2, 2]
    assert [spec.get_round_number(height) for height in range(1, 6)] == [0, 1, 1, 2, 2]
    assert [spec.get_local_work(height) for height in range(1, 6)] == [0, 7, 0, 7, 0]
    for height in range(1, 6):
        assert spec.schemas(height).keys() == spec.rules(height).keys() == {"masked"}
        assert spec.reads_parent(height)
        assert spec.get_kept(height) == ("model",)
    assert spec.is_judged_on_parent
    assert not make_plain().is_judged_on_parent


@pytest.mark.parametrize("rounds", [0, 1, 4, 5])
def test_rounds_are_those_of_training_even_or_odd(rounds: int) -> None:
    spec = make_spec(rounds=rounds)
    assert spec.task.rounds == spec.inner.task.rounds == rounds


def test_a_learning_rate_falls_by_the_methods_own_rounds() -> None:
    terms: dict[str, Any] = {"rounds": 4, "lr": 1.0, "decay": 0.5}
    spec, plain = make_spec(**terms), make_plain(**terms)
    rates = [spec.compute_lr(spec.get_round_number(height)) for height in (2, 4, 6, 8)]
    assert rates == [plain.compute_lr(number) for number in (1, 2, 3, 4)] == [1.0, 0.5, 0.25, 0.125]


def test_a_simulation_has_the_same_mean_and_hides_nothing() -> None:
    terms: dict[str, Any] = {"num_members": 4, "max_weight": 1000, "rounds": 4}
    spec = get_simulated_spec({"name": "fedavg", "aggregation": "masked_sum"}, MLP, 2, (3, 1, 1), **terms)
    assert spec == make_spec(rounds=4).inner
    assert spec.rules(1) == {"model": "fixed_mean"}


# ---- the schema of a run


def test_the_schema_of_a_run_says_what_its_heights_carry_in_turn() -> None:
    inputs, openings = (describe_payloads(make_spec())["rounds"][name]["masked"] for name in ("inputs", "openings"))
    assert describe_payloads(make_spec()) == {
        "aggregate": {
            "model/fc1.weight": "float32[2,3]",
            "model/fc1.bias": "float32[2]",
            "model/fc2.weight": "float32[2,2]",
            "model/fc2.bias": "float32[2]",
            "masked/keys": "uint8[authors,32]",
            "masked/members": "uint8[authors,32]",
            "masked/spoiled": "int64[]",
            "masked/summed": "int64[]",
            "masked/silent": "uint8[n,32]",
        },
        "rounds": {
            "inputs": {
                "masked": {
                    "arrays": {"values": "int64[d]", "commitments": "uint8[n,32]"},
                    "rule": "masked_inputs",
                    "max_bytes": inputs["max_bytes"],
                    "bounds": {"n": "0..1024", "d": f"0..{NUM_NUMBERS}"},
                }
            },
            "openings": {
                "masked": {
                    "arrays": {"key": "uint8[32]", "seeds": "uint8[n,32]"},
                    "rule": "masked_openings",
                    "max_bytes": openings["max_bytes"],
                    "bounds": {"n": "0..1024"},
                }
            },
        },
    }
    assert inputs["max_bytes"] - openings["max_bytes"] >= 8 * NUM_NUMBERS - 32


def test_the_schema_of_a_run_with_a_radius_has_how_many_numbers_were_outside() -> None:
    described = describe_payloads(make_spec(masked_radius=0.1))
    plain = describe_payloads(make_spec())
    assert described == {**plain, "aggregate": {**plain["aggregate"], "masked/clipped": "int64[]"}}


def test_the_schema_of_a_run_has_what_is_shown_beside_its_inputs() -> None:
    described = describe_payloads(make_spec("mpfedcl"))
    assert {kind: payload["rule"] for kind, payload in described["rounds"]["inputs"].items()} == {
        "masked": "masked_inputs",
        "prototypes": "pool",
    }
    assert described["rounds"]["openings"].keys() == {"masked"}
    assert described["aggregate"].keys() - describe_payloads(make_spec())["aggregate"].keys() == {
        "masked/shown",
        "prototypes/authors",
        "prototypes/classes",
        "prototypes/prototypes",
    }


def test_it_does_not_hang_on_how_many_members_there_are() -> None:
    assert describe_payloads(make_spec(num_members=4)) == describe_payloads(make_spec(num_members=9))


@pytest.mark.parametrize("name", ["models by samples", "prototypes by class sizes", BESIDE, *BOXED])
def test_it_is_true_of_a_real_aggregate(name: str) -> None:
    case = (CASES | BOXED)[name]
    run = Played(case.make_spec())
    run.open(*ALL)
    run.send(case.send(*ALL))
    described = describe_payloads(run.spec)["aggregate"]
    aggregate = run.open(*ALL)
    assert described.keys() == aggregate.keys()
    for key, text in described.items():
        assert text.startswith(str(aggregate[key].dtype))
        assert text.count(",") == max(aggregate[key].ndim - 1, 0)


# ---- an outer optimiser


def get_outer(aggregate: Arrays) -> dict[str, Array]:
    return {name: array for name, array in aggregate.items() if not name.startswith("masked/")}


@pytest.mark.parametrize("radius", [None, 0.25])
def test_an_outer_optimiser_steps_where_a_sum_is_opened_and_rests_where_none_is(radius: float | None) -> None:
    outer = {"optimizer": "adam", "lr": 0.5}
    spec = make_spec(outer=outer) if radius is None else make_spec(outer=outer, masked_radius=radius)
    played, plain = Played(spec), {**INITIAL}
    played.open(*ALL)
    number = 0
    for seed, who, lost in ((1, ALL, [2]), (2, (0, 1, 3), []), (3, ALL, [0]), (4, (1, 2, 3), [])):
        sent = {i: Sent(1, make_model(seed)) for i in who}
        if not lost:  # the rule's own round, without masks, after the last that was opened
            number += 1
            given = [AuthorPayloads(author(i), one.weight, {"model": one.arrays}) for i, one in sent.items()]
            encoded = compute_aggregate(spec.inner, number, given, plain) or b""
            after = decode_arrays(encoded, len(encoded))
        before = get_outer(played.aggregate)
        assert is_same(get_outer(played.send(sent)), before)
        plain = plain if lost else after
        assert is_same(get_outer(played.open(*ALL, lost=lost)), plain)
    assert len(encode_arrays(played.aggregate)) < spec.max_aggregate_bytes
    assert set(plain) < set(describe_payloads(spec)["aggregate"])


def test_a_run_of_masked_sums_begins_with_no_moments() -> None:
    left = {**INITIAL, "outer/v1/fc1.bias": np.ones(2, np.float32)}
    played = Played(make_spec(outer={"optimizer": "momentum"}), left)
    assert is_same(get_outer(played.open(*ALL)), INITIAL)
