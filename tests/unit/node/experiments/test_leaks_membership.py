"""Membership: scores by hand, a leak that must be found, noise that must tell nothing, and the command."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ml.methods.base import Samples
from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, use_threads
from node.cli import main
from node.errors import ConfigError
from node.experiments.leaks.membership import (
    compute_auc,
    list_attacks,
    run_membership_bench,
    score_by_distance,
)
from node.experiments.leaks.played import OWN, Played, deal, play


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with use_threads(1):
        yield


def make_config(method: str = "dfpl", rounds: int = 2) -> SimulationConfig:
    return SimulationConfig(method={"name": method}, partition="iid", clients=2, rounds=rounds)


def measure(played: Played, name: str) -> float:
    score = list_attacks(played)[name]
    return compute_auc(score(played.site.state.data.train), score(played.held_out))


# ---- the scores


def test_the_auc_counts_pairs_and_ties_by_half() -> None:
    assert compute_auc(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])) == 0.75
    assert compute_auc(torch.tensor([1.0]), torch.tensor([1.0, 0.0])) == 0.75
    assert compute_auc(torch.tensor([0.0, 0.0]), torch.tensor([0.0])) == 0.5
    assert compute_auc(torch.tensor([-1.0]), torch.tensor([-math.inf, -2.0])) == 1.0


def test_a_sample_is_scored_by_the_nearest_prototype_of_its_own_class() -> None:
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    classes = torch.tensor([0, 0, 1])
    z = torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.0, 2.0], [5.0, 5.0]])
    scores = score_by_distance(z, torch.tensor([0, 0, 1, 2]), classes, prototypes)
    assert scores.tolist() == [0.0, -3.0, -2.0, -math.inf]


# ---- the dealing


def test_site_attacker_and_the_held_out_share_no_sample() -> None:
    y = np.repeat(np.arange(2), 60)
    parts = deal(y, np.array([3, 0]), numpy_rng("deal"))
    site, attacker, held_out = parts
    assert np.bincount(y[site], minlength=2).tolist() == [3, 0]
    assert np.bincount(y[attacker]).tolist() == [OWN, OWN]
    assert np.bincount(y[held_out]).tolist() == [60 - OWN - 3, 60 - OWN]
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))


def test_a_class_with_too_few_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"class 1: expected at least 50 samples, 5 for the site.*\(got 49\)"):
        deal(np.repeat([0, 1], [50, 49]), np.array([5, 5]), numpy_rng("deal"))


# ---- what must be found, and what must not


def test_a_prototype_of_one_sample_tells_that_sample() -> None:
    """It is the sample's feature vector: by the model that made it none is nearer."""
    assert measure(play(make_config("dfpl"), 1), "dfpl: prototypes, the site's model") > 0.99
    assert measure(play(make_config("mpfedcl"), 1), "mpfedcl: prototypes") > 0.99


def test_k_means_of_two_samples_tells_both_and_of_many_tells_less() -> None:
    few, many = (measure(play(make_config("mpfedcl"), count), "mpfedcl: prototypes") for count in (2, 50))
    assert few > 0.99
    assert many < 0.75


@pytest.mark.parametrize("count", [1, 20])
def test_noise_in_the_place_of_prototypes_tells_nothing(count: int) -> None:
    found = []
    for seed in range(4):
        played = play(dataclasses.replace(make_config(), seed=seed), count)
        sent = played.last.payloads["prototypes"]
        noise = numpy_rng("noise", seed).standard_normal(sent["prototypes"].shape, np.float32)
        payloads = {"prototypes": {**sent, "prototypes": noise}}
        last = dataclasses.replace(played.last, payloads=payloads)
        found.append(measure(dataclasses.replace(played, sent=[last]), "dfpl: prototypes, own model"))
    assert np.mean(found) == pytest.approx(0.5, abs=0.1)


def test_a_model_that_has_learned_its_samples_by_heart_tells_them_by_their_loss() -> None:
    played = play(make_config("fedavg", rounds=1), 1)
    own, model = played.site.state.data.train, played.site.state.model
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(own.x), own.y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    learned = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    by_heart = dataclasses.replace(played.last, payloads={"model": learned})
    assert measure(dataclasses.replace(played, sent=[by_heart]), "fedavg: model") > 0.85
    score = list_attacks(played)["fedavg: model"]
    others = played.held_out
    first, second = Samples(others.x[::2], others.y[::2]), Samples(others.x[1::2], others.y[1::2])
    assert compute_auc(score(first), score(second)) == pytest.approx(0.5, abs=0.1)


def test_parts_that_travel_one_by_one_are_one_model() -> None:
    played = play(make_config("uapdfl"), 2)
    assert set(played.last.payloads) == {"unit", "auxiliary", "g", "h"}
    assert set(played.last.model) == {name for name, _ in played.site.state.model.named_parameters()}


# ---- the bench and the command


def test_the_same_seed_gives_the_same_figures() -> None:
    first, again = (
        run_membership_bench(make_config(rounds=1), sizes=(2,), repeats=2, report=lambda _: None) for _ in range(2)
    )
    assert first["attacks"] == again["attacks"]
    assert list(first["attacks"]) == [
        "dfpl: prototypes, own model",
        "dfpl: prototypes, the site's model",
        "mpfedcl: prototypes",
        "mpfedcl: model",
        "fedavg: model",
        "uapdfl: model",
    ]
    assert first["job"]["seeds"] == [1, 2]


def test_the_command_prints_a_table_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["experiment", "attack", "membership", "--sizes", "1,3", "--rounds", "1", "--repeats", "1"]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-7].split() == ["of", "each", "class", "1", "3"]
    assert [line[:37].strip() for line in lines[-6:-4]] == [
        "dfpl: prototypes, own model",
        "dfpl: prototypes, the site's model",
    ]
    assert main([*asked, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["attacks"]["fedavg: model"].keys() == {"1", "3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sizes 1,x", "--sizes: expected different whole numbers from 1 on, as in 1,5,20 (got '1,x')"),
        ("--sizes 5,5", "--sizes: expected different whole numbers"),
        ("--sizes 170", "--data: class 0: expected at least 215 samples"),
        ("--model nonesuch", "--model: "),
        ("--data nonesuch", "nonesuch"),
    ],
)
def test_the_command_refuses_what_cannot_be_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert main(["experiment", "attack", "membership", "--rounds", "1", *arguments.split()]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
