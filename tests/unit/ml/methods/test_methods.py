"""Clients of each method: what they send, take over, remember and forget (ALGORITHMS §2, §9, §13)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.build import Compute, Federation, get_client_seed, get_device, make_client, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input, load_dataset
from ml.data.partition import make_partition, parse_partition
from ml.errors import Abandoned, AggregationError, DataError, MlError, SpecError, Stopped
from ml.methods import make_method
from ml.methods.base import Round
from ml.payload import Arrays, encode_arrays
from ml.seeding import get_partition_seed
from ml.specs import METHODS, add_kind, get_kind
from ml.specs import METHODS as SPECS
from ml.specs.methods.uapdfl import UaPdflSpec
from ml.specs.sharing import SentHyperparameters
from ml.training.loop import Batch, Diverged, Schedule
from support.data.placement import ProductsWatch, displace
from support.federation.simulated import BEACON, CNN, MLP, aggregate_round, get_parent, make_digit_clients, run_round

METRICS = {
    *("loss", "first_loss", "last_loss", "loss_error", "iterations", "steps", "samples", "seconds", "alpha_s"),
    *("accuracy", "test_loss"),
}
QUICK: dict[str, dict[str, Any]] = {
    "fededs": {"local_epochs": 8, "warmup_epochs": 2, "encryptor_epochs": 1, "unet_width": 2}
}
ONE_STEP: dict[str, dict[str, Any]] = {"fededs": {"share": False, "local_epochs": 1, "batch_size": 1 << 20}}
ALL: list[dict[str, Any]] = [{"name": name, **QUICK.get(name, {})} for name in METHODS]
VOTE_ON_NOTHING = {"local", "fedper", "fedavg_p2p", "dfedavgm", "dispfl"}


def are_equal(first: Arrays, second: Arrays) -> bool:
    return encode_arrays(first) == encode_arrays(second)


def test_every_spec_has_a_method() -> None:
    assert METHODS.keys() == SPECS.keys()
    for method in ALL:
        (client,) = make_digit_clients(method, num_clients=1)
        assert make_method(client.spec).spec is client.spec


def test_naming_the_methods_imports_no_torch() -> None:
    program = "import ml, ml.methods, ml.data, ml.data.partition, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- what is sent


@pytest.mark.parametrize(
    "method",
    [
        *ALL,
        {"name": "dfpl", "proto_agg": "samples"},
        {"name": "fedavg", "weights": "uniform"},
        {"name": "mpfedcl", "cluster": "mean", "weights": "uniform"},
        {"name": "mpfedcl", "cluster": "dbscan"},
        {"name": "mpfedcl", "embed": "encoder"},
    ],
)
def test_payloads_are_what_validators_accept(method: dict[str, Any]) -> None:
    for client in make_digit_clients(method):
        trained = client.train(1, BEACON)
        client.spec.validate_weight(trained.weight)
        client.spec.validate_kinds(trained.payloads, 1)
        for kind, arrays in trained.payloads.items():
            client.spec.validate_payload(kind, arrays, 1)
        assert trained.metrics.keys() == METRICS


def test_local_sends_nothing() -> None:
    assert all(not client.train(1, BEACON).payloads for client in make_digit_clients({"name": "local"}))


def test_fedavg_sends_its_model_at_the_weight_of_its_samples() -> None:
    for client in make_digit_clients({"name": "fedavg"}):
        trained = client.train(1, BEACON)
        assert trained.weight == client.num_train
        assert are_equal(trained.payloads["model"], get_kind(client.state_arrays(), "model") or {})
    for client in make_digit_clients({"name": "fedavg", "weights": "uniform"}):
        assert client.train(1, BEACON).weight == 1
    for client in make_digit_clients({"name": "fedavg", "weights": "bucketed"}):
        weight = client.train(1, BEACON).weight
        assert weight <= client.num_train < 2 * weight
        assert weight.bit_count() == 1


def test_a_bucket_never_holds_more_than_there_is() -> None:
    hyper = UaPdflSpec.settings.from_mapping({"weights": "bucketed"})
    assert isinstance(hyper, SentHyperparameters)
    assert [hyper.choose_weight(n, 1000) for n in (1, 2, 3, 4, 719, 1000, 5000)] == [1, 2, 2, 4, 512, 512, 512]


@pytest.mark.parametrize("partition", ["classes:3,1", "dirichlet:0.3"])
def test_dfpl_sends_prototypes_of_its_classes_and_no_weights(partition: str) -> None:
    clients = make_digit_clients({"name": "dfpl"}, partition=partition)
    for height in (1, 2):
        for trained in run_round(clients, height):
            assert trained.payloads.keys() == {"prototypes"}
            payload = trained.payloads["prototypes"]
            assert payload.keys() == {"classes", "prototypes"}
            num_classes = len(payload["classes"])
            assert payload["prototypes"].shape == (num_classes, 32)
            overhead = len(encode_arrays(payload)) - num_classes * 32 * 4
            assert 0 < overhead <= 8 * num_classes + 256  # the class ids, and the header
            assert trained.weight == 1


def test_dfpl_tells_class_sizes_only_where_the_average_needs_them() -> None:
    trained = make_digit_clients({"name": "dfpl", "proto_agg": "samples"})[0].train(1, BEACON)
    assert trained.payloads["prototypes"]["counts"].min() > 0
    assert "counts" not in make_digit_clients({"name": "dfpl"})[0].train(1, BEACON).payloads["prototypes"]


def test_dfpl_tells_how_far_its_prototypes_were_from_the_global_ones() -> None:
    clients = make_digit_clients({"name": "dfpl"}, num_clients=3)
    told = []
    for height in (1, 2):
        before = [get_kind(client.state_arrays(), "state") or {} for client in clients]
        trained = [client.train(height, BEACON) for client in clients]
        aggregate = aggregate_round(clients, height, trained)
        for client, common, made in zip(clients, before, trained, strict=True):
            local = made.payloads["prototypes"]
            theirs = dict(zip(common.get("classes", ()), common.get("prototypes", ()), strict=True))
            pairs = zip(local["classes"], local["prototypes"], strict=True)
            norms = [np.linalg.norm(np.float64(vector) - theirs[c]) for c, vector in pairs if c in theirs]
            metrics = client.apply(height, aggregate, beacon=BEACON)
            told.append((metrics["aux_loss"], float(np.mean(norms)) if norms else 0.0))
    assert all(value == pytest.approx(expected, rel=1e-5) for value, expected in told)
    assert [value for value, _ in told[:3]] == [0.0] * 3
    assert min(value for value, _ in told[3:]) > 0


def test_dfpl_keeps_small_classes_back() -> None:
    method = {"name": "dfpl", "proto_agg": "samples"}
    counts = make_digit_clients(method, partition="dirichlet:0.1")[0].train(1, BEACON).payloads["prototypes"]["counts"]
    least = int(np.sort(counts)[len(counts) // 2])
    careful = make_digit_clients({**method, "min_class_samples": least}, partition="dirichlet:0.1")[0]
    kept = careful.train(1, BEACON).payloads["prototypes"]["counts"]
    assert kept.tolist() == [count for count in counts.tolist() if count >= least]
    assert len(kept) < len(counts)


def test_dfpl_goes_on_when_nobody_sends_a_class() -> None:
    clients = make_digit_clients({"name": "dfpl", "min_class_samples": 10_000, "infer": "prototype"})
    for height in (1, 2):
        for trained in run_round(clients, height):
            assert trained.payloads["prototypes"]["prototypes"].shape == (0, 32)


def test_prototypes_do_not_see_dropout() -> None:
    client = make_digit_clients({"name": "dfpl", "local_iterations": 1}, model=CNN, shots=5)[0]
    trained = client.train(1, BEACON)
    data = load_dataset({}, get_default_input({"format": "digits"}, CNN))[0]
    split = make_partition(
        "classes:3,1", data.y, load_dataset({}, {"shape": [1, 8, 8]})[1].y, 3, get_partition_seed(1), 5
    )
    x, y = torch.from_numpy(data.x[split[0].train]), data.y[split[0].train]
    model = client.state.model.eval()
    with torch.no_grad():
        z_ND = model.embed(x).numpy()
    payload = trained.payloads["prototypes"]
    for c, prototype in zip(payload["classes"], payload["prototypes"], strict=True):
        assert prototype == pytest.approx(z_ND[y == c].mean(0), rel=1e-4, abs=1e-6)


# ---- what reduces to what


@pytest.mark.parametrize("model", [MLP, CNN])
def test_dfpl_without_its_loss_is_local(model: dict[str, Any]) -> None:
    work = {"local_iterations": 3, "lr": 0.05, "momentum": 0.5, "decay": 0.9}
    dfpl = make_digit_clients({"name": "dfpl", "lambda": 0.0, **work}, model=model, shots=10)
    local = make_digit_clients({"name": "local", **work}, model=model, shots=10)
    pulled = make_digit_clients({"name": "dfpl", "lambda": 1.0, **work}, model=model, shots=10)
    for height in (1, 2):
        run_round(dfpl, height)
        run_round(local, height)
        run_round(pulled, height)
    for ours, theirs, other in zip(dfpl, local, pulled, strict=True):
        model_of = [get_kind(client.state_arrays(), "model") or {} for client in (ours, theirs, other)]
        assert are_equal(model_of[0], model_of[1])
        assert not are_equal(model_of[0], model_of[2])


def test_vanishing_lambda_comes_close_to_local() -> None:
    tiny = make_digit_clients({"name": "dfpl", "lambda": 1e-6})
    local = make_digit_clients({"name": "local"})
    for height in (1, 2, 3):
        run_round(tiny, height)
        run_round(local, height)
    for ours, theirs in zip(tiny, local, strict=True):
        for name, array in (get_kind(ours.state_arrays(), "model") or {}).items():
            assert array == pytest.approx(theirs.state_arrays()[f"model/{name}"], abs=1e-3)


@pytest.mark.parametrize("aux", ["l2", "sq", "mse"])
@pytest.mark.parametrize("aux_protos", ["batch", "full"])
def test_dfpl_draws_prototypes_together(aux: str, aux_protos: str) -> None:
    def measure_distance(lambda_: float) -> float:
        method = {"name": "dfpl", "lambda": lambda_, "aux": aux, "aux_protos": aux_protos}
        clients = make_digit_clients(method, partition="iid", shots=10)
        for height in range(1, 7):
            trained = run_round(clients, height)
        agreed = get_kind(aggregate_round(clients, 6, trained), "prototypes") or {}
        norms = np.linalg.norm(agreed["prototypes"], axis=1)
        sent = [made.payloads["prototypes"]["prototypes"] for made in trained]
        return float(np.mean([np.linalg.norm(own - agreed["prototypes"], axis=1) / norms for own in sent]))

    assert measure_distance(1.0) < 0.8 * measure_distance(0.0)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("aux", ["l2", "contrast"])
def test_dfpls_loss_is_eq_3(aux: str, normalize: bool) -> None:
    """Against a plain computation from the embeddings and the prototypes; l2 without normalize is as printed."""
    method = {"name": "dfpl", "lambda": 0.5, "aux": aux, "normalize": normalize}
    client = make_digit_clients(method | ({"tau": 0.2} if aux == "contrast" else {}))[0]
    samples, model = client.state.data.train, client.state.model
    classes = client.state.data.classes.numpy()
    prototypes = np.random.default_rng(0).random((len(classes), 32)).astype(np.float32)
    client.state.arrays = {"classes": classes, "prototypes": prototypes}
    schedule = Schedule((torch.arange(24),), 1)
    context = client.method.prepare(client.state, Round(2, 2, BEACON, 0), schedule).context
    batch = Batch(samples.x[:24], samples.y[:24])
    ours = client.method.compute_loss(model, batch, context).item()

    z, y = model.embed(batch.x).detach().double().numpy(), batch.y.numpy()
    logits = model.classify(model.embed(batch.x)).detach().double().numpy()
    entropy = np.mean([np.log(np.exp(row).sum()) - row[c] for row, c in zip(logits, y, strict=True)])
    p = prototypes.astype(np.float64)
    if normalize:
        z, p = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (z, p))
    if aux == "l2":
        pulls = [np.linalg.norm(z[y == c].mean(0) - p[i]) for i, c in enumerate(classes) if c in y]
    else:
        weights = np.exp(-np.square(z[:, None] - p).sum(2) / (2 * 0.2))
        pulls = [-np.log(w[list(classes).index(c)] / w.sum()) for w, c in zip(weights, y, strict=True)]
    assert ours == pytest.approx(entropy + 0.5 * np.mean(pulls), rel=1e-5)


# ---- what is taken over


def test_fedavg_takes_over_the_average_and_nothing_else() -> None:
    clients = make_digit_clients({"name": "fedavg"})
    trained = [client.train(1, BEACON) for client in clients]
    aggregate = aggregate_round(clients, 1, trained)
    assert aggregate is not None
    for client in clients:
        client.apply(1, aggregate)
        assert are_equal(client.state_arrays(), aggregate)


@pytest.mark.parametrize("method", [{"name": "local"}, {"name": "dfpl"}, {"name": "fedproto", "infer": "classifier"}])
def test_personalised_methods_keep_their_weights(method: dict[str, Any]) -> None:
    clients = make_digit_clients(method)
    trained = [client.train(1, BEACON) for client in clients]
    before = [get_kind(client.state_arrays(), "model") or {} for client in clients]
    aggregate = aggregate_round(clients, 1, trained)
    for client, model, made in zip(clients, before, trained, strict=True):
        metrics = client.apply(1, aggregate)
        assert are_equal(get_kind(client.state_arrays(), "model") or {}, model)
        assert metrics["accuracy"] == made.metrics["accuracy"]
        own = {"aux_loss": metrics["aux_loss"]} if method["name"] == "dfpl" else {}
        assert metrics == {**client.evaluate(), **own}


@pytest.mark.parametrize("method", [method for method in ALL if method["name"] not in VOTE_ON_NOTHING])
@pytest.mark.parametrize("aggregate", [None, {"encrypted_set/a": np.zeros(3, np.float32)}])
def test_aggregate_of_nothing_is_refused_and_changes_nothing(method: dict[str, Any], aggregate: Arrays | None) -> None:
    client = make_digit_clients(method)[0]
    assert client.spec.rules(1)
    client.train(1, BEACON)
    before = client.state_arrays()
    with pytest.raises(AggregationError, match="round 1: expected"):
        client.apply(1, aggregate)
    assert are_equal(client.state_arrays(), before)


def test_nearest_prototype_answers_with_own_classes_only() -> None:
    clients = make_digit_clients({"name": "dfpl", "infer": "prototype"})
    for height in (1, 2, 3, 4):
        trained = run_round(clients, height)
    _, test = load_dataset({}, get_default_input({"format": "digits"}, MLP))
    x = torch.from_numpy(test.x.copy())
    for client, made in zip(clients, trained, strict=True):
        own = made.payloads["prototypes"]["classes"]
        assert set(client.predict(x).labels.tolist()) <= set(own.tolist())
        assert client.evaluate()["accuracy"] > 0.7


@pytest.mark.parametrize("normalize", [False, True])
def test_nearest_is_nearest_at_the_length_that_the_loss_compares_at(normalize: bool) -> None:
    method = {"name": "dfpl", "infer": "prototype", "normalize": normalize}
    (client,) = make_digit_clients(method, num_clients=1, partition="iid")
    prototypes = np.array([[1, 0], [0, 1], [9, 9]], np.float32)
    client.state.arrays = {"classes": np.array([1, 4, 7]), "prototypes": prototypes}
    client.state.model.embed = lambda x: torch.tensor([[2.0, 0.1], [0.1, 2.0], [3.0, 2.5]])  # type: ignore[method-assign]
    client.state.model.classify = lambda z_BD: z_BD  # type: ignore[method-assign]  # noqa: N803 - its shape, as in ml
    expected = [1, 4, 7] if normalize else [1, 4, 1]  # (3, 2.5) points as (9, 9) does, and is nearer to (1, 0)
    assert client.predict(client.state.data.train.x).labels.tolist() == expected


def test_nearest_is_nearest_however_far_from_zero_and_however_many_samples() -> None:
    """A distance taken from a product of matrices would lose what these prototypes differ by."""
    (client,) = make_digit_clients({"name": "dfpl", "infer": "prototype"}, num_clients=1)
    z_ND = client.state.model.embed(client.state.data.train.x[:64]).detach().numpy() + np.float32(1e4)
    own = client.state.data.classes.numpy()
    prototypes = np.stack([z_ND[0] + 0.1 * i for i in range(len(own))]).astype(np.float32)
    client.state.arrays = {"classes": own, "prototypes": prototypes}
    client.state.model.embed = lambda x: torch.from_numpy(np.repeat(prototypes, 20, 0))  # type: ignore[method-assign]
    assert client.predict(client.state.data.train.x).labels.tolist() == np.repeat(own, 20).tolist()


@pytest.mark.parametrize("method", [{"name": "dfpl", "infer": "prototype"}, {"name": "fedproto"}])
def test_an_answer_of_prototypes_comes_with_its_distance(method: dict[str, Any]) -> None:
    clients = make_digit_clients(method)
    x = clients[0].state.data.matched.x
    assert clients[0].predict(x).distances is None  # the classifier's
    run_round(clients, 1)
    found, z_ND = clients[0].predict(x), clients[0].state.model.embed(x).detach().numpy()
    arrays = clients[0].state.arrays
    chosen = arrays["prototypes"][np.searchsorted(arrays["classes"], found.labels.numpy())]
    assert found.distances is not None
    np.testing.assert_allclose(found.distances.numpy(), np.linalg.norm(z_ND - chosen, axis=1), rtol=1e-5)
    assert found.authors is None


# ---- what is remembered


@pytest.mark.parametrize(
    "method",
    [
        *ALL,
        {"name": "dfpl", "momentum": 0.5, "local_iterations": None, "local_epochs": 1},
        {"name": "mpfedcl", "eval_model": "local", "num_prototypes": 4, "padding": False},
        {"name": "fedavg", "decay": 0.9, "decay_unit": "step"},
    ],
)
@pytest.mark.parametrize("model", [MLP, pytest.param(CNN, marks=pytest.mark.outer)])
def test_restored_client_goes_on_exactly(method: dict[str, Any], model: dict[str, Any]) -> None:
    method = {key: value for key, value in method.items() if value is not None}
    straight = make_digit_clients(method, model=model, shots=10)
    resumed = make_digit_clients(method, model=model, shots=10)
    for clients in (straight, resumed):
        run_round(clients, 1)
    fresh = make_digit_clients(method, model=model, shots=10)
    for new, old in zip(fresh, resumed, strict=True):
        new.load_state_arrays(old.state_arrays())
    for first, second in zip(run_round(straight, 2), run_round(fresh, 2), strict=True):
        assert first.payloads.keys() == second.payloads.keys()
        assert all(are_equal(first.payloads[kind], second.payloads[kind]) for kind in first.payloads)
        assert first.metrics["loss"] == second.metrics["loss"]
    for ours, theirs in zip(straight, fresh, strict=True):
        assert are_equal(ours.state_arrays(), theirs.state_arrays())


@pytest.mark.parametrize("method", ALL)
def test_where_arrays_lie_in_memory_shows_in_no_bit(method: dict[str, Any]) -> None:
    """Those of a state that is loaded, and those of an aggregate."""
    plain, displaced = (make_digit_clients(method, shots=10) for _ in range(2))
    for height in (1, 2, 3):
        trained = [[client.train(height, BEACON) for client in clients] for clients in (plain, displaced)]
        for first, second in zip(*trained, strict=True):
            assert first.metrics["loss"] == second.metrics["loss"]
            assert all(are_equal(first.payloads[kind], second.payloads[kind]) for kind in first.payloads)
        aggregate = aggregate_round(plain, height, trained[0], get_parent(plain))
        for client in plain:
            client.apply(height, aggregate, beacon=BEACON)
        for client in displaced:
            client.apply(height, None if aggregate is None else displace(aggregate), beacon=BEACON)
            client.load_state_arrays(displace(client.state_arrays()))
    for ours, theirs in zip(plain, displaced, strict=True):
        assert are_equal(ours.state_arrays(), theirs.state_arrays())
        x = ours.state.data.matched.x
        assert torch.equal(ours.predict(x).logits, theirs.predict(x).logits)


@pytest.mark.parametrize("method", ALL)
def test_products_are_of_memory_that_torch_took(method: dict[str, Any]) -> None:
    """Numpy's begins elsewhere in each process, and with it the last bits may be others."""
    clients = make_digit_clients(method, shots=10)
    with ProductsWatch() as watch:
        for height in (1, 2, 3):
            run_round(clients, height)
            for client in clients:
                client.load_state_arrays(displace(client.state_arrays()))
    assert watch.num_seen > 100
    assert watch.displaced == []


def test_state_arrays_are_a_copy() -> None:
    client = make_digit_clients({"name": "dfpl"})[0]
    client.apply(1, {f"prototypes/{name}": a for name, a in client.train(1, BEACON).payloads["prototypes"].items()})
    before = client.state_arrays()
    assert before.keys() > {"state/classes", "state/prototypes"}
    kept = encode_arrays(before)
    run_round([client], 2)
    assert encode_arrays(before) == kept
    assert encode_arrays(client.state_arrays()) != kept


@pytest.mark.parametrize("model", [MLP, CNN])
def test_same_height_draws_the_same_and_the_next_does_not(model: dict[str, Any]) -> None:
    method = {"name": "dfpl", "batch_size": 8}
    first, second = (make_digit_clients(method, model=model, shots=10)[0] for _ in range(2))
    start = first.state_arrays()
    torch.rand(3)  # what others draw from torch does not matter
    ours, theirs = first.train(1, BEACON), second.train(1, b"another beacon")
    assert are_equal(ours.payloads["prototypes"], theirs.payloads["prototypes"])
    first.load_state_arrays(start)
    assert are_equal(first.train(1, BEACON).payloads["prototypes"], ours.payloads["prototypes"])
    first.load_state_arrays(start)
    assert not are_equal(first.train(2, BEACON).payloads["prototypes"], ours.payloads["prototypes"])


def test_training_leaves_torchs_generator_alone() -> None:
    client = make_digit_clients({"name": "local", "local_iterations": 2}, model=CNN, shots=5)[0]
    before = torch.get_rng_state()
    client.train(1, BEACON)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", ALL, ids=lambda m: m["name"])
def test_stopped_training_changes_nothing(method: dict[str, Any]) -> None:
    stopped, straight = (make_digit_clients(method, shots=10) for _ in range(2))
    run_round(stopped, 1)
    run_round(straight, 1)
    before = stopped[0].state_arrays()
    polls = iter([False] * 5 + [True])
    with pytest.raises(Stopped):
        stopped[0].train(2, BEACON, should_stop=lambda: next(polls))
    assert are_equal(stopped[0].state_arrays(), before)
    stopped[0].train(2, BEACON, should_stop=lambda: False)
    straight[0].train(2, BEACON)
    assert are_equal(stopped[0].state_arrays(), straight[0].state_arrays())


def abandon_after_five_steps() -> Callable[[], bool]:
    polls = iter([False] * 5)

    def should_stop() -> bool:
        for poll in polls:
            return poll
        raise Abandoned

    return should_stop


@pytest.mark.parametrize("name", ["dfpl", "fedproto"])
def test_abandoned_training_keeps_what_it_has_learned(name: str) -> None:
    client, other = (make_digit_clients({"name": name})[0] for _ in range(2))
    with pytest.raises(Abandoned):
        client.train(1, BEACON, should_stop=abandon_after_five_steps())
    other.train(1, BEACON, num_iterations=5)
    measured = {"state/aux_loss"} if name == "dfpl" else set()  # of what was finished
    whole = other.state_arrays()
    assert whole.keys() - client.state_arrays().keys() == measured
    assert are_equal(client.state_arrays(), {key: whole[key] for key in whole.keys() - measured})


def test_abandoned_training_that_has_left_no_numbers_changes_nothing() -> None:
    client = make_digit_clients({"name": "local", "lr": 1e30})[0]
    before = client.state_arrays()
    with pytest.raises(Abandoned):
        client.train(1, BEACON, should_stop=abandon_after_five_steps())
    assert are_equal(client.state_arrays(), before)


@pytest.mark.parametrize("method", ALL, ids=lambda m: m["name"])
def test_diverged_training_changes_nothing(method: dict[str, Any]) -> None:
    client = make_digit_clients({**method, "lr": 1e30})[0]
    before = client.state_arrays()
    with pytest.raises(Diverged):
        client.train(1, BEACON)
    assert are_equal(client.state_arrays(), before)


@pytest.mark.parametrize("method", ALL, ids=lambda m: m["name"])
def test_a_last_step_too_far_is_found_before_anything_is_sent(method: dict[str, Any]) -> None:
    """No loss has shown it yet, and a method that keeps its weights to itself would never come back."""
    one_step = ONE_STEP.get(method["name"], {"local_iterations": 1})
    client = make_digit_clients({**method, **one_step, "lr": 1e38})[0]
    before = client.state_arrays()
    found = r"the last of 1 steps at lr 1e\+38 has left (a model that gives|weights that are) no numbers"
    if method["name"] == "fedrep":  # which makes one for each part
        found = "loss not finite at step 2 of 2"
    with pytest.raises(Diverged, match=found):
        client.train(1, BEACON)
    assert are_equal(client.state_arrays(), before)


def test_state_of_another_model_is_refused() -> None:
    (client,) = make_digit_clients({"name": "local"}, num_clients=1)
    (other,) = make_digit_clients({"name": "local"}, num_clients=1, model={"name": "mlp", "hidden": [8]})
    with pytest.raises(ValueError, match="do not fit"):
        client.load_state_arrays(other.state_arrays())
    with pytest.raises(ValueError, match="do not fit"):
        client.load_state_arrays({})


# ---- who makes them


DIGITS = Federation(
    method={"name": "dfpl"},
    model=MLP,
    classes=get_classes({"format": "digits"}),
    input=get_default_input({"format": "digits"}, MLP),
)


def make_node(
    index: int, federation: Federation = DIGITS, *, data: dict[str, Any] | None = None, device: str = "cpu"
) -> Client:
    """The client of a node as its worker builds it, of three with run seed 1."""
    seed = get_partition_seed(1)
    part = parse_partition("classes:3,1").to_mapping() | {"index": index, "of": 3, "seed": seed, "shots": None}
    return make_client(
        federation,
        data=data or {"format": "digits", "path": None, "partition": part},
        seed=get_client_seed(1, index),
        initial=make_initial_aggregate(MLP, (1, 8, 8), 10, 1),
        compute=Compute(device),
    )


def test_node_is_the_client_of_the_simulation() -> None:
    for i, client in enumerate(make_digit_clients({"name": "dfpl"}, num_clients=3, seed=1)):
        node = make_node(i)
        assert (node.seed, node.num_train, node.num_test) == (client.seed, client.num_train, client.num_test)
        assert are_equal(node.train(1, BEACON).payloads["prototypes"], client.train(1, BEACON).payloads["prototypes"])
        assert node.evaluate("global") == client.evaluate("global")


def test_node_without_a_partition_has_all_of_the_data() -> None:
    node = make_node(0, data={"format": "digits", "partition": None})
    assert (node.num_train, node.num_test) == (1438, 359)
    assert node.evaluate("matched") == node.evaluate("global")


def test_clients_start_from_the_same_model() -> None:
    clients = make_digit_clients({"name": "local"})
    assert are_equal(clients[0].state_arrays(), clients[2].state_arrays())
    assert are_equal(clients[0].state_arrays(), add_kind("model", get_kind(make_node(0).state_arrays(), "model") or {}))


def test_what_a_node_cannot_be_is_said() -> None:
    with pytest.raises(DataError, match="class '0' is not one of genesis' classes: a, b"):
        make_node(0, replace(DIGITS, classes=("a", "b")))
    with pytest.raises(SpecError, match=r"method.lamda: unknown key: did you mean 'lambda'"):
        make_node(0, replace(DIGITS, method={"name": "dfpl", "lamda": 1}))
    with pytest.raises(MlError, match="expected auto, cpu, cuda or cuda:N, got 'gpu'"):
        make_node(0, device="gpu")
    with pytest.raises(MlError, match="expected auto, cpu, cuda or cuda:N, got 'meta'"):
        make_node(0, device="meta")
    assert get_device("cpu") == torch.device("cpu")
