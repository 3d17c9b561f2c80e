"""A client's answers adjusted to its own classes: at a given kappa, over all kappas from everyone's expert to its own,
and at the kappa that the client would choose (`ml.training.prior`).

All functions raise MlError if the client's answers have no prior.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ml.clients.client import Client
from ml.data.chunks import get_chunk
from ml.errors import MlError
from ml.methods.base import Samples
from ml.tasks import CLASSIFICATION
from ml.training.metrics import Prediction
from ml.training.prior import KAPPAS, ClassScores, adjust, choose_kappa, compute_log_prior


def make_predict_at(client: Client, kappa: float) -> Callable[[Tensor], Prediction]:
    """Returns a function that classifies samples as `Client.predict` does, adjusted by `kappa`."""
    log_prior_C = compute_own_log_prior(client)
    return lambda x: adjust(score_classes(client, x), log_prior_C, kappa)


def choose_own_kappa(client: Client) -> float:
    """Returns the kappa that answers the client's own training samples best, where no sample helps to answer itself."""
    samples = client.state.data.train
    return choose_kappa(_score(client, samples, own=True), samples.y, compute_own_log_prior(client))


def measure_priors(client: Client) -> list[tuple[float | None, float, float]]:
    """Returns each of `KAPPAS`, and last None for the client's own kappa, each with the accuracy of the answers on the
    matched and on the global test set."""
    data, log_prior_C = client.state.data, compute_own_log_prior(client)
    sets = [(_score(client, samples), samples.y) for samples in (data.matched, data.everyone)]
    measured: list[tuple[float | None, float, float]] = []
    for kappa in (*KAPPAS, None):
        used = choose_own_kappa(client) if kappa is None else kappa
        right = [(adjust(said, log_prior_C, used).labels == y_N).double().mean().item() for said, y_N in sets]
        measured.append((kappa, right[0], right[1]))
    return measured


def compute_own_log_prior(client: Client) -> Tensor:
    """Returns the log prior of the classes that the client has, float32[C]."""
    if client.spec.task.kind != CLASSIFICATION:
        raise MlError(f"task {client.spec.task.kind}: expected classes, which a prior is of")
    return compute_log_prior(client.state.data.train.y, client.state.data.num_classes)


@torch.no_grad()
def score_classes(client: Client, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
    """Returns the class scores of samples, which a kappa adjusts. `rows_N` are their places if they are the client's
    training samples."""
    if not hasattr(client.method, "score_classes"):  # a plugin's method, written before there were priors
        raise MlError(f"{client.spec.name}: expected score_classes of its method, to add a prior to; got none")
    client.state.model.eval()
    return client.method.score_classes(client.state, x, rows_N)


def _score(client: Client, samples: Samples, *, own: bool = False) -> ClassScores:
    """Returns the class scores of samples, computed in chunks; `own` if these are all of the client's training
    samples."""
    rows = torch.split(torch.arange(len(samples), device=client.device), get_chunk(samples.x.shape))
    parts = [score_classes(client, samples.x[rows_N], rows_N if own else None).scores for rows_N in rows]
    nothing = torch.empty((0, client.state.data.num_classes), device=client.device)
    return ClassScores(torch.cat(parts) if parts else nothing)
