"""UA-PDFL: divergences, who takes what from whom, and the loss (ALGORITHMS §5, §12.6, §13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.batched import train_batched
from ml.clients.client import Client
from ml.errors import AggregationError, PayloadError, SpecError
from ml.methods.uapdfl import UaPdfl, compute_mean_auxiliary
from ml.models.base import load_parameters
from ml.payload import Array
from ml.specs import Offer, Task
from ml.specs.methods.uapdfl import UaPdflHyperparameters, UaPdflSpec, compute_divergence
from ml.specs.peers import draw_peers
from ml.training.loop import Batch
from support.federation.peer_rounds import Block, are_equal, get_id, get_model, make_peer_clients, train_all
from support.federation.simulated import BEACON, MLP

CNN = {"name": "cnn_cifar"}
RESNET = {"name": "resnet18"}
TOY = {"name": "mlp", "hidden": [2]}


def float64(*values: float) -> Array:
    return np.array(values, np.float64)


def spec_of(settings: dict[str, Any] | None = None, model: dict[str, Any] = MLP, num_classes: int = 10) -> UaPdflSpec:
    shape = (1, 8, 8) if model["name"] == "mlp" else (3, 32, 32)
    return UaPdflSpec.from_mapping(settings or {}, Task(model, shape, num_classes))


def make_clients(settings: dict[str, Any] | None = None, **options: Any) -> list[Client]:
    return make_peer_clients(UaPdfl, UaPdflSpec, {"num_peers": 2, "local_iterations": 3, **(settings or {})}, **options)


# ---- Eqs. (6), (7)


@pytest.mark.parametrize(
    ("p", "q", "symkl", "js"),
    [
        ((0.7, 0.2, 0.1), (0.2, 0.5, 0.3), 0.560495580772, 0.132918006055),
        ((0.9, 0.1), (0.1, 0.9), 1.757779661869, 0.368064207168),
        ((0.48, 0.48, 0.02, 0.02), (0.02, 0.02, 0.48, 0.48), 2.923809523920, 0.525203032826),
        ((0.48, 0.48, 0.02, 0.02), (0.55, 0.41, 0.02, 0.02), 0.010281639148, 0.002568064718),
        (
            (0.843794734453, 0.114195199080, 0.042010066467),
            (0.211941557617, 0.576116884766, 0.211941557617),
            0.947779765296,
            0.216672518446,
        ),
    ],
)
def test_divergences_of_the_worked_examples(
    p: tuple[float, ...], q: tuple[float, ...], symkl: float, js: float
) -> None:
    for kind, expected in (("symkl", symkl), ("js", js)):
        assert compute_divergence(float64(*p), float64(*q), kind) == pytest.approx(expected, rel=1e-9)
        assert compute_divergence(float64(*q), float64(*p), kind) == pytest.approx(expected, rel=1e-9)
        assert compute_divergence(float64(*p), float64(*p), kind) == 0


def test_js_is_at_most_ln_2_and_certainty_is_clamped() -> None:
    one, other = float64(1, 0), float64(0, 1)
    assert compute_divergence(one, other, "js") == pytest.approx(math.log(2), abs=1e-6)
    assert compute_divergence(one, other) == pytest.approx((1 - 1e-8) * math.log(1e8), rel=1e-12)


# ---- the draw


def test_the_draw_is_of_others_alone_and_anyone_can_repeat_it() -> None:
    ids = [get_id(i) for i in range(6)]
    drawn = draw_peers(BEACON, ids[2], ids, 3)
    assert len(set(drawn)) == 3
    assert ids[2] not in drawn
    assert drawn == draw_peers(BEACON, ids[2], reversed(ids), 3)
    ranked = sorted(
        (id_ for id_ in ids if id_ != ids[2]),
        key=lambda other: sha256(b"fednode.peers" + BEACON + ids[2] + other).digest(),
    )
    assert drawn == tuple(ranked[:3])
    assert draw_peers(BEACON, ids[2], ids, 99) == tuple(ranked)


def test_every_round_and_every_client_draws_others_and_everyone_is_drawn_alike() -> None:
    ids = [get_id(i) for i in range(10)]
    draws = [draw_peers(bytes([round_]) * 32, me, ids, 3) for round_ in range(200) for me in ids]
    counts = np.array([sum(id_ in drawn for drawn in draws) for id_ in ids])
    assert counts.sum() == 6000
    assert abs(counts - 600).max() < 120  # 4.9 standard deviations


# ---- what is sent


def test_g_is_what_comes_before_the_first_linear_layer() -> None:
    def count(spec: UaPdflSpec, kind: str) -> int:
        return sum(math.prod(map(int, array.shape)) for array in spec.schemas(1)[kind].arrays.values())

    cnn = spec_of(model=CNN)
    assert (count(cnn, "g"), count(cnn, "h"), count(cnn, "auxiliary"), count(cnn, "unit")) == (
        53_696,
        824_842,
        1600,
        10,
    )
    resnet = spec_of(model=RESNET)
    assert (count(resnet, "h"), count(resnet, "auxiliary")) == (5130, 512)
    statistics = {name for name in resnet.schemas(1)["g"].arrays if "running" in name}
    assert statistics
    own = spec_of({"bn_buffers": "local"}, RESNET)
    assert resnet.schemas(1)["g"].arrays.keys() - own.schemas(1)["g"].arrays.keys() == statistics


@pytest.mark.parametrize("unit", [(0.5, 0.4), (1.5, -0.5), (float("nan"), 1.0)])
def test_a_unit_representation_that_is_no_distribution_is_refused(unit: tuple[float, float]) -> None:
    spec = spec_of(model=TOY, num_classes=2)
    spec.validate_payload("unit", {"unit": np.array((0.25, 0.75), np.float32)}, 1)
    with pytest.raises(PayloadError, match="unit"):
        spec.validate_payload("unit", {"unit": np.array(unit, np.float32)}, 1)


def test_thresholds_follow_the_divergence_unless_set() -> None:
    assert UaPdflHyperparameters.from_mapping({}).threshold == 0.5
    assert UaPdflHyperparameters.from_mapping({"div": "js"}).threshold == 0.1
    assert UaPdflHyperparameters.from_mapping({"th": -1}).threshold == -1
    with pytest.raises(SpecError) as caught:
        UaPdflHyperparameters.from_mapping({"div": "kl"})
    assert caught.value.path == "method.div"


@pytest.mark.parametrize("value", [1.0, -0.5])
def test_representations_are_of_the_constant_input_in_eval_mode(value: float) -> None:
    (client,) = make_clients({"unit_value": value}, num_clients=1)
    trained = client.train(1, BEACON)
    model = client.state.model
    model.eval()
    with torch.no_grad():
        z_1D = model.embed(torch.full((1, 1, 8, 8), value))
        unit_C = model.classify(z_1D)[0].softmax(0)
    np.testing.assert_allclose(trained.payloads["unit"]["unit"], unit_C, rtol=1e-5)
    np.testing.assert_array_equal(trained.payloads["auxiliary"]["auxiliary"], z_1D[0])
    assert trained.payloads["unit"]["unit"].sum() == pytest.approx(1, abs=1e-6)


def test_the_unit_may_be_the_mean_of_a_clients_own_samples() -> None:
    one, other = make_clients({"unit": "mean", "mu": 0.1}, num_clients=2)
    for client in (one, other):
        trained, model = client.train(1, BEACON), client.state.model
        model.eval()
        x = client.state.data.train.x.numpy().astype(np.float64).sum(0) / client.num_train
        with torch.no_grad():
            z_1D = model.embed(torch.from_numpy(x.astype(np.float32))[None])
            unit_C = model.classify(z_1D)[0].softmax(0)
        np.testing.assert_allclose(trained.payloads["unit"]["unit"], unit_C, rtol=1e-4)
        np.testing.assert_allclose(trained.payloads["auxiliary"]["auxiliary"], z_1D[0], rtol=1e-4, atol=1e-5)
    constant = make_clients({"mu": 0.1}, num_clients=1)[0].train(1, BEACON).payloads
    assert not np.array_equal(one.train(2, BEACON).payloads["unit"]["unit"], constant["unit"]["unit"])
    assert "unit" not in UaPdflHyperparameters().to_mapping()  # runs of before keep their names
    with pytest.raises(SpecError, match=r"expected none with unit: mean, got 0\.5"):
        spec_of({"unit": "mean", "unit_value": 0.5})


# ---- the branches


def decide_among(units: Sequence[tuple[float, ...]], settings: dict[str, Any] | None = None) -> Any:
    """What author 0 does, who draws everyone."""
    spec = spec_of({"num_peers": len(units) - 1, **(settings or {})}, TOY, num_classes=len(units[0]))
    offers = [Offer(get_id(i), 1, {"g": bytes([i]) * 32, "h": bytes([i + 100]) * 32}) for i in range(len(units))]
    aggregate = {"unit/unit": np.array(units, np.float32)}
    decision = spec.decide(BEACON, get_id(0), offers, aggregate)
    wanted = spec.wanted(1, BEACON, get_id(0), offers, aggregate)
    return decision, wanted, offers


def test_alike_data_take_one_whole_model_of_one_peer() -> None:
    decision, wanted, _ = decide_among([(0.5, 0.5), (0.6, 0.4), (0.45, 0.55)])
    assert decision.is_dropout
    assert decision.donor in decision.peers
    assert list(wanted) == [decision.donor.digests["g"], decision.donor.digests["h"]]


def test_the_donor_is_any_of_the_peers_as_the_beacon_has_it() -> None:
    spec = spec_of({"num_peers": 3}, TOY, num_classes=2)
    offers = [Offer(get_id(i), 1, {"g": bytes([i]), "h": bytes([i])}) for i in range(4)]
    aggregate = {"unit/unit": np.full((4, 2), 0.5, np.float32)}
    decisions = [spec.decide(bytes([beacon]) * 32, get_id(1), offers, aggregate) for beacon in range(60)]
    donors = [decision.donor.author for decision in decisions if decision.donor is not None]
    assert len(donors) == 60
    assert all(donors.count(get_id(i)) >= 10 for i in (0, 2, 3))


def test_clients_are_compared_by_the_divergence_that_is_set() -> None:
    units = [(0.5, 0.5), (0.8, 0.2)]
    first, second = (np.array(unit, np.float32) for unit in units)
    for div, is_dropout in (("js", True), ("symkl", False)):  # 0.05 and 0.21
        decision, _, _ = decide_among(units, {"div": div, "th": 0.1})
        assert decision.divergences == (compute_divergence(first, second, div),)
        assert decision.is_dropout is is_dropout


def test_otherwise_g_comes_from_all_and_h_from_those_who_are_similar() -> None:
    decision, wanted, offers = decide_among([(0.5, 0.5), (0.6, 0.4), (0.001, 0.999)])
    assert not decision.is_dropout
    assert decision.similar == (offers[1],)
    assert set(wanted) == {offers[1].digests["g"], offers[2].digests["g"], offers[1].digests["h"]}
    assert len(wanted) == 3


def test_at_the_threshold_itself_the_branch_is_dropout_and_nobody_is_similar() -> None:
    units = [(0.5, 0.5), (0.9, 0.1)]
    first, second = (np.array(unit, np.float32) for unit in units)
    th = compute_divergence(first, second)
    assert decide_among(units, {"th": th})[0].is_dropout
    personalised = decide_among(units, {"th": th, "dropout": False})[0]
    assert (personalised.donor, personalised.similar) == (None, ())


def test_without_personalisation_h_is_shared_as_g_is() -> None:
    decision, _, _ = decide_among([(0.5, 0.5), (0.6, 0.4), (0.001, 0.999)], {"personalise": False})
    assert decision.similar == decision.peers


def test_identical_models_at_the_start_are_all_alike() -> None:
    clients = make_clients({"lr": 1e-30})
    block = train_all(clients, 1)
    for i, client in enumerate(clients):
        before = get_model(client)
        metrics = block.apply(client, i)
        assert (metrics["dropout"], metrics["divergence"], metrics["peers"]) == (1.0, 0.0, 2.0)
        assert are_equal(before, get_model(client))


def test_the_dropout_branch_replaces_the_whole_model_by_the_donors() -> None:
    clients = make_clients({"th": 1e9})
    block = train_all(clients, 1)
    models = [get_model(client) for client in clients]
    for i, client in enumerate(clients):
        wanted = block.get_wanted(client, i)
        assert len(wanted) == 2  # g and h of one peer: one model
        metrics = block.apply(client, i)
        assert metrics["dropout"] == 1.0
        donor = next(j for j, offer in enumerate(block.offers) if offer.digests["g"] == wanted[0])
        assert donor != i
        assert are_equal(get_model(client), models[donor])


def test_a_donor_that_is_gone_gives_way_to_another_and_without_any_the_client_is_alone() -> None:
    clients = make_clients({"th": 1e9})
    block = train_all(clients, 1)
    client, before = clients[0], get_model(clients[0])
    first, second = client.spec.draw(BEACON, get_id(0), block.offers)  # type: ignore[attr-defined]
    assert block.get_wanted(client, 0, {first.author})[0] == second.digests["g"]
    gone = {first.author, second.author}
    assert block.get_wanted(client, 0, gone) == ()
    metrics = block.apply(client, 0, gone)
    assert metrics["peers"] == 0
    assert "dropout" not in metrics
    assert are_equal(before, get_model(client))


def test_one_who_missed_the_block_keeps_its_model() -> None:
    clients = make_clients()
    trained = {i: clients[i].train(1, BEACON) for i in range(3)}
    clients[3].train(1, BEACON)
    before = get_model(clients[3])
    block = Block.make(clients, trained, 1, BEACON)
    assert block.get_wanted(clients[3], 3) == ()
    assert block.apply(clients[3], 3)["peers"] == 0
    assert are_equal(before, get_model(clients[3]))


@pytest.mark.parametrize(("similar", "h"), [(1, 5 / 3), (2, 7 / 3)])
def test_layers_are_averaged_by_the_sizes_of_the_data(similar: int, h: float) -> None:
    """The worked example: 1 of n samples, 3 and 5 of n / 2 each; h with that peer alone whose unit is similar."""
    client = make_clients({"num_peers": 2}, num_clients=3)[0]
    method, n = client.method, client.num_train
    assert isinstance(method, UaPdfl)
    parts = {kind: method.get_part(client.state, kind) for kind in ("g", "h")}
    load_parameters(client.state.model, {name: np.ones_like(array) for name, array in get_model(client).items()})
    offers = [Offer(get_id(0), n, {})]
    blobs = {}
    for i, value in ((1, 3.0), (2, 5.0)):
        offers.append(Offer(get_id(i), n // 2, {"g": bytes([i, 0]), "h": bytes([i, 1])}))
        for kind, digest in offers[-1].digests.items():
            blobs[digest] = {name: np.full_like(array, value) for name, array in parts[kind].items()}
    units = np.full((3, 10), 0.1, np.float32)
    units[3 - similar] = np.eye(10)[0]
    aggregate = {"unit/unit": units, "auxiliary/auxiliary": np.zeros((3, 32), np.float32)}
    metrics = client.apply(1, aggregate, beacon=BEACON, me=get_id(0), offers=offers, blobs=blobs)
    assert (metrics["peers"], metrics["similar"], metrics["dropout"]) == (2, 1, 0)
    mixed = {"g": (n + n // 2 * (3 + 5)) / (n + 2 * (n // 2)), "h": (n + n // 2 * (1 + 2 * similar)) / (n + n // 2)}
    assert mixed == pytest.approx({"g": 2.5, "h": h}, rel=0.02)
    for kind, expected in mixed.items():
        for array in method.get_part(client.state, kind).values():
            np.testing.assert_allclose(array, expected, rtol=1e-6)


# ---- Eq. (12)


def test_the_auxiliary_target_is_the_mean_over_peers_and_oneself() -> None:
    own, *others = (np.array(row, np.float32) for row in ([0, 1, 2], [2, 1, 0], [1, 1, 4]))
    target = compute_mean_auxiliary([own, *others])
    np.testing.assert_array_equal(target, np.array([1, 1, 2], np.float32))
    assert 0.01 * float(np.square(own - target).sum()) == pytest.approx(0.01)


@pytest.mark.parametrize("th", [1e9, -1.0], ids=["dropout", "personalise"])
def test_the_next_phase_is_held_to_what_peers_and_oneself_have_sent(th: float) -> None:
    clients = make_clients({"th": th}, num_clients=5)
    trained = [client.train(1, BEACON) for client in clients]
    sent = {get_id(i): made.payloads["auxiliary"]["auxiliary"] for i, made in enumerate(trained)}
    block = Block.make(clients, dict(enumerate(trained)), 1, BEACON)
    for i, client in enumerate(clients):
        peers = draw_peers(BEACON, get_id(i), sent, 2)
        gone = {peers[0]} if i == 4 else set()
        block.apply(client, i, gone)
        target = compute_mean_auxiliary([sent[get_id(i)], *(sent[peer] for peer in peers if peer not in gone)])
        np.testing.assert_array_equal(client.begin(2, BEACON).prepared.context["target"], target)


def test_one_that_takes_from_nobody_is_held_to_itself() -> None:
    clients = make_clients()
    block = train_all(clients, 1)
    sent = block.aggregate["auxiliary/auxiliary"][0] if block.aggregate else None
    block.apply(clients[0], 0, {get_id(i) for i in (1, 2, 3)})
    np.testing.assert_array_equal(clients[0].state.arrays["target"], sent)


@pytest.mark.parametrize("model", [MLP, {"name": "cnn_mnist"}], ids=["one pass", "two passes"])
def test_the_loss_adds_the_distance_of_the_live_representation_from_the_target(model: dict[str, Any]) -> None:
    (client,) = make_clients({"mu": 0.5}, num_clients=1, model=model)
    method, net = client.method, client.state.model
    net.eval()
    context = client.begin(1, BEACON).prepared.context
    batch = Batch(client.state.data.train.x[:8], client.state.data.train.y[:8])
    assert context["target"].equal(net.embed(method.make_unit(client.state))[0].detach())  # type: ignore[attr-defined]
    net.train()
    torch.manual_seed(0)
    at_target = method.compute_loss(net, batch, context)
    torch.manual_seed(0)
    shifted = method.compute_loss(net, batch, {**context, "target": context["target"] + 2})
    dim = len(context["target"])
    assert float((shifted - at_target).detach()) == pytest.approx(0.5 * 4 * dim, rel=1e-4)
    at_target.backward()  # type: ignore[no-untyped-call]


def test_batch_norm_does_not_see_the_constant_input() -> None:
    def train(mu: float) -> Any:
        (client,) = make_clients(
            {"mu": mu, "lr": 1e-30, "local_iterations": 1, "batch_size": 4},
            num_clients=1,
            model={"name": "resnet18"},
            shots=2,
        )
        client.train(1, BEACON)
        return {name: array for name, array in get_model(client).items() if "running" in name}

    with_unit, without = train(0.1), train(0.0)
    assert with_unit
    assert are_equal(with_unit, without)


# ---- rounds


def test_a_round_from_a_checkpoint_is_the_round_itself() -> None:
    first, second = make_clients({"mu": 0.5}), make_clients({"mu": 0.5})
    before = train_all(first, 1)
    for i, (client, other) in enumerate(zip(first, second, strict=True)):
        other.load_state_arrays(client.state_arrays())  # between the local phase and the block
        before.apply(client, i)
        before.apply(other, i)
        assert are_equal(client.state_arrays(), other.state_arrays())
    for client, other in zip(first, make_clients({"mu": 0.5}), strict=True):
        other.load_state_arrays(client.state_arrays())  # and between the block and the next phase
        client.train(2, BEACON)
        other.train(2, BEACON)
        assert are_equal(client.state_arrays(), other.state_arrays())


def test_batched_clients_learn_what_they_would_have_one_after_the_other() -> None:
    apart, together = make_clients({"mu": 0.5}), make_clients({"mu": 0.5})
    for height in (1, 2):
        for clients, made in (
            (together, train_batched(together, height, BEACON)),
            (apart, [client.train(height, BEACON) for client in apart]),
        ):
            block = Block.make(clients, dict(enumerate(made)), height, BEACON)
            for i, client in enumerate(clients):
                block.apply(client, i)
    for one, other in zip(together, apart, strict=True):
        for name, array in one.state_arrays().items():
            assert array == pytest.approx(other.state_arrays()[name], abs=1e-5), name


def test_a_round_without_representations_is_refused() -> None:
    clients = make_clients()
    block, before = train_all(clients, 1), clients[0].state_arrays()
    units = {name: array for name, array in (block.aggregate or {}).items() if name.startswith("unit/")}
    for aggregate, missing in ((None, "(unit|auxiliary)"), (units, "auxiliary")):
        with pytest.raises(AggregationError, match=f"round 1: expected {missing} in the aggregate"):
            clients[0].apply(1, aggregate, beacon=BEACON, me=get_id(0), offers=block.offers, blobs=block.blobs)
        assert are_equal(clients[0].state_arrays(), before)


# ---- what everyone can see


def test_everyone_can_recompute_who_drew_whom_and_why() -> None:
    clients = make_clients()
    block = train_all(clients, 1)
    spec = clients[0].spec
    told = spec.explain(1, BEACON, block.offers, block.aggregate)
    assert told is not None
    matrix = np.array(told["divergences"])
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12)
    assert not matrix.diagonal().any()
    for i, (client, node) in enumerate(zip(clients, told["nodes"], strict=True)):
        wanted = block.get_wanted(client, i)
        assert len(wanted) == (2 if node["branch"] == "dropout" else len(node["peers"]) + len(node["similar"]))
        metrics = block.apply(client, i)
        assert metrics["divergence"] == pytest.approx(np.mean([matrix[i][j] for j in node["peers"]]))
        assert metrics["dropout"] == (node["branch"] == "dropout")
