"""SWIM: MOON's contrast with a sliding window of older representations, some of which attract (ALGORITHMS §9).

Zhang, Chen, Wen, Bian, *SWIM: Sliding-Window Model Contrast for Federated Learning*, 2025. Of the last C local models
of a client, those whose representations of the batch have a mean cosine of at least 0.5 with its own are positives:

    L   = (1 - mu_r) CE + mu_r * mean over the batch of -log( pos / (pos + neg) )        mu_r = 0.5 - r / (2R)
    pos = e^(cos(z, z_glob)/tau) + sum over positives of e^(cos(z, z_h)/tau)     neg = sum over the others of the same
    C   = ceil(0.4 * E)

In round 1 there are no older models yet and the contrast is 0; in round R its weight is.

Where we deviate: z is the embedding, as for MOON. The code keeps the representations of the last C mini-batches by the
previous model, so that it compares different samples with each other, and puts mean cosines of the batch into the
exponents; here a window holds models, and the same sample is always compared with itself. E are epochs in the paper; if
local work is set in iterations it is their number. One model is kept per round, R - 1 at most. Only its embeddings of
the client's own samples are kept, N * D numbers, for one more pass over them a round: C models would need far more
memory for all but the smallest networks, and C passes. If samples change while a node is down, the window restarts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ml.methods.base import Round, State
from ml.methods.common.contrast import compute_cosines, compute_window_contrast, represent
from ml.methods.common.sharing import SharesModel
from ml.models.base import Model
from ml.payload import Array, Arrays
from ml.specs.methods.swim import SwimSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy


class Swim(SharesModel[SwimSpec]):
    """Trains by cross-entropy and SWIM's contrast. The state besides the model is `history` float32[N, H, D]: each
    sample's last H <= C unit embeddings."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        mu = self.spec.compute_mu(round_.height)
        if not mu:
            return Prepared()
        x = state.data.train.x
        history_NHD = torch.from_numpy(self._get_history(state)).to(x.device)
        by_sample = {"global": represent(state.model, x, schedule.drawn), "history": history_NHD}
        return Prepared({"mu": torch.tensor(mu, device=x.device)}, by_sample)

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        if not context:
            return compute_cross_entropy(model, batch, context)
        z_BD = model.embed(batch.x)
        loss = model.criterion(model.classify(z_BD), batch.y)
        global_B = compute_cosines(z_BD, batch.extra["global"])
        history_BH = compute_cosines(z_BD[:, None], batch.extra["history"])
        contrast = compute_window_contrast(global_B, history_BH, self.spec.hyperparameters.tau)
        return (1 - context["mu"]) * loss + context["mu"] * contrast

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        x = state.data.train.x
        latest_ND = represent(state.model, x, torch.arange(len(x), device=x.device)).cpu().numpy()
        window_NHD = np.concatenate([self._get_history(state), latest_ND[:, None]], 1)
        state.arrays = {"history": window_NHD[:, -self.spec.window_size :].copy()}
        return super().finish(state, round_)

    def _get_history(self, state: State) -> Array:
        samples, dim = len(state.data.train), self.spec.task.embedding_dim
        history_NHD = state.arrays.get("history")
        if history_NHD is None or len(history_NHD) != samples:
            return np.zeros((samples, 0, dim), np.float32)
        return history_NHD
