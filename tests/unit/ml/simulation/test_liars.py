"""Simulations under attack: who lies, what of it counts, and where a federation would stand still."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.clients.client import Client
from ml.errors import SpecError
from ml.methods.base import Trained
from ml.simulation.liars import Liars, choose_liars
from ml.simulation.run import SimulationConfig, SimulationResult, begin_simulation, simulate
from ml.training.loop import Diverged
from ml.training.metrics import compute_mean

QUICK: dict[str, Any] = {"clients": 4, "rounds": 2, "shots": 10, "partition": "iid"}


LEARNING: dict[str, Any] = {"shots": None, "rounds": 8, "hyperparameters": {"local_iterations": 20}}


def run(attack: Mapping[str, Any] | None, method: str = "fedavg", **settings: Any) -> SimulationResult:
    hyperparameters = {"local_iterations": 3, **settings.pop("hyperparameters", {})}
    return simulate(SimulationConfig(method={"name": method, **hyperparameters}, attack=attack, **QUICK | settings))


# ---- who lies


def test_liars_follow_from_the_seed_and_the_fewer_are_some_of_the_more() -> None:
    for seed in range(20):
        assert set(choose_liars(10, 1, seed)) < set(choose_liars(10, 3, seed))
        assert list(choose_liars(10, 3, seed)) == sorted(set(choose_liars(10, 3, seed)))
    assert len({choose_liars(10, 1, seed) for seed in range(50)}) == 10


def test_the_same_clients_lie_whatever_the_method_and_the_attack() -> None:
    told = [
        run({"name": name, "liars": 2}, method, rounds=1).liars
        for name, method in (("huge", "fedavg"), ("silent", "dfpl"))
    ]
    assert told[0] == told[1] == choose_liars(4, 2, 1)


# ---- what counts


def test_accuracies_are_those_of_the_honest_alone() -> None:
    result = run({"name": "label_flip", "liars": 1}, "dfpl", **LEARNING)
    honest = [client for client in result.clients if client.id not in result.liars]
    assert len(honest) == 3
    last = result.rounds[-1]
    assert last.taa == compute_mean(client.accuracy for client in honest)
    assert last.global_ == compute_mean(client.global_accuracy for client in honest)
    assert last.taa_local == compute_mean(client.local_accuracy or 0.0 for client in honest)
    (liar,) = (client for client in result.clients if client.id in result.liars)
    assert liar.global_accuracy < min(client.global_accuracy for client in honest)  # it has learned other labels


def test_a_run_under_attack_repeats_and_says_so_in_json() -> None:
    first, second = (run({"name": "noise", "liars": 1}) for _ in range(2))
    assert first.aggregate_digests == second.aggregate_digests
    document = json.loads(json.dumps(first.to_json(), allow_nan=False))
    assert document == json.loads(json.dumps(second.to_json()))
    assert document["config"]["attack"] == {"name": "noise", "liars": 1}
    assert (document["liars"], document["halted_at"]) == (list(first.liars), None)
    assert [(row["left_out"], row["spoiled"]) for row in document["rounds"]] == [(0, 0), (0, 0)]


def test_without_an_attack_nothing_is_said_of_one() -> None:
    document = run(None).to_json()
    assert not {"liars", "halted_at"} & document.keys()
    assert not {"left_out", "spoiled"} & document["rounds"][0].keys()


def test_a_lie_moves_the_mean_and_a_robust_rule_holds_it() -> None:
    lied = {"name": "sign_flip", "scale": 5.0}
    robust = {**LEARNING, "hyperparameters": {"local_iterations": 20, "aggregation": "median"}}
    honest, held, broken = run(None, **LEARNING), run(lied, **robust), run(lied, **LEARNING)
    assert broken.final_taa + 0.3 < held.final_taa
    assert abs(held.final_taa - honest.final_taa) < 0.1


def test_what_liars_claim_is_their_weight_in_the_mean() -> None:
    alone = run({"name": "silent"}, **LEARNING)
    light, heavy = (run({"name": "sign_flip", "weight": weight}, **LEARNING) for weight in (1, 100_000))
    assert abs(light.final_taa - alone.final_taa) < 0.05
    assert heavy.final_taa + 0.3 < alone.final_taa


def test_the_silent_are_left_out_of_every_round() -> None:
    result = run({"name": "silent", "liars": 1}, clients=5)
    assert [row.left_out for row in result.rounds] == [1, 1]
    assert [row.sent_params for row in result.rounds] == [row.sent_params for row in run(None).rounds]  # of four


def test_a_lie_that_validators_refuse_is_left_out_and_counted() -> None:
    refused = run({"name": "huge", "value": 1e39, "liars": 1})
    assert [row.left_out for row in refused.rounds] == [1, 1]
    assert refused.aggregate_digests == run({"name": "silent", "liars": 1}).aggregate_digests
    assert refused.halted_at is None


def test_who_does_not_take_a_spoiled_aggregate_is_counted_and_goes_on() -> None:
    """Eight layers of numbers near 250,000 come to more than a float32 can hold."""
    deep = {"name": "mlp", "hidden": [16] * 8}
    result = run({"name": "huge", "value": 999_999.0}, model=deep, rounds=3)
    assert [row.spoiled for row in result.rounds] == [3, 3, 3]  # all of the honest
    assert [row.left_out for row in result.rounds] == [0, 0, 0]
    assert all(math.isfinite(row.tal) for row in result.rounds)
    assert result.halted_at is None
    assert [row.spoiled for row in run({"name": "huge"}, model=deep).rounds] == [3, 3]


def test_a_guarded_client_takes_nothing_of_peers_that_lie() -> None:
    free, guarded = (run({"name": "huge"}, "uapdfl", max_loss_ratio=ratio, rounds=4) for ratio in (None, 4.0))
    honest = run({"name": "silent"}, "uapdfl", rounds=4)
    assert guarded.rounds[-1].tal < 2 * honest.rounds[-1].tal
    assert free.rounds[-1].tal > 100 * guarded.rounds[-1].tal


def test_liars_train_on_the_labels_of_their_attack_and_the_honest_on_their_own() -> None:
    clients, _, _ = begin_simulation(SimulationConfig(method={"name": "fedavg"}, **QUICK))
    before = [client.state.data.train.y.numpy().copy() for client in clients]
    liars = Liars.make({"name": "label_flip", "liars": 2}, clients, 1)
    for i, client in enumerate(clients):
        expected = 9 - before[i] if i in liars.places else before[i]
        assert np.array_equal(client.state.data.train.y.numpy(), expected)
    assert sorted((*liars.places, *liars.honest)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("method", "attack"),
    [
        ("dfpl", "mislabelled_prototypes"),
        ("dfpl", "shifted_prototypes"),
        ("dfpl", "inner_product"),
        ("mpfedcl", "little"),
        ("mpfedcl", "scaled_update"),
        ("fednova", "inner_product"),
        ("uapdfl", "little"),
        ("uapdfl", "huge"),
        ("dispfl", "sign_flip"),
        ("fedper", "noise"),
        ("fedrep", "sign_flip"),
        ("swim", "label_flip"),
    ],
)
def test_a_lie_is_in_form_and_goes_into_the_round(method: str, attack: str) -> None:
    honest, lied = run(None, method), run({"name": attack}, method)
    assert [row.left_out for row in lied.rounds] == [0, 0]
    assert lied.halted_at is None
    assert lied.final_taa != honest.final_taa or lied.rounds[-1].tal != honest.rounds[-1].tal


@pytest.mark.outer
@pytest.mark.parametrize("what", ["labels", "noise"])
def test_a_poisoned_set_is_in_form_and_changes_what_the_others_learn(what: str) -> None:
    settings = {"local_epochs": 2, "warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 2}
    config = SimulationConfig(method={"name": "fededs", **settings}, **QUICK | {"rounds": 3})
    honest = simulate(config)
    lied = simulate(replace(config, attack={"name": "poisoned_set", "what": what}))
    assert [row.left_out for row in lied.rounds] == [0, 0, 0]
    assert lied.rounds[-1].tal != honest.rounds[-1].tal


def test_all_clients_in_one_pass_lie_alike() -> None:
    one, other = (run({"name": "label_flip"}, batched=batched) for batched in ("off", "on"))
    assert one.liars == other.liars
    assert one.final_taa == pytest.approx(other.final_taa, abs=0.1)


# ---- standing still


def diverge_from(monkeypatch: pytest.MonkeyPatch, height: int, seeds: set[int]) -> None:
    """From this height on the training of the clients with these seeds gives no numbers."""
    train = Client.train

    def fail(self: Client, at: int, *args: Any, **given: Any) -> Trained:
        if at >= height and self.seed in seeds:
            raise Diverged("no numbers")
        return train(self, at, *args, **given)

    monkeypatch.setattr(Client, "train", fail)


def get_seeds(*places: int) -> set[int]:
    clients, _, _ = begin_simulation(SimulationConfig(method={"name": "fedavg"}, **QUICK))
    return {clients[i].seed for i in places}


def test_who_diverges_under_attack_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (liar,) = choose_liars(4, 1, 1)
    diverge_from(monkeypatch, 2, get_seeds((liar + 1) % 4))
    result = run({"name": "noise"})
    assert [row.left_out for row in result.rounds] == [0, 1]
    assert result.halted_at is None
    assert result.clients[(liar + 1) % 4].local_accuracy is None


def test_a_run_ends_where_fewer_contribute_than_a_block_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    (liar,) = choose_liars(4, 1, 1)
    diverge_from(monkeypatch, 2, get_seeds((liar + 1) % 4))
    result = run({"name": "silent"}, rounds=5)
    assert (len(result.rounds), result.halted_at) == (1, 2)
    assert result.final_taa == result.rounds[0].taa
    assert len(result.clients) == 4


def test_a_run_that_never_begins_has_null_for_its_numbers() -> None:
    result = run({"name": "silent", "liars": 2})
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (document["rounds"], document["halted_at"]) == ([], 1)
    assert [document[name] for name in ("best_taa", "final_taa", "final_global")] == [None] * 3
    assert math.isnan(result.final_taa)


def test_without_an_attack_a_divergence_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    diverge_from(monkeypatch, 2, get_seeds(0))
    with pytest.raises(Diverged):
        run(None)


def test_liars_are_refused_before_anything_is_trained() -> None:
    with pytest.raises(SpecError, match="expected fewer than the 4 clients, got 4"):
        run({"name": "noise", "liars": 4})
