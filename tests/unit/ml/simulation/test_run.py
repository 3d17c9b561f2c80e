"""Whole runs on digits: they learn, they repeat, and they say what the command line promises."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from ml.clients.client import Client
from ml.clients.measured import TestSet
from ml.errors import DataError, SpecError
from ml.methods.base import Metrics
from ml.payload import Arrays
from ml.simulation import rounds
from ml.simulation.results import RoundResult
from ml.simulation.run import ZERO_DIGEST, SimulationConfig, SimulationResult, simulate
from ml.specs import MethodSpec, Offer
from ml.training.metrics import compute_mean

QUICK: dict[str, Any] = {"clients": 3, "rounds": 2, "shots": 10}


def run(method: str, **settings: Any) -> SimulationResult:
    hyperparameters = settings.pop("hyperparameters", {})
    return simulate(SimulationConfig(method={"name": method, **hyperparameters}, **settings))


# ---- learning, in bands measured over eight seeds (4 clients, 8 rounds) and widened by about their own width


@pytest.mark.parametrize(
    ("method", "hyperparameters", "partition", "taa", "everyone"),
    [
        ("local", {}, "classes:3,1", (0.90, 1.00), (0.15, 0.45)),  # 0.94 to 1.00, 0.22 to 0.36
        ("dfpl", {}, "classes:3,1", (0.87, 1.00), (0.15, 0.45)),  # 0.92 to 0.98, 0.21 to 0.35
        ("local", {}, "dirichlet:0.3", (0.80, 0.96), (0.24, 0.58)),  # 0.85 to 0.91, 0.33 to 0.49
        ("dfpl", {"infer": "prototype"}, "dirichlet:0.3", (0.78, 0.98), (0.52, 0.68)),  # 0.84 to 0.93, 0.57 to 0.61
        ("fedavg", {"local_iterations": 20}, "dirichlet:0.3", (0.38, 0.90), (0.42, 0.87)),  # 0.50-0.76, 0.53-0.76
    ],
)
def test_methods_learn(
    method: str,
    hyperparameters: dict[str, Any],
    partition: str,
    taa: tuple[float, float],
    everyone: tuple[float, float],
) -> None:
    for seed in (1, 2, 3):
        result = run(method, hyperparameters=hyperparameters, partition=partition, clients=4, rounds=8, seed=seed)
        assert taa[0] <= result.final_taa <= taa[1]
        assert everyone[0] <= result.final_global <= everyone[1]
        assert result.final_taa > result.rounds[0].taa + 0.1


def test_federated_average_knows_classes_that_a_lone_client_has_never_seen() -> None:
    alone = run("local", clients=4, rounds=12, partition="classes:3,1")
    together = run("fedavg", clients=4, rounds=12, partition="classes:3,1", hyperparameters={"local_iterations": 20})
    assert together.final_global > alone.final_global + 0.1
    assert alone.final_taa > together.final_taa  # but of its own classes the lone client knows more


# ---- repeating


@pytest.mark.parametrize("method", ["fedavg", "dfpl"])
def test_same_seed_gives_the_same_digests(method: str) -> None:
    first, second, other = (run(method, seed=seed, **QUICK) for seed in (5, 5, 6))
    assert first.aggregate_digests == second.aggregate_digests
    assert first.to_json() == second.to_json()
    assert not set(first.aggregate_digests) & set(other.aggregate_digests)
    assert len(set(first.aggregate_digests)) == 2


def test_dropout_repeats_too() -> None:
    settings = {**QUICK, "model": {"name": "cnn_mnist"}, "hyperparameters": {"local_iterations": 2}}
    assert run("dfpl", **settings).aggregate_digests == run("dfpl", **settings).aggregate_digests


def test_local_has_no_aggregate() -> None:
    assert run("local", **QUICK).aggregate_digests == (ZERO_DIGEST, ZERO_DIGEST)


def test_simulation_gives_the_number_of_threads_back() -> None:
    before = torch.get_num_threads()
    run("local", threads=before + 1, clients=1, rounds=1, hyperparameters={"local_iterations": 1})
    assert torch.get_num_threads() == before


# ---- what it is fed


def test_aggregates_are_summed_in_the_order_of_the_ids() -> None:
    config = SimulationConfig(method={"name": "fedavg"}, clients=4, rounds=1, shots=10)
    ids = [bytes([i]) * 32 for i in range(4)]
    straight = simulate(config, ids=ids)
    renamed = simulate(config, ids=[bytes([10 * (i + 1)]) * 32 for i in range(4)])
    turned = simulate(config, ids=ids[::-1])
    assert straight.aggregate_digests == renamed.aggregate_digests
    assert straight.rounds[0].taa == pytest.approx(turned.rounds[0].taa, abs=0.05)
    with pytest.raises(ValueError, match="ids: expected 4 different ones, got 1"):
        simulate(config, ids=[bytes(32)] * 4)


def test_beacons_are_asked_for_by_height_as_the_chain_grows() -> None:
    events: list[str] = []

    def get_beacon(height: int) -> bytes:
        events.append(f"beacon {height}")
        return bytes([height]) * 32

    def on_round(result: RoundResult) -> None:
        events.append(f"round {result.round}")

    simulate(SimulationConfig(method={"name": "dfpl"}, **QUICK), beacons=get_beacon, on_round=on_round)
    assert events == ["beacon 1", "round 1", "beacon 2", "round 2"]


# ---- what it says


def test_json_has_the_promised_fields_and_nothing_that_varies() -> None:
    result = run("dfpl", hyperparameters={"lambda": 0.5}, **QUICK)
    document = json.loads(json.dumps(result.to_json()))
    assert document.keys() == {"config", "rounds", "best_taa", "final_taa", "final_global", "clients", "priors"}
    assert [entry.keys() for entry in document["rounds"]] == [
        {"round", "taa", "tal", "taa_local", "global", "tal_global"}
        | {"sent_params", "sent_bytes", "received_params", "received_bytes", "aux_loss", "sent_prototypes"}
    ] * 2
    assert [entry.keys() for entry in document["clients"]] == [
        {"id", "accuracy", "global_accuracy", "local_accuracy", "num_train", "num_test"}
    ] * 3
    assert [entry["id"] for entry in document["clients"]] == [0, 1, 2]
    assert document["config"]["method"]["lambda"] == 0.5
    assert document["config"]["method"]["local_iterations"] == 20  # a default, written out
    assert document["best_taa"] == max(entry["taa"] for entry in document["rounds"])
    assert document["final_taa"] == document["rounds"][-1]["taa"]
    assert document["final_global"] == document["rounds"][-1]["global"]
    assert document["final_taa"] == compute_mean(entry["accuracy"] for entry in document["clients"])
    assert document["final_global"] == compute_mean(entry["global_accuracy"] for entry in document["clients"])


def test_traffic_is_what_was_encoded() -> None:
    dfpl, fedavg, local = (run(method, **QUICK) for method in ("dfpl", "fedavg", "local"))
    assert {entry.sent_params for entry in fedavg.rounds} == {3 * 6_570}
    assert 3 * 6_570 * 4 < fedavg.rounds[0].sent_bytes < 3 * (6_570 * 4 + 1024)
    assert dfpl.rounds[0].sent_params % 32 == 0
    assert dfpl.rounds[0].sent_bytes < fedavg.rounds[0].sent_bytes / 20
    for entry in (*fedavg.rounds, *dfpl.rounds):  # each is received by the two others
        assert (entry.received_params, entry.received_bytes) == (2 * entry.sent_params, 2 * entry.sent_bytes)
    assert {(entry.sent_params, entry.sent_bytes) for entry in local.rounds} == {(0, 0)}
    assert {(entry.received_params, entry.received_bytes) for entry in local.rounds} == {(0, 0)}


# ---- peer to peer

PEERS = ["uapdfl", "fedper", "fedavg_p2p", "dfedavgm", "dispfl", "criticalfl"]
FIVE: dict[str, Any] = {"clients": 5, "rounds": 3, "shots": 10, "partition": "dirichlet:0.5"}


@dataclass(frozen=True)
class Applied:
    """A block as one client has applied it, and what that client said of it."""

    spec: MethodSpec
    height: int
    beacon: bytes
    me: bytes
    offers: tuple[Offer, ...]
    aggregate: Arrays | None
    blobs: frozenset[bytes]
    metrics: Metrics


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Applied]:
    """Every block that a client applies, as they come."""
    seen: list[Applied] = []
    apply = Client.apply

    def note(client: Client, height: int, aggregate: Arrays | None, **round_: Any) -> Metrics:
        metrics = apply(client, height, aggregate, **round_)
        offers, blobs = round_["offers"], frozenset(round_["blobs"])
        block = (client.spec, height, round_["beacon"], round_["me"], offers, aggregate, blobs, metrics)
        seen.append(Applied(*block))
        return metrics

    monkeypatch.setattr(Client, "apply", note)
    return seen


@pytest.mark.parametrize("method", PEERS)
def test_peer_to_peer_runs_repeat(method: str) -> None:
    hyperparameters = {"num_peers": 2, "local_iterations": 3}
    first, second, other = (run(method, seed=seed, hyperparameters=hyperparameters, **FIVE) for seed in (5, 5, 6))
    assert first.aggregate_digests == second.aggregate_digests
    assert first.to_json() == second.to_json()
    assert first.rounds != other.rounds
    for entry in first.rounds:
        assert entry.peers is not None
        assert entry.peers >= 2
        assert entry.received_bytes >= entry.sent_bytes > 0


def make_beacon(salt: str, height: int) -> bytes:
    return f"{salt}{height}".encode()


def test_whom_a_client_draws_hangs_on_the_block_before() -> None:
    config = SimulationConfig(method={"name": "fedavg_p2p", "num_peers": 1, "local_iterations": 3}, **FIVE)
    first, same, other = (simulate(config, beacons=partial(make_beacon, salt)) for salt in ("a", "a", "b"))
    assert first.rounds == same.rounds
    assert first.rounds[0].taa_local == other.rounds[0].taa_local
    assert first.rounds[0].taa != other.rounds[0].taa


def test_what_uapdfl_receives_is_what_everyone_can_work_out(applied: list[Applied]) -> None:
    """ALGORITHMS §5.3: |w| in the dropout branch, |Q| |w_g| + |S| |w_h| otherwise; and C + D of all others, since
    representations are voted on."""
    hyperparameters = {"num_peers": 2, "local_iterations": 8, "th": 0.02}  # with which both branches are taken
    result = run("uapdfl", hyperparameters=hyperparameters, **FIVE)
    spec = applied[0].spec
    h = 32 * 10 + 10
    g = spec.task.num_parameters - h
    branches = []
    for entry in result.rounds:
        blocks = [block for block in applied if block.height == entry.round]
        told = spec.explain(entry.round, blocks[0].beacon, blocks[0].offers, blocks[0].aggregate)
        assert told is not None
        assert [block.me for block in blocks] == [offer.author for offer in blocks[0].offers]
        pulled = 0
        for block, node in zip(blocks, told["nodes"], strict=True):
            branches.append(node["branch"])
            assert block.metrics["dropout"] == (node["branch"] == "dropout")
            assert len(block.blobs) == (2 if node["branch"] == "dropout" else len(node["peers"] + node["similar"]))
            pulled += g + h if node["branch"] == "dropout" else len(node["peers"]) * g + len(node["similar"]) * h
        assert entry.received_params == 5 * 4 * (10 + 32) + pulled
        assert entry.sent_params == 5 * (10 + 32) + pulled
        assert entry.dropout == compute_mean(node["branch"] == "dropout" for node in told["nodes"])
        assert entry.similar == compute_mean(len(node["similar"]) for node in told["nodes"])
        distances = [told["divergences"][i][j] for i, node in enumerate(told["nodes"]) for j in node["peers"]]
        assert entry.divergence == pytest.approx(compute_mean(distances))
        place = {offer.author: row for row, offer in enumerate(blocks[0].offers)}
        ids = [i.to_bytes(32, "big") for i in range(5)]
        by_client = [[told["divergences"][place[me]][place[peer]] for peer in ids] for me in ids]
        assert [list(row) for row in entry.divergences or ()] == by_client
    assert set(branches) == {"dropout", "personalise"}
    assert any(entry.similar for entry in result.rounds)


def test_only_uapdfl_has_branches() -> None:
    row = {"round", "taa", "tal", "taa_local", "global", "tal_global"}
    row |= {"sent_params", "sent_bytes", "received_params", "received_bytes"}
    settings = {"hyperparameters": {"local_iterations": 1}, **FIVE, "rounds": 1}
    rows = {method: run(method, **settings).to_json()["rounds"][0].keys() for method in ("fedavg", "fedper", "uapdfl")}
    assert rows["fedavg"] == row
    assert rows["fedper"] == row | {"peers"}
    assert rows["uapdfl"] == row | {"peers", "similar", "dropout", "divergence", "divergences"}


def test_pairs_of_clients_are_told_apart_on_agreed_statistics_too() -> None:
    settings = {"hyperparameters": {"local_iterations": 1}, **FIVE, "rounds": 2}
    *_, last = run("uapdfl", **settings, input={"shape": [1, 8, 8], "normalize": "agreed"}).rounds
    assert [len(row) for row in last.divergences or ()] == [5] * 5


def test_a_lone_client_has_nobody_to_take_from() -> None:
    entry = run("uapdfl", clients=1, rounds=1, shots=10).rounds[0]
    assert (entry.peers, entry.dropout, entry.divergence) == (0.0, None, None)
    assert entry.received_bytes == 0


# ---- what it refuses


@pytest.mark.parametrize("settings", [{"clients": 0}, {"rounds": 0}, {"threads": 0}, {"data": {"format": "mnist"}}])
def test_impossible_runs_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        SimulationConfig(method={"name": "local"}, **settings)


def test_a_time_budget_is_refused_where_nothing_keeps_to_it() -> None:
    with pytest.raises(DataError, match=r"method.budget_s: expected none in a simulation"):
        run("dfpl", hyperparameters={"budget_s": 1}, **QUICK)


def test_unknown_settings_of_a_method_are_named() -> None:
    with pytest.raises(SpecError, match=r"method.lambda: expected a number"):
        run("dfpl", hyperparameters={"lambda": "much"}, **QUICK)
    with pytest.raises(SpecError, match=r"method.local_epoch: unknown key"):
        run("fedavg", hyperparameters={"local_epoch": 2}, **QUICK)


@pytest.mark.parametrize(("method", "asked"), [("fedavg", 1), ("local", 3), ("dfpl", 3)])
def test_one_model_that_all_share_is_measured_once_on_all_classes(
    monkeypatch: pytest.MonkeyPatch, method: str, asked: int
) -> None:
    measured: list[str] = []
    evaluate = Client.evaluate

    def count(client: Client, which: TestSet = "matched") -> Metrics:
        measured.extend([which] if which == "global" else [])
        return evaluate(client, which)

    settings: dict[str, Any] = {"hyperparameters": {"local_iterations": 3}, "clients": 3, "rounds": 2, "shots": 5}
    monkeypatch.setattr(Client, "evaluate", count)
    once = run(method, **settings)
    assert len(measured) == 2 * asked + 3  # and each client after the last round
    monkeypatch.setattr(rounds, "answer_alike", lambda one, other: False)
    assert run(method, **settings).rounds == once.rounds
