"""Evaluations for which sites lend: what a client lends, what it tells of what was lent, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.data import get_classes
from ml.errors import DataError, PayloadError, SpecError
from ml.methods import evaluation
from ml.payload import Arrays, encode_arrays, make_empty_arrays
from ml.specs import AuthorPayloads, Offer, add_kind, compute_aggregate, get_kind, get_spec
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.methods.lending import LENDING, LENT, MAX_MODELS, MEASURING, LendingSpec, split_rows
from ml.specs.run_schema import describe_payloads, has_whole_model
from ml.tasks import CLASSIFICATION, TASKS

DIGITS = {"format": "digits"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
MODEL = {"name": "mlp", "hidden": [16]}
METHOD: dict[str, Any] = {"name": "evaluation", "min_samples": 20, "lend": True, "of_run": 1, "of_round": 2}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "NUM_RESAMPLES", 10)
    monkeypatch.setattr(evaluation, "MIN_RESAMPLES", 10)


def make_spec(num_classes: int = 3, kind: str = CLASSIFICATION, **settings: Any) -> LendingSpec:
    spec = get_spec(METHOD | settings, MODEL, num_classes, (4, 1, 1), rounds=2, num_members=4, kind=kind)
    assert isinstance(spec, LendingSpec)
    return spec


def make_clients_of(method: Mapping[str, Any], rounds: int = 2) -> list[Client]:
    federation = Federation(
        method=method, model=MODEL, classes=get_classes(DIGITS), input=INPUT, rounds=rounds, num_members=3
    )
    return make_clients(federation, data=DIGITS, partition="dirichlet:1", run_seed=5)


def offer_all(payloads: Sequence[Arrays]) -> tuple[tuple[Offer, ...], dict[bytes, Arrays]]:
    digests = [hashlib.sha256(encode_arrays(one)).digest() for one in payloads]
    offers = tuple(Offer(bytes([i]) * 32, 1, {LENT: digest}) for i, digest in enumerate(digests))
    return offers, dict(zip(digests, payloads, strict=True))


@pytest.mark.parametrize("only_lent", [False, True])
def test_a_client_lends_what_another_run_has_left_and_measures_what_was_lent(only_lent: bool) -> None:
    trained = make_clients_of({"name": "dfpl", "local_iterations": 30})
    for client in trained:
        client.train(1, b"beacon")
    clients = make_clients_of(METHOD | ({"only_lent": True} if only_lent else {}))
    for client, lender in zip(clients[:2], trained, strict=False):
        client.take_own(lender.state_arrays(), lends=True)
    offers, blobs = offer_all([client.train(LENDING, b"beacon").payloads[LENT] for client in clients])
    spec = clients[0].spec
    assert isinstance(spec, LendingSpec)
    assert spec.list_lenders(offers) == list(offers[:2])
    assert spec.wanted_in_training(MEASURING, b"", b"", offers) == tuple(offer.digests[LENT] for offer in offers[:2])
    held = {digest: blobs[digest] for digest in spec.wanted_in_training(MEASURING, b"", b"", offers)}
    for client, own in zip(clients, trained, strict=True):
        before = client.state_arrays()
        told = client.train(MEASURING, b"beacon", offers=offers, blobs=held).payloads[EVALUATION]
        rows = split_rows(told)
        assert len(rows) == (2 if only_lent else 3)
        accuracies = [int(row["figures"][0, 0]) / 1e6 for row in rows[spec.num_common :]]
        for accuracy, lender in zip(accuracies, trained, strict=False):
            assert accuracy == pytest.approx(measure_by(own, lender), abs=0.6e-4)
        after = client.state_arrays()
        assert all(np.array_equal(after[name], before[name]) for name in after)
        assert get_kind(after, "state") is None  # what was lent is let go


def measure_by(judge: Client, lender: Client) -> float:
    """The accuracy of one client's classifier on another's test samples."""
    own = make_clients_of({"name": "fedavg"})[0]
    own.state.data = judge.state.data
    own.go_on_from(add_kind("model", get_kind(lender.state_arrays(), "model") or {}))
    return own.evaluate()["accuracy"]


def test_a_model_that_cannot_be_had_is_a_row_of_nothing() -> None:
    trained, client = make_clients_of({"name": "fedavg"})[0], make_clients_of(METHOD)[0]
    client.take_own(trained.state_arrays(), lends=True)
    offers, _ = offer_all([client.train(LENDING, b"beacon").payloads[LENT]])
    gone = frozenset([offers[0].author])
    assert not client.spec.wanted_in_training(MEASURING, b"", b"", offers, gone)
    told = client.train(MEASURING, b"beacon", offers=offers, gone=gone).payloads[EVALUATION]
    assert [int(row["samples"]) > 0 for row in split_rows(told)] == [True, False]


def test_a_model_that_gives_no_numbers_is_told_nothing_of_and_changes_nothing() -> None:
    client = make_clients_of(METHOD)[0]
    lent = {name: np.full([1, *one.shape[1:]], 3e38, one.dtype) for name, one in _get_lent(client).arrays.items()}
    offers, blobs = offer_all([lent])
    told = client.train(MEASURING, b"beacon", offers=offers, blobs=blobs).payloads[EVALUATION]
    assert [int(row["samples"]) > 0 for row in split_rows(told)] == [True, False]


def _get_lent(client: Client) -> Any:
    assert isinstance(client.spec, LendingSpec)
    return client.spec.lent_schema


def test_what_noise_has_hidden_and_what_is_another_model_is_not_lent() -> None:
    client = make_clients_of(METHOD)[0]
    hidden = make_clients_of({"name": "dfpl", "local_iterations": 1, "dp_noise": 2.0})[0]
    with pytest.raises(DataError, match="has hidden samples by noise"):
        client.take_own(hidden.state_arrays(), lends=True)
    with pytest.raises(DataError, match="is missing"):
        client.take_own({"model/other": np.zeros(3, np.float32)}, lends=True)
    spoiled = make_clients_of({"name": "fedavg"})[0].state_arrays()
    spoiled["model/fc1.bias"] = spoiled["model/fc1.bias"] * np.nan
    with pytest.raises(DataError, match="finite"):
        client.take_own(spoiled, lends=True)
    assert (client.train(LENDING, b"beacon").payloads[LENT]["fc1.bias"]).shape[0] == 0


@pytest.mark.parametrize("only_lent", [False, True])
def test_who_does_not_lend_sends_nothing_and_answers_by_its_own_where_none_is_in_common(only_lent: bool) -> None:
    trained = make_clients_of({"name": "dfpl", "local_iterations": 2, "dp_noise": 2.0})[0]
    trained.train(1, b"beacon")
    client = make_clients_of(METHOD | ({"only_lent": True} if only_lent else {}))[0]
    before = client.state_arrays()
    client.take_own(trained.state_arrays(), lends=False)
    after, own = client.state_arrays(), trained.state_arrays()
    expected = own if only_lent else before
    assert all(np.array_equal(after[name], expected[name]) for name in before)
    assert (client.train(LENDING, b"beacon").payloads[LENT]["fc1.bias"]).shape[0] == 0


def test_a_client_of_another_run_lends_nothing() -> None:
    client = make_clients_of({"name": "fedavg"})[0]
    before = client.state_arrays()
    client.take_own(before, lends=True)
    assert client.state_arrays().keys() == before.keys()


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("num_classes", [2, 64, 65])
def test_rows_are_checked_one_by_one_and_short(kind: str, num_classes: int) -> None:
    spec = make_spec(num_classes, kind)
    spec.validate_payload(EVALUATION, spec.stack([spec.tell_nothing()] * MAX_MODELS), MEASURING)
    spec.validate_payload(EVALUATION, spec.stack([]), MEASURING)
    assert spec.schemas(MEASURING)[EVALUATION].max_bytes < 1 << 20  # what is never let go
    with pytest.raises(PayloadError, match="models"):
        spec.validate_payload(EVALUATION, spec.stack([spec.tell_nothing()] * (MAX_MODELS + 1)), MEASURING)
    lie = spec.tell_nothing()
    lie["figures"] = lie["figures"] * 0
    with pytest.raises(PayloadError, match=r"row 1: .*expected nothing of 0 samples"):
        spec.validate_payload(EVALUATION, spec.stack([spec.tell_nothing(), lie]), MEASURING)


def test_no_more_than_so_many_are_measured() -> None:
    offers = [Offer(bytes([i]) * 32, 1, {LENT: bytes([i + 1]) * 32}) for i in range(MAX_MODELS + 5)]
    for spec, most in ((make_spec(), MAX_MODELS - 1), (make_spec(3, only_lent=True), MAX_MODELS)):
        assert len(spec.list_lenders(offers)) == most
        assert len(spec.wanted_in_training(MEASURING, b"", b"", offers)) == most


def test_the_aggregate_stays_as_it_was() -> None:
    spec = make_spec()
    wanted = spec.task.model_schema.arrays
    model = add_kind("model", {name: np.ones([int(n) for n in one.shape], one.dtype) for name, one in wanted.items()})
    nothing = make_empty_arrays(spec.lent_schema)
    for height, payload in ((LENDING, {LENT: nothing}), (MEASURING, {EVALUATION: spec.stack([])})):
        assert compute_aggregate(spec, height, [AuthorPayloads(b"a", 1, payload)], model) == encode_arrays(model)
    assert has_whole_model(spec, describe_payloads(spec)["aggregate"])
    assert describe_payloads(spec)["aggregate"].keys() == model.keys()


@pytest.mark.parametrize(
    ("settings", "rounds", "said"),
    [
        ({}, 1, "expected 2 of evaluation with lend, got 1"),
        ({}, 0, "expected 2"),
        ({"lend": False, "only_lent": True}, 1, "expected none without lend"),
        ({"of_round": None, "of_run": None}, 2, "expected it beside lend"),
        ({"lend": "yes"}, 2, "expected true or false"),
    ],
)
def test_what_cannot_be_a_run_is_refused(settings: dict[str, Any], rounds: int, said: str) -> None:
    method = {key: value for key, value in (METHOD | settings).items() if value is not None}
    with pytest.raises(SpecError, match=said):
        get_spec(method, MODEL, 3, (4, 1, 1), rounds=rounds, num_members=4)


def test_samples_are_normalised_by_constants() -> None:
    with pytest.raises(SpecError, match="expected constants with lend"):
        get_spec(METHOD, MODEL, 3, (4, 1, 1), rounds=3, input_={"normalize": "agreed", "min_count": 5})
