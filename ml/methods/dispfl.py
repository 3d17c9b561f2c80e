"""DisPFL: each client trains, and sends, only the part of the model that its own mask keeps (ALGORITHMS §9).

Dai et al., *DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse Training*,
2022. Client i has a mask m_i of its own (see the spec for how much it keeps of each tensor) and has drawn the peers Q.
In round r of R, counted from 0, it

    trains    w_i <- w_i - eta * m_i * clip(grad)
    searches  m' <- m_i without the smallest ceil(q * |m_i|) of |w_i|, and as many others in their place,
              tensor by tensor, q = 0.25 * (1 + cos(pi * r / R))
    takes     w_i <- m' * (sum over j in {i} + Q of w_j) / (how many of their masks have the coordinate), 0 where none
              m_i <- m'

The entries that replace the pruned ones are drawn at random, or have the largest gradients of one more batch
(`regrow`). As in the reference code, what is sent is still under m_i, the mask of the training; that model, after a
local phase, is the one to evaluate. A new entry begins at what others have learned there, 0 if none has it. A client
that has pulled from nobody keeps its model and its mask, since a new mask would have no values to begin with.

Where we deviate: masks differ from the start, by the clients' seeds, which is an option of the reference, and biases
and norms are whole from the start, as they mostly are by its densities. The paper's values are lr 0.1, decay 0.998,
weight decay 5e-4, 5 epochs of batches of 128, R = 500; the defaults are those of all methods, so that they are compared
at the same work, and density 0.5 and the clipping at norm 10 are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.random import Generator

from ml.methods.base import Blobs, Round, State
from ml.methods.common.masks import Masks, apply_masks, compute_consensus, pack_masks, prune, regrow
from ml.methods.common.mixing import SharesParts
from ml.models.base import dump_parameters
from ml.payload import Array, Arrays
from ml.seeding import numpy_rng
from ml.specs.methods.dispfl import MASK, DisPflSpec, Mask, unpack_mask
from ml.training.loop import Batch, Prepared, Schedule, compute_cross_entropy
from ml.training.optimizers import clip_gradients, compute_gradients

NEXT = "next/"


class DisPfl(SharesParts[DisPflSpec]):
    """Trains a model under a mask. The state besides the model has two sets of masks, packed: "mask/" has the current
    ones, absent before the first local phase, and "next/", between a local phase and the block, those that will
    follow."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        masks = self.get_own_masks(state, round_)
        trained = [(name, parameter) for name, parameter in state.model.named_parameters() if parameter.requires_grad]
        factors = [
            torch.from_numpy(masks[name]).to(parameter).reshape(parameter.shape)
            if name in masks
            else torch.ones_like(parameter)
            for name, parameter in trained
        ]
        clip = self.spec.hyperparameters.clip
        return Prepared(on_gradients=lambda gradients: torch._foreach_mul(clip_gradients(gradients, clip), factors))

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        masks = self.get_own_masks(state, round_)
        state.arrays = pack_masks(masks, MASK) | pack_masks(self.search(state, round_, masks), NEXT)
        return super().finish(state, round_)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        peers = self.spec.draw(round_.beacon, round_.me, round_.offers, aggregate, round_.gone)
        masks = self.get_own_masks(state, round_)
        if peers:
            parts = {peer.author: blobs[peer.digests["model"]] for peer in peers}
            parts[round_.me] = self.get_part(state, "model")
            masks = self.get_masks(state, NEXT) or masks
            self.load_parts(state, [self.take([parts[author] for author in sorted(parts)], masks)])
        state.arrays = pack_masks(masks, MASK)
        return {"peers": float(len(peers))}

    def get_part(self, state: State, kind: str) -> dict[str, Array]:
        """Returns the model as it is sent: of a masked tensor the kept values, and its mask."""
        parameters, masks = dump_parameters(state.model), self.get_masks(state, MASK)
        whole = {name: parameters[name] for name in self.spec.shapes}
        kept = {name: whole[name].reshape(-1)[mask] for name, mask in masks.items()}
        return whole | kept | pack_masks(masks, MASK)

    def take(self, parts: Sequence[Arrays], masks: Masks) -> dict[str, Array]:
        """Returns the consensus of `parts`, which are in author order, under the client's own masks."""
        taken = {}
        for name, shape in self.spec.shapes.items():
            size = math.prod(shape)
            given = [(part[name], unpack_mask(part[MASK + name], size) if name in masks else None) for part in parts]
            taken[name] = compute_consensus(given, size).reshape(shape)
        return apply_masks(taken, masks)

    def search(self, state: State, round_: Round, masks: Masks) -> dict[str, Mask]:
        """Returns the next masks: the smallest weights are pruned, and others replace them."""
        ratio, rng = self.spec.compute_prune_ratio(round_.height), round_.rng("masks")
        gradients = self.screen(state, rng) if self.spec.hyperparameters.regrow == "gradient" and masks else None
        parameters = dump_parameters(state.model)
        found = {}
        for name, mask in masks.items():
            pruned, num = prune(mask, parameters[name].reshape(-1), ratio)
            found[name] = regrow(pruned, num, rng if gradients is None else gradients[name])
        return found

    def screen(self, state: State, rng: Generator) -> dict[str, Array]:
        """Computes the gradients of all trained parameters on one batch, as if there were no masks; in eval mode, so
        that no statistics change."""
        samples = state.data.train
        rows = rng.choice(len(samples), min(self.spec.hyperparameters.batch_size, len(samples)), replace=False)
        batch = samples.take(rows)
        state.model.eval()
        trained = {name: parameter for name, parameter in state.model.named_parameters() if parameter.requires_grad}
        loss = compute_cross_entropy(state.model, Batch(batch.x, batch.y), {})
        gradients = compute_gradients(loss, tuple(trained.values()))
        return {name: gradient.cpu().numpy().reshape(-1) for name, gradient in zip(trained, gradients, strict=True)}

    def get_own_masks(self, state: State, round_: Round) -> dict[str, Mask]:
        """Returns the current masks. If there are none yet, draws the first ones and applies them to the model."""
        masks = self.get_masks(state, MASK)
        if not masks:
            masks = self.draw_masks(round_.seed)
            state.arrays = pack_masks(masks, MASK)
            self.load_parts(state, [apply_masks(dump_parameters(state.model), masks)])
        return masks

    def draw_masks(self, seed: int) -> dict[str, Mask]:
        """Draws the masks with which the client of this seed begins."""
        rng, masks = numpy_rng(seed, "masks"), {}
        for name, num_kept in self.spec.kept.items():
            masks[name] = np.zeros(math.prod(self.spec.shapes[name]), bool)
            masks[name][rng.choice(masks[name].size, num_kept, replace=False)] = True
        return masks

    def get_masks(self, state: State, prefix: str) -> dict[str, Mask]:
        """Returns one of the two sets of masks; {} if there is none."""
        names = [name for name in self.spec.kept if prefix + name in state.arrays]
        return {name: unpack_mask(state.arrays[prefix + name], math.prod(self.spec.shapes[name])) for name in names}
