"""The settings of a new federation: with every default three skewed sites learn, from a table and from images; with
the papers' settings on inputs as they come each site gives everything one class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from ml.clients.client import Client
from ml.data import open_once
from ml.measures.collapse import Sign, find_signs
from ml.simulation.rounds import Rounds
from ml.simulation.run import SimulationConfig, begin_simulation
from node.config.genesis_draft import GenesisSpec, draft_genesis

NUM_SITES = 3
SKEWED = "dirichlet:0.5"
AS_IT_COMES = ("aux=l2", "input.normalize=none")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """breast_cancer as a user has it: 30 features in their own units, and a label."""
    cancer, path = load_breast_cancer(), tmp_path / "patients.csv"
    lines = [",".join([*cancer.feature_names, "label"])]
    for x_F, y in zip(cancer.data, cancer.target, strict=True):
        lines.append(",".join([*map(repr, x_F.tolist()), cancer.target_names[y]]))
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path}"


@dataclass(frozen=True, slots=True)
class Site:
    """One site's answers on everyone's test samples of the classes it has: the mean of the recalls, and how many
    classes it answers with, of how many; and the signs that a node of it would tell of, by its own test samples."""

    balanced_accuracy: float
    num_answered: int
    num_classes: int
    signs: frozenset[Sign]

    @classmethod
    def of(cls, client: Client) -> Site:
        samples, own = client.state.data.everyone, torch.unique(client.state.data.train.y)
        has_class = torch.isin(samples.y, own)
        y_N, answered_N = samples.y[has_class], client.predict(samples.x[has_class]).labels
        recalls = [(answered_N[y_N == label] == label).float().mean().item() for label in own]
        signs = frozenset(find_signs(client.measure(), {}))
        return cls(float(np.mean(recalls)), len(torch.unique(answered_N)), len(own), signs)


def learn(spec: GenesisSpec, rounds: int, seed: int = 1, partition: str = SKEWED) -> list[Site]:
    """What each of three sites has learned on a chain with this genesis, which agrees on what normalises unless it says
    otherwise."""
    spec = replace(spec, normalize="agreed")
    with open_once():
        drafted, data = draft_genesis(spec)
        run: dict[str, Any] = drafted.value
        config = SimulationConfig(
            method=run["method"],
            data=data,
            model=run["model"],
            input=run["input"],
            partition=partition,
            clients=NUM_SITES,
            rounds=rounds,
            seed=seed,
        )
        clients, initial, _ = begin_simulation(config)
    played = Rounds(clients, [bytes([i]) * 32 for i in range(NUM_SITES)], initial)
    for height in range(1, rounds + 1):
        played.play(height, bytes(32))
    return [site for site in map(Site.of, clients) if site.num_classes > 1]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_skewed_table_is_learned_with_every_default(table: str, seed: int) -> None:
    sites = learn(GenesisSpec(data=table), 20, seed)
    assert len(sites) >= 2
    assert min(site.balanced_accuracy for site in sites) > 0.7  # the site that has 4 samples of a class among 132
    assert np.mean([site.balanced_accuracy for site in sites]) > 0.85
    assert all(site.num_answered == 2 for site in sites)


def test_the_same_table_as_it_comes_is_one_class_to_every_site(table: str) -> None:
    sites = learn(GenesisSpec(method="dfpl", data=table, settings=AS_IT_COMES), 20, partition="iid")
    assert [(site.num_answered, site.balanced_accuracy) for site in sites] == [(1, 0.5)] * NUM_SITES
    assert all(Sign.ONE_CLASS in site.signs for site in sites)
    assert not any(site.signs for site in learn(GenesisSpec(data=table), 20, partition="iid"))


@pytest.mark.parametrize("seed", [1, 2])
def test_skewed_images_are_learned_with_every_default(seed: int) -> None:
    sites = learn(GenesisSpec(data="digits"), 10, seed)
    assert min(site.balanced_accuracy for site in sites) > 0.5
    assert all(site.num_answered >= 6 for site in sites)


@pytest.mark.slow
def test_convolutions_learn_images_that_the_papers_settings_leave_at_chance() -> None:
    learned = learn(GenesisSpec(method="dfpl", data="digits", model="cnn_mnist"), 6)
    assert min(site.balanced_accuracy for site in learned) > 0.4
    collapsed = learn(GenesisSpec(method="dfpl", data="digits", model="cnn_mnist", settings=AS_IT_COMES), 6)
    assert max(site.balanced_accuracy for site in collapsed) < 0.2
    assert all(site.num_answered <= 2 for site in collapsed)


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "mpfedcl", "uapdfl"])
def test_other_methods_learn_the_table_too(table: str, method: str) -> None:
    assert min(site.balanced_accuracy for site in learn(GenesisSpec(method=method, data=table), 10)) > 0.8
