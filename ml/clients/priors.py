"""A client's answers over kappa: how right they are from everyone's expert to its own, and the kappa it would choose
(`ml.training.prior`)."""

from __future__ import annotations

import torch

from ml.clients.client import Client
from ml.methods.base import Samples
from ml.training.metrics import CHUNK
from ml.training.prior import KAPPAS, ClassScores, adjust, choose_kappa


def choose_own_kappa(client: Client) -> float:
    """The kappa that the client's own training samples are answered best by, none of them by itself. Raises MlError
    where its answers have no prior."""
    samples = client.state.data.train
    return choose_kappa(_score(client, samples, own=True), samples.y, client.compute_log_prior())


def measure_priors(client: Client) -> list[tuple[float | None, float, float]]:
    """Each of `KAPPAS`, and last None for the client's own, with the accuracies of the answers at it on the matched and
    on the global test set. Raises MlError as `choose_own_kappa`."""
    data, log_prior_C = client.state.data, client.compute_log_prior()
    sets = [(_score(client, samples), samples.y) for samples in (data.matched, data.everyone)]
    measured: list[tuple[float | None, float, float]] = []
    for kappa in (*KAPPAS, None):
        used = choose_own_kappa(client) if kappa is None else kappa
        right = [(adjust(said, log_prior_C, used).labels == y_N).double().mean().item() for said, y_N in sets]
        measured.append((kappa, right[0], right[1]))
    return measured


@torch.no_grad()
def _score(client: Client, samples: Samples, *, own: bool = False) -> ClassScores:
    """In chunks; `own` where these are the client's training samples, all of them."""
    rows = torch.split(torch.arange(len(samples), device=client.device), CHUNK)
    parts = [client.score_classes(samples.x[rows_N], rows_N if own else None).scores for rows_N in rows]
    nothing = torch.empty((0, client.state.data.num_classes), device=client.device)
    return ClassScores(torch.cat(parts) if parts else nothing)
