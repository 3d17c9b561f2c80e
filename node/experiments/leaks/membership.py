"""`fednode experiment attack membership`: whether a sample was in a site's training set, told from what the site sent.

The attacker is the other member. It has a sample with its class and wants to know whether the site trained on it. Its
score is to be higher for samples that the site has:

    prototypes            minus the distance from the sample's embedding to the nearest prototype of its class that the
                          site sent last; with DFPL by the attacker's own model, as the site's never leaves it, or by
                          the site's, as if it had got out; with MP-FedCL by the model that the site sends beside them
    models                minus the loss of the sample by the model that the site sent last: the threshold attack of
                          Yeom, Giacomelli, Fredrikson, Jha, *Privacy Risk in Machine Learning*, 2018

The area under the ROC curve over all samples of the site and all held out, one threshold for all classes, is 0.5 where
nothing is learned and 1 where every member of the set is recognised. Shadow models and earlier rounds would reveal
more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ml.measures.classification import compute_areas
from ml.methods.base import Samples
from ml.models.base import Model
from ml.simulation.run import SimulationConfig, use_threads
from node.experiments.leaks.played import Played, describe_job, list_embeddings, list_played, read_prototypes
from node.experiments.measured import describe_spread, describe_torch
from node.host.machine import get_machine

METHODS = ("dfpl", "mpfedcl", "fedavg", "uapdfl")

Score = Callable[[Samples], Tensor]  # [N], higher for samples that the site has


def run_membership_bench(
    config: SimulationConfig, *, sizes: Sequence[int], repeats: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measures the AUC by what is attacked and number of samples in each class; repetition r uses the seed
    `config.seed` + r for everything. The name in `config.method` is ignored. Raises ConfigError, and as `simulate`."""
    found: dict[str, dict[str, list[float]]] = {}
    with use_threads(config.threads):
        for size, _, played in list_played(config, METHODS, sizes, repeats, report):
            for name, score in list_attacks(played).items():
                auc = compute_auc(score(played.site.state.data.train), score(played.held_out))
                found.setdefault(name, {}).setdefault(str(size), []).append(auc)
    return {
        "machine": {**get_machine(), **describe_torch(played.site.device, config.threads)},
        "job": describe_job(config, sizes=sizes, repeats=repeats),
        "attacks": {
            name: {size: describe_spread(values) for size, values in by_size.items()} for name, by_size in found.items()
        },
    }


def list_attacks(played: Played) -> dict[str, Score]:
    """Lists the attacks on what this site has sent, by name."""
    method, found = played.site.spec.name, dict[str, Score]()
    if "prototypes" in played.last.payloads:
        for whose, model in list_embeddings(played).items():
            found[f"{method}: prototypes{whose}"] = _by_distance(played, model)
    if played.last.model:
        found[f"{method}: model"] = _by_loss(played.get_model())
    return found


def compute_auc(members: Tensor, others: Tensor) -> float:
    """Computes the chance that a sample of the site's scores higher than one that it does not have; a tie counts
    half."""
    scores = torch.cat([members, others]).double().cpu().numpy()
    is_member = np.arange(len(scores)) < len(members)
    area, _ = compute_areas(is_member, scores)
    assert area is not None  # noqa: S101 - there are samples of both kinds
    return area


def score_by_distance(z: Tensor, y: Tensor, classes: Tensor, prototypes: Tensor) -> Tensor:
    """Returns minus the distance to the nearest prototype of each sample's class [N]; minus infinity where there is
    none."""
    distances = torch.cdist(z.double(), prototypes.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return -distances.masked_fill(y[:, None] != classes, torch.inf).amin(1)


def _by_distance(played: Played, model: Model) -> Score:
    classes, prototypes = read_prototypes(played)

    @torch.no_grad()
    def score(samples: Samples) -> Tensor:
        return score_by_distance(played.represent(model, samples.x), samples.y, classes, prototypes)

    return score


def _by_loss(model: Model) -> Score:
    @torch.no_grad()
    def score(samples: Samples) -> Tensor:
        return -F.cross_entropy(model(samples.x).double(), samples.y, reduction="none")

    return score
