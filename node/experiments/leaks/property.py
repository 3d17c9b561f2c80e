"""`fednode experiment attack property`: which classes a site has and of which it has more, told from what it sent.

The site has none of half of the classes, and of the others from 2 samples to many, dealt by the seed. The attacker is
the other member, and scores each class; the more samples the site has of it, the higher the score is to be:

    prototypes            those of absent classes are not there; of the others, minus the squared distance from the
                          site's last prototypes of the class to the mean embedding of the attacker's samples, as a mean
                          of few samples lies far from that of all; embedded as
                          `leaks.inversion` says
    models                the change of the class's row and bias in the classifier, summed over all rounds: from the
                          model that members had in common to the one that the site sent, or from block 0's where there
                          is none in common later. Steps on a class raise its row and lower the others' (Wainakh et al.,
                          *User-Level Label Leakage from Gradients in Federated Learning*, 2022)
    unit representations  the logarithm of the probability that the site's model gives the class, on the input that is
                          the same for all, summed over all rounds

A class is taken to be present where its score is above the mean of all. Absent classes have minus infinity where the
payload itself shows that they are absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ml.data import get_classes
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, use_threads
from node.errors import ConfigError
from node.experiments.leaks.played import Played, describe_job, list_embeddings, play, read_prototypes
from node.experiments.measured import describe_spread, describe_torch
from node.host.machine import get_machine

METHODS = ("dfpl", "mpfedcl", "fedavg", "uapdfl")
FEWEST = 2  # samples of a class that is there
LEAST = 1e-12  # what probabilities are clamped at before a logarithm

Scores = NDArray[np.float64]  # by class
Counts = NDArray[np.int64]


def run_property_bench(
    config: SimulationConfig, *, most: int, repeats: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measures how well present classes are recognised and their counts ranked, by attack; the site has `most` samples
    of one class. Repetition r uses the seed `config.seed` + r for everything. The name in `config.method` is ignored.
    Raises ConfigError, and as `simulate`."""
    num_classes = len(get_classes(config.data))
    if num_classes < 4:
        raise ConfigError(f"--data: expected at least 4 classes, of which half are absent (got {num_classes})")
    counts = make_counts(num_classes, most)
    found: dict[str, list[dict[str, float]]] = {}
    with use_threads(config.threads):
        for method in METHODS:
            report(method)
            for seed in range(config.seed, config.seed + repeats):
                dealt = numpy_rng(seed, "counts").permutation(counts)
                played = play(dataclasses.replace(config, method={"name": method}, seed=seed), dealt)
                for name, scores in list_attacks(played).items():
                    found.setdefault(name, []).append(judge(scores, dealt))
    return {
        "machine": {**get_machine(), **describe_torch(played.site.device, config.threads)},
        "job": describe_job(config, sizes=counts.tolist(), repeats=repeats),
        "attacks": {
            name: {key: describe_spread([run[key] for run in runs]) for key in runs[0]} for name, runs in found.items()
        },
    }


def make_counts(num_classes: int, most: int) -> Counts:
    """Makes counts: 0 for half of the classes, and for the others from `FEWEST` to `most`, each larger by the same
    factor."""
    absent = num_classes // 2
    there = np.geomspace(FEWEST, most, num_classes - absent).round().astype(np.int64)
    return np.concatenate([np.zeros(absent, np.int64), there])


def list_attacks(played: Played) -> dict[str, Scores]:
    """Lists the scores of each class, by what is attacked."""
    method, found = played.site.spec.name, dict[str, Scores]()
    if "prototypes" in played.last.payloads:
        for whose, model in list_embeddings(played).items():
            found[f"{method}{whose}: prototypes"] = score_prototypes(played, model)
    if played.last.model:
        first = played.sent[0].parent
        changes = [
            score_change(
                sending.parent if "model" in sending.payloads else first, sending.model, _count_classes(played)
            )
            for sending in played.sent
        ]
        found[f"{method}: model"] = np.sum(changes, axis=0)
    if "unit" in played.last.payloads:
        found[f"{method}: unit representations"] = score_units([s.payloads["unit"]["unit"] for s in played.sent])
    return found


def score_prototypes(played: Played, model: Model) -> Scores:
    """Scores each class by the site's prototypes, embedded by `model`."""
    own = played.attacker.state.data.train
    classes, prototypes = read_prototypes(played)
    scores = np.full(_count_classes(played), -np.inf)
    with torch.no_grad():
        z = played.represent(model, own.x)
    for c in torch.unique(classes).tolist():
        difference = prototypes[classes == c] - z[own.y == c].mean(0)
        scores[c] = -difference.square().sum(1).mean().item()
    return scores


def score_change(parent: Arrays, sent: Arrays, num_classes: int) -> Scores:
    """Sums the change of each class's row of the last layer that has one for each, and of its bias. Raises ConfigError
    where there is none."""
    rows = [name for name, array in sent.items() if array.ndim == 2 and len(array) == num_classes]
    if not rows:
        raise ConfigError("--model: expected a classifier with a row of weights for each class (got none)")
    weight = rows[-1]
    change: Scores = (sent[weight].astype(np.float64) - parent[weight]).sum(axis=1)
    bias = f"{weight.removesuffix('weight')}bias"
    if bias in sent:
        change = change + (sent[bias].astype(np.float64) - parent[bias])
    return change


def score_units(units: Sequence[Array]) -> Scores:
    """Sums the logarithms of a class's probabilities over rounds."""
    scores: Scores = np.log(np.maximum(np.stack(units).astype(np.float64), LEAST)).sum(axis=0)
    return scores


def judge(scores: Scores, counts: Counts) -> dict[str, float]:
    """Returns the share of classes that are rightly taken to be present or absent, and Spearman's rank correlation of
    scores and counts: over all classes, and over those that are present."""
    there = counts > 0
    return {
        "present": float(((scores > scores.mean()) == there).mean()),
        "rank": compute_rank_correlation(scores, counts),
        "rank_of_present": compute_rank_correlation(scores[there], counts[there]),
    }


def compute_rank_correlation(scores: Scores, counts: Counts) -> float:
    """Computes Spearman's rank correlation, equal values at the mean of their ranks; 0 where all are equal."""
    ranks = [_rank(values) for values in (scores, counts)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _rank(values: Scores | Counts) -> Scores:
    _, at, times = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    return np.asarray((last - (times - 1) / 2)[at], np.float64)


def _count_classes(played: Played) -> int:
    return played.site.state.data.num_classes
