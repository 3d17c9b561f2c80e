"""MP-FedCL's pool of the averaged model, the round that closes a run, and answers that a prior shifts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ml.clients.client import Client
from ml.clients.priors import choose_own_kappa, compute_own_log_prior, make_predict_at
from ml.errors import MlError, PayloadError, SpecError
from ml.methods.common.clustering import cluster_by_kmeans
from ml.methods.common.codebooks import OWN
from ml.payload import Array, Arrays, encode_arrays
from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, simulate
from ml.specs import get_kind, get_spec
from ml.specs.methods.mpfedcl import MpFedClSpec
from ml.specs.run_schema import describe_payloads
from ml.training.prior import KAPPAS
from support.federation.simulated import MLP, make_digit_clients, run_round

METHOD: dict[str, Any] = {"name": "mpfedcl", "reembed": True, "local_iterations": 5}
ROUNDS = 4


def make_clients(**settings: Any) -> list[Client]:
    return make_digit_clients({**METHOD, **settings}, partition="dirichlet:0.3", rounds=ROUNDS)


@torch.no_grad()
def embed(client: Client, x: torch.Tensor) -> Array:
    """v(x) by the model as it stands."""
    vectors: Array = F.normalize(client.state.model.eval().embed(x), dim=1).numpy()
    return vectors


def cluster_plainly(client: Client, height: int) -> tuple[Array, Array]:
    """K centroids of each class of a client's own embeddings by the model as it stands."""
    samples = client.state.data.train
    found = cluster_by_kmeans(
        torch.from_numpy(embed(client, samples.x)),
        samples.y,
        2,
        lambda c: numpy_rng(client.seed, "kmeans", height, c),
    )
    return found.classes, found.prototypes


# ---- the pool


def test_what_is_sent_is_of_the_model_that_the_round_begins_with_and_nothing_in_the_first() -> None:
    clients = make_clients()
    assert [len(made.payloads["prototypes"]["classes"]) for made in run_round(clients, 1)] == [0, 0, 0]
    assert clients[0].predict(clients[0].state.data.matched.x).distances is None  # the classifier's
    expected = [cluster_plainly(client, 2) for client in clients]
    for made, (classes, prototypes) in zip(run_round(clients, 2), expected, strict=True):
        assert made.payloads["prototypes"]["classes"].tolist() == classes.tolist()
        assert made.payloads["prototypes"]["prototypes"] == pytest.approx(prototypes, abs=1e-6)


def test_as_printed_what_is_sent_is_of_the_model_that_was_trained() -> None:
    for settings in ({"reembed": False}, {"reembed": None}):
        method = {key: value for key, value in {**METHOD, **settings}.items() if value is not None}
        clients = make_digit_clients(method, partition="dirichlet:0.3", rounds=ROUNDS)
        for height in range(1, ROUNDS + 1):
            trained = [client.train(height, bytes(32)) for client in clients]
            for client, made in zip(clients, trained, strict=True):
                assert made.payloads["prototypes"]["prototypes"] == pytest.approx(
                    cluster_plainly(client, height)[1], abs=1e-6
                )
                assert "model" in made.payloads


def test_the_last_round_exchanges_prototypes_alone_and_brings_the_pool_level() -> None:
    clients = make_clients()
    for height in range(1, ROUNDS):
        run_round(clients, height)
    before = encode_arrays(get_kind(clients[0].state_arrays(), "model") or {})
    for made in run_round(clients, ROUNDS):
        assert made.payloads.keys() == {"prototypes"}
        assert (made.metrics["steps"], made.metrics["iterations"]) == (0, 0)
    for client in clients:
        assert encode_arrays(get_kind(client.state_arrays(), "model") or {}) == before
    pool = get_kind(clients[0].state.arrays, "pool") or {}
    for author, client in enumerate(clients):
        classes, prototypes = cluster_plainly(client, ROUNDS)
        own = pool["authors"] == author
        assert pool["classes"][own].tolist() == classes.tolist()
        assert pool["prototypes"][own] == pytest.approx(prototypes, abs=1e-6)


def test_nobody_trains_in_the_closing_round_however_many_steps_would_fit() -> None:
    clients = make_clients()
    for height in range(1, ROUNDS):
        run_round(clients, height)
    metrics = clients[0].train(ROUNDS, bytes(32), num_iterations=7).metrics
    assert metrics["steps"] == 0
    assert "alpha_s" not in metrics  # or rounds that are added later would be planned by it


def test_validators_take_prototypes_alone_in_the_closing_round_and_never_else() -> None:
    spec = make_clients()[0].spec
    assert isinstance(spec, MpFedClSpec)
    assert spec.closing_height == ROUNDS
    assert spec.rules(ROUNDS) == {"prototypes": "pool"}
    assert tuple(spec.get_kept(ROUNDS)) == ("model",)
    assert spec.reads_parent(ROUNDS)
    spec.validate_kinds(["prototypes"], ROUNDS)
    with pytest.raises(PayloadError, match="height 3: expected"):
        spec.validate_kinds(["prototypes"], ROUNDS - 1)
    with pytest.raises(PayloadError, match="height 4: expected"):
        spec.validate_kinds(["model", "prototypes"], ROUNDS)


@pytest.mark.parametrize("input_", [{}, {"shape": [1, 8, 8], "normalize": "agreed"}])
def test_the_schema_of_a_run_is_the_same_however_many_rounds_it_is_given_later(input_: dict[str, Any]) -> None:
    """Members may agree on another number of rounds, and the schema that they agreed on stays (FEDERATION)."""
    schemas = [
        describe_payloads(get_spec(METHOD, MLP, 10, (1, 8, 8), rounds=rounds, num_members=4, input_=input_ or None))
        for rounds in (0, 1, 3, 4, 12)
    ]
    assert all(schema == schemas[0] for schema in schemas)
    assert schemas[0]["rounds"].keys() == ({"1", "2..", "last"} if input_ else {"1..", "last"})
    assert schemas[0]["rounds"]["last"].keys() == {"prototypes"}


def test_prototypes_in_the_first_round_are_refused() -> None:
    """Nothing has been averaged yet: one member's would be all there are, and everyone would train against them."""
    clients = make_clients()
    (made, *_), spec = run_round(clients, 1), clients[0].spec
    spec.validate_payload("prototypes", made.payloads["prototypes"], 1)
    lie: Arrays = {"classes": np.arange(10), "prototypes": np.eye(10, 32, dtype=np.float32)}
    with pytest.raises(PayloadError, match="'prototypes': expected none in the first round, got 10"):
        spec.validate_payload("prototypes", lie, 1)
    spec.validate_payload("prototypes", lie, 2)
    as_printed = get_spec({"name": "mpfedcl"}, MLP, 10, (1, 8, 8), rounds=ROUNDS)
    as_printed.validate_payload("prototypes", lie, 1)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_without_end_or_of_one_round_has_no_closing_round(rounds: int) -> None:
    spec = get_spec(METHOD, MLP, 10, (1, 8, 8), rounds=rounds)
    assert isinstance(spec, MpFedClSpec)
    assert spec.closing_height is None
    assert spec.schemas(max(rounds, 1)).keys() == {"model", "prototypes"}


def test_statistics_come_before_and_the_closing_round_is_the_last_all_the_same() -> None:
    input_ = {"shape": [1, 8, 8], "normalize": "agreed"}
    spec = get_spec(METHOD, MLP, 10, (1, 8, 8), rounds=6, num_members=4, input_=input_)
    assert spec.schemas(6).keys() == {"prototypes"}
    assert spec.schemas(5).keys() == spec.schemas(7).keys() == {"model", "prototypes"}
    assert set(spec.get_kept(6)) == {"model", "statistics"}
    assert (spec.get_local_work(5), spec.get_local_work(6)) == (5, 0)


@pytest.mark.parametrize("setting", [{"reembed": True}, {"own_samples": 100}])
def test_the_averaged_models_pool_does_not_go_with_predicting_by_ones_own(setting: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="with eval_model local"):
        get_spec({"name": "mpfedcl", "eval_model": "local", **setting}, MLP, 10, (1, 8, 8))


# ---- answers


def score_plainly(client: Client, x: torch.Tensor, *, own: bool) -> Array:
    """-d_c^2 / (2 tau), d_c the distance from the nearest row of class c in the pool, or among the client's samples."""
    pool, v = get_kind(client.state.arrays, "pool") or {}, embed(client, x)
    rows = [(c, p) for c, p in zip(pool["classes"], pool["prototypes"], strict=True)]
    if own:
        samples = client.state.data.train
        rows += list(zip(samples.y.tolist(), embed(client, samples.x), strict=True))
    scores = np.full((len(v), 10), -np.inf)
    for c, p in rows:
        scores[:, c] = np.maximum(scores[:, c], -np.square(v.astype(np.float64) - p).sum(1) / (2 * 0.07))
    return scores


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_answers_are_by_the_nearest_of_each_class_and_the_prior(own: bool, kappa: float) -> None:
    clients = make_clients(**({"own_samples": 10_000} if own else {}))
    for height in range(1, ROUNDS + 1):
        run_round(clients, height)
    client = clients[1]
    x, y = client.state.data.everyone.x[:200], client.state.data.train.y
    counts = np.bincount(y.numpy(), minlength=10) + 1
    shifted = score_plainly(client, x, own=own) + kappa * np.log(counts / counts.sum())
    said = make_predict_at(client, kappa)(x)
    expected = np.exp(shifted - shifted.max(1, keepdims=True))
    assert said.logits.exp().numpy() == pytest.approx(expected / expected.sum(1, keepdims=True), abs=1e-4)
    assert said.labels.tolist() == shifted.argmax(1).tolist()
    if not kappa:
        assert said.labels.tolist() == client.predict(x).labels.tolist()
    if own:
        assert said.authors is not None
        assert {OWN} < set(said.authors.tolist()) <= {OWN, 0, 1, 2}


def test_own_samples_are_never_sent_and_no_more_are_kept_than_was_said() -> None:
    with_own, without = make_clients(own_samples=20), make_clients()
    for height in range(1, ROUNDS + 1):
        for ours, theirs in zip(run_round(with_own, height), run_round(without, height), strict=True):
            assert {k: encode_arrays(p) for k, p in ours.payloads.items()} == {
                k: encode_arrays(p) for k, p in theirs.payloads.items()
            }
    own = get_kind(with_own[0].state.arrays, "own") or {}
    samples = with_own[0].state.data.train
    assert len(set(own["rows"].tolist())) == len(own["rows"]) == 20
    assert own["classes"].tolist() == samples.y[torch.from_numpy(own["rows"])].tolist()
    assert own["embeddings"] == pytest.approx(embed(with_own[0], samples.x)[own["rows"]], abs=1e-6)


def test_no_training_sample_is_answered_by_itself() -> None:
    clients = make_clients(own_samples=10_000)
    for height in (1, 2):
        run_round(clients, height)
    client = clients[0]
    samples = client.state.data.train
    with torch.no_grad():
        itself = client.method.score_classes(client.state, samples.x)
        left_out = client.method.score_classes(client.state, samples.x, torch.arange(len(samples)))
    own = samples.y[:, None]
    assert itself.scores.gather(1, own).abs().max().item() < 1e-6  # at distance 0 from itself
    assert (left_out.scores.gather(1, own) < -1e-6).float().mean().item() > 0.9  # a few samples come twice


def test_every_method_with_a_classifier_has_a_prior_and_others_say_why_not() -> None:
    (client, *_) = make_digit_clients({"name": "fedavg"})
    x = client.state.data.matched.x
    shifted = client.predict(x).logits.log_softmax(1) + 0.25 * compute_own_log_prior(client)
    assert make_predict_at(client, 0.25)(x).logits == pytest.approx(shifted.log_softmax(1), abs=1e-5)
    (client, *_) = make_digit_clients({"name": "fedproto"})
    with pytest.raises(MlError, match="fedproto: expected infer classifier"):
        make_predict_at(client, 0.25)(x)


def test_a_plugins_method_that_knows_of_no_prior_is_told_from_one_that_fails() -> None:
    (client, *_) = make_digit_clients({"name": "fedavg"})
    x, method = client.state.data.matched.x, client.method
    client.method = SimpleNamespace(spec=method.spec, predict=method.predict)
    assert len(client.predict(x).labels) == len(x)
    with pytest.raises(MlError, match="fedavg: expected score_classes"):
        make_predict_at(client, 0.25)(x)


def test_a_simulation_tells_of_each_kappa_what_its_clients_would_answer() -> None:
    config = SimulationConfig(method=METHOD, partition="dirichlet:0.3", clients=3, rounds=ROUNDS)
    result = simulate(config)
    assert [row.kappa for row in result.priors] == [*KAPPAS, None]
    clients = make_digit_clients(METHOD, partition="dirichlet:0.3", rounds=ROUNDS)
    for height in range(1, ROUNDS + 1):
        run_round(clients, height)
    for row in result.priors:
        right = []
        for client in clients:
            samples = client.state.data.matched
            kappa = choose_own_kappa(client) if row.kappa is None else row.kappa
            right.append((make_predict_at(client, kappa)(samples.x).labels == samples.y).double().mean().item())
        assert row.taa == pytest.approx(np.mean(right), abs=1e-9)
    assert result.priors[0].taa == pytest.approx(result.final_taa)
    assert result.to_json()["priors"][0]["kappa"] == 0
    assert simulate(SimulationConfig(method={"name": "fedproto"}, clients=3, rounds=1)).priors == ()
