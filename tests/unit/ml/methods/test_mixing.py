"""The peer-to-peer methods that UA-PDFL is compared with: what each takes from whom (ALGORITHMS §9, §12.7, §13)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ml.aggregation import Contributed, weighted_mean
from ml.clients.batched import train_batched
from ml.clients.client import Client
from ml.errors import SpecError
from ml.methods.base import Method
from ml.methods.criticalfl import CriticalFl
from ml.methods.dfedavgm import DFedAvgM, compute_combination
from ml.methods.dispfl import DisPfl
from ml.methods.fedavg_p2p import FedAvgP2p
from ml.methods.fedper import FedPer
from ml.methods.uapdfl import UaPdfl
from ml.models import resolve_model
from ml.payload import Array
from ml.specs import MethodSpec, Offer, Task
from ml.specs.methods.criticalfl import CriticalFlSpec
from ml.specs.methods.dfedavgm import DFedAvgMSpec, compute_mixing_weights, draw_graph
from ml.specs.methods.dispfl import DisPflSpec
from ml.specs.methods.fedavg_p2p import FedAvgP2pSpec
from ml.specs.methods.fedper import FedPerSpec
from ml.specs.methods.uapdfl import UaPdflSpec
from ml.specs.peers import draw_peers
from ml.training.optimizers import Sgd
from support.federation.peer_rounds import (
    Block,
    are_equal,
    get_id,
    get_model,
    make_peer_clients,
    run_peer_round,
    train_all,
)
from support.federation.simulated import BEACON, MLP, make_digit_clients, run_round

Pair = tuple[type[Any], type[MethodSpec]]

ALL: dict[str, Pair] = {
    "fedper": (FedPer, FedPerSpec),
    "fedavg_p2p": (FedAvgP2p, FedAvgP2pSpec),
    "dfedavgm": (DFedAvgM, DFedAvgMSpec),
    "dispfl": (DisPfl, DisPflSpec),
    "criticalfl": (CriticalFl, CriticalFlSpec),
}
VOTED = {"criticalfl": {"unit"}}
ON_DEMAND = {"fedper": {"g"}, "dispfl": {"model"}}
TWO: dict[str, Any] = {"num_peers": 2, "local_iterations": 3}


@pytest.fixture(params=ALL.values(), ids=list(ALL))
def pair(request: pytest.FixtureRequest) -> Pair:
    pair: Pair = request.param
    return pair


def make_clients(pair: Pair, settings: dict[str, Any] | None = None, **options: Any) -> list[Client]:
    return make_peer_clients(*pair, {**TWO, **(settings or {})}, **options)


def get_h(client: Client) -> dict[str, Array]:
    return {name: array for name, array in get_model(client).items() if name in client.spec.task.classifier_names}


# ---- what all of them do


def test_a_contribution_has_small_voted_kinds_and_the_model_on_demand(pair: Pair) -> None:
    spec = make_clients(pair, num_clients=1)[0].spec
    assert pair[1].name in ALL
    assert spec.rules(1).keys() == VOTED.get(spec.name, set())
    assert spec.schemas(1).keys() - spec.rules(1).keys() == ON_DEMAND.get(spec.name, {"g", "h"})


def test_each_client_pulls_from_those_it_has_drawn_and_nobody_else(pair: Pair) -> None:
    clients = make_clients(pair)
    block = train_all(clients, 1)
    for i, client in enumerate(clients):
        peers = client.spec.draw(BEACON, get_id(i), block.offers, block.aggregate)  # type: ignore[attr-defined]
        assert get_id(i) not in [peer.author for peer in peers]
        kinds = ON_DEMAND.get(client.spec.name, {"g", "h"})
        expected = {peer.digests[kind] for peer in peers for kind in kinds}
        assert sorted(block.get_wanted(client, i)) == sorted(expected)
        assert block.apply(client, i)["peers"] == len(peers) >= 2


def test_the_draw_is_explained_to_everyone(pair: Pair) -> None:
    clients = make_clients(pair)
    block = train_all(clients, 1)
    told = clients[0].spec.explain(1, BEACON, block.offers, block.aggregate)
    assert told is not None
    for i, (client, node) in enumerate(zip(clients, told["nodes"], strict=True)):
        offered = [digest for place in node["peers"] for digest in block.offers[place].digests.values()]
        assert set(block.get_wanted(client, i)) <= set(offered)
        assert block.apply(client, i)["peers"] == len(node["peers"])
    assert json.loads(json.dumps(told)) == told


def test_a_node_that_is_no_author_pulls_nothing_and_keeps_its_model(pair: Pair) -> None:
    clients = make_clients(pair)
    made = {i: client.train(1, BEACON) for i, client in enumerate(clients)}
    del made[3]
    block, before = Block.make(clients, made, 1, BEACON), get_model(clients[3])
    assert block.get_wanted(clients[3], 3) == ()
    assert block.apply(clients[3], 3)["peers"] == 0.0
    assert are_equal(get_model(clients[3]), before)


def test_one_whose_peers_are_all_gone_keeps_its_model(pair: Pair) -> None:
    clients = make_clients(pair)
    block, before = train_all(clients, 1), get_model(clients[0])
    others = {get_id(i) for i in (1, 2, 3)}
    assert block.apply(clients[0], 0, gone=others)["peers"] == 0.0
    assert are_equal(get_model(clients[0]), before)


def test_a_peer_that_is_gone_is_not_asked_and_nobody_takes_its_place(pair: Pair) -> None:
    clients = make_clients(pair, num_clients=6)
    block = train_all(clients, 1)
    drawn = clients[0].spec.draw(BEACON, get_id(0), block.offers, block.aggregate)  # type: ignore[attr-defined]
    wanted = block.get_wanted(clients[0], 0)
    left = block.get_wanted(clients[0], 0, gone={drawn[0].author})
    assert list(left) == [digest for digest in wanted if digest not in drawn[0].digests.values()] != list(wanted)
    assert block.apply(clients[0], 0, gone={drawn[0].author})["peers"] == len(drawn) - 1


def test_a_round_from_a_checkpoint_is_the_round_itself(pair: Pair) -> None:
    first, second = make_clients(pair), make_clients(pair)
    run_peer_round(first, 1)
    for client, other in zip(first, second, strict=True):
        other.load_state_arrays(client.state_arrays())
    block = train_all(first, 2)
    train_all(second, 2)
    for i, (client, other) in enumerate(zip(first, second, strict=True)):
        other.load_state_arrays(client.state_arrays())  # and one between the local phase and the block
        assert block.apply(client, i)["accuracy"] == block.apply(other, i)["accuracy"]
        assert are_equal(client.state_arrays(), other.state_arrays())


def test_running_statistics_stay_at_home_where_they_are_local(pair: Pair) -> None:
    shape, small = (1, 8, 8), {"name": "support.data.user_models:make_small", "args": {"width": 4}}
    task = Task(resolve_model(small, shape, 10), shape, 10, rounds=10)
    for how, there in (("average", True), ("local", False)):
        schemas = pair[1].from_mapping({"bn_buffers": how}, task).schemas(1).values()
        assert any("norm.running_mean" in schema.arrays for schema in schemas) is there


def test_local_running_statistics_survive_a_round() -> None:
    model = resolve_model({"name": "support.data.user_models:make_small", "args": {"width": 4}}, (1, 8, 8), 10)
    for pair in ALL.values():
        clients = make_clients(pair, {"bn_buffers": "local"}, model=model)
        block = train_all(clients, 1)
        before = get_model(clients[0])
        block.apply(clients[0], 0)
        after = get_model(clients[0])
        assert not np.array_equal(before["conv.weight"], after["conv.weight"])
        for name in ("norm.running_mean", "norm.running_var"):
            assert np.array_equal(before[name], after[name])


def test_batched_clients_learn_what_they_would_have_one_after_the_other(pair: Pair) -> None:
    apart, together = make_clients(pair), make_clients(pair)
    for height in (1, 2):
        ours = train_batched(together, height, BEACON)
        theirs = [client.train(height, BEACON) for client in apart]
        for clients, made in ((together, ours), (apart, theirs)):
            block = Block.make(clients, dict(enumerate(made)), height, BEACON)
            for i, client in enumerate(clients):
                block.apply(client, i)
    for one, other in zip(together, apart, strict=True):
        for name, array in one.state_arrays().items():
            assert array == pytest.approx(other.state_arrays()[name], abs=1e-5), name


# ---- FedPer


def test_fedper_never_sends_its_classifier_and_keeps_it() -> None:
    clients = make_clients(ALL["fedper"])
    block = train_all(clients, 1)
    h = get_h(clients[0])
    assert len(h) == 2
    assert all(h.keys().isdisjoint(arrays) for arrays in block.blobs.values())
    block.apply(clients[0], 0)
    assert are_equal(get_h(clients[0]), h)


def test_fedper_averages_the_rest_with_its_peers_by_their_samples() -> None:
    clients = make_clients(ALL["fedper"], partition="dirichlet:0.3")
    block = train_all(clients, 1)
    drawn = draw_peers(BEACON, get_id(0), map(get_id, range(4)), 2)
    of = [0, *(author[0] for author in drawn)]
    parts = [Contributed(get_id(i), clients[i].num_train, block.blobs[block.offers[i].digests["g"]]) for i in of]
    assert len({part.weight for part in parts}) > 1
    block.apply(clients[0], 0)
    expected = weighted_mean(parts, None)
    assert are_equal({name: get_model(clients[0])[name] for name in expected}, expected)


def test_uapdfl_that_finds_nobody_similar_and_has_no_mu_is_fedper() -> None:
    settings = {"th": -1.0, "mu": 0.0}
    ua = make_peer_clients(UaPdfl, UaPdflSpec, {**TWO, **settings})
    per = make_clients(ALL["fedper"])
    for height in (1, 2, 3):
        beacon = bytes([height]) * 32
        told = run_peer_round(ua, height, beacon)
        assert [metrics["similar"] for metrics in told] == [0.0] * 4
        run_peer_round(per, height, beacon)
        for one, other in zip(ua, per, strict=True):
            assert are_equal(get_model(one), get_model(other))


# ---- FedAvg, peer to peer


def test_fedavg_p2p_averages_whole_models() -> None:
    clients = make_clients(ALL["fedavg_p2p"])
    block = train_all(clients, 1)
    parts = [Contributed(get_id(i), client.num_train, get_model(client)) for i, client in enumerate(clients)]
    of = [0, *(author[0] for author in draw_peers(BEACON, get_id(0), map(get_id, range(4)), 2))]
    block.apply(clients[0], 0)
    assert are_equal(get_model(clients[0]), weighted_mean([parts[i] for i in of], None))


def test_fedavg_p2p_with_as_many_peers_as_there_are_others_is_fedavg() -> None:
    clients = make_clients(ALL["fedavg_p2p"], {"num_peers": 3})
    common = make_digit_clients({"name": "fedavg", "local_iterations": 3}, num_clients=4)
    for height in (1, 2):
        run_peer_round(clients, height)
        run_round(common, height)
    for client, other in zip(clients, common, strict=True):
        assert are_equal(get_model(client), get_model(other))


def test_uniform_weights_tell_nobody_how_many_samples_there_are() -> None:
    clients = make_clients(ALL["fedavg_p2p"], {"weights": "uniform"}, partition="dirichlet:0.3")
    block = train_all(clients, 1)
    assert [offer.weight for offer in block.offers] == [1, 1, 1, 1]


def test_nobody_signs_more_samples_than_genesis_lets_it() -> None:
    (client,) = make_clients(ALL["fedavg_p2p"], num_clients=1)
    spec = FedAvgP2pSpec.from_mapping({}, replace(client.spec.task, max_weight=5))
    assert (client.num_train > 5, FedAvgP2p(spec).get_weight(client.state)) == (True, 5)


# ---- DFedAvgM


def test_heavy_ball_steps_are_sgd_with_momentum() -> None:
    x = torch.ones(1, requires_grad=True)
    sgd = Sgd([x], 0.1, DFedAvgMSpec.from_mapping({}, make_task()).hyperparameters.momentum)
    seen = [x.item()]
    for _ in range(3):
        sgd.step((x.square() / 2).sum())
        seen.append(x.item())
    assert seen == pytest.approx([1, 0.9, 0.72, 0.486], rel=1e-6)


def make_task() -> Task:
    return Task(MLP, (1, 8, 8), 10, rounds=10)


def test_mixing_is_the_matrix_times_the_models() -> None:
    models = [{"w": np.array([x], np.float32)} for x in (1, 2, 4)]
    rows = ((0.5, 0.5, 0.0), (0.5, 0.25, 0.25), (0.0, 0.25, 0.75))
    mixed = [compute_combination(zip(row, models, strict=True))["w"].tolist() for row in rows]
    assert mixed == [[1.5], [2.0], [3.5]]


def test_mixing_is_rounded_once() -> None:
    models = [{"w": np.array([x], np.float32)} for x in (9, -1)]
    assert compute_combination(zip((0.1, 0.9), models, strict=True))["w"] == pytest.approx(0, abs=1e-15)


def test_weights_on_a_path_are_those_of_metropolis_and_hastings() -> None:
    a, b, c = b"a", b"b", b"c"
    path = {a: frozenset({b}), b: frozenset({a, c}), c: frozenset({b})}
    assert compute_mixing_weights(path, a) == pytest.approx({a: 2 / 3, b: 1 / 3})
    assert compute_mixing_weights(path, b) == pytest.approx({a: 1 / 3, b: 1 / 3, c: 1 / 3})
    assert list(compute_mixing_weights(path, c)) == [b, c]
    assert compute_mixing_weights(path, b, gone={a}) == pytest.approx({b: 2 / 3, c: 1 / 3})


@pytest.mark.parametrize("num_peers", [1, 2, 5, 40])
def test_the_graph_is_undirected_and_its_matrix_doubly_stochastic(num_peers: int) -> None:
    authors = tuple(map(get_id, range(9)))
    graph = draw_graph(b"beacon", authors, num_peers)
    rows = [compute_mixing_weights(graph, author) for author in authors]
    w = np.array([[row.get(author, 0.0) for author in authors] for row in rows])
    assert np.array_equal(w, w.T)
    assert (w >= 0).all()
    assert w.sum(0) == pytest.approx(np.ones(9))
    for author in authors:
        assert set(draw_peers(b"beacon", author, authors, num_peers)) <= graph[author]
        assert author not in graph[author]
    edges = sum(map(len, graph.values())) // 2
    assert edges == sum(1 for i in authors for j in authors if i < j and (j in graph[i]))
    assert graph != draw_graph(b"another", authors, num_peers) or num_peers == 40


def test_dfedavgm_gives_the_weight_of_a_neighbour_that_is_gone_to_itself() -> None:
    clients = make_clients(ALL["dfedavgm"], {"num_peers": 3})  # all are neighbours of all: W is 1/4 everywhere
    block, models = train_all(clients, 1), [get_model(client) for client in clients]
    block.apply(clients[0], 0, gone={get_id(2)})
    for name, array in get_model(clients[0]).items():
        expected = sum(w * m[name].astype(np.float64) for w, m in zip((0.5, 0.25, 0, 0.25), models, strict=True))
        assert array == pytest.approx(expected, abs=1e-7), name
    block.apply(clients[1], 1)
    for name, array in get_model(clients[1]).items():
        assert array == pytest.approx(np.mean([model[name] for model in models], axis=0), abs=1e-6), name


def test_dfedavgm_keeps_the_mean_of_all_models() -> None:
    clients = make_clients(ALL["dfedavgm"], {"num_peers": 1}, num_clients=6)
    block, (name, *_) = train_all(clients, 1), get_model(clients[0])
    before = np.mean([get_model(client)[name] for client in clients], axis=0)
    for i, client in enumerate(clients):
        block.apply(client, i)
    after = np.mean([get_model(client)[name] for client in clients], axis=0)
    assert after == pytest.approx(before, abs=1e-6)


def test_dfedavgm_shows_its_matrix() -> None:
    offers = [Offer(get_id(i), 1, {}) for i in range(3)]
    told = DFedAvgMSpec.from_mapping({}, make_task()).explain(1, BEACON, offers, None)
    assert told is not None
    assert [node["peers"] for node in told["nodes"]] == [[1, 2], [0, 2], [0, 1]]
    assert np.array(told["weights"]) == pytest.approx(np.full((3, 3), 1 / 3))


@pytest.mark.parametrize("spec", [DFedAvgMSpec, DisPflSpec])
def test_where_samples_do_not_count_nobody_is_asked_for_their_number(spec: type[MethodSpec]) -> None:
    with pytest.raises(SpecError, match="expected uniform, got 'samples'"):
        spec.from_mapping({"weights": "samples"}, make_task())
    assert spec.from_mapping({}, make_task()).max_weight_is_one


def test_a_method_is_made_of_its_spec() -> None:
    for make, spec in ALL.values():
        method: Method = make(spec.from_mapping({}, make_task()))
        assert method.spec.to_mapping()["name"] == method.spec.name
        assert type(method.spec).from_mapping(method.spec.to_mapping(), make_task()) == method.spec
