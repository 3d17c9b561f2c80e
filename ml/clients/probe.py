"""The probe of a client: one training step, computed and thrown away. It shows whether a client that has applied a
round's aggregate can go on training.

A model may answer its test samples and still be useless for training: very long prototypes only affect training, and a
gradient overflows long before a loss does. One batch shows that before a whole phase is wasted on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from ml.methods.base import Method, Round, State
from ml.models.base import Model
from ml.payload import Arrays, iter_blocks
from ml.training.loop import Engine, Schedule, gather_batches
from ml.training.optimizers import compute_gradients


def explain_untrainable(method: Method, state: State, round_: Round, engine: Engine) -> str | None:
    """Returns the reason why no step can be made from this state: the method's loss on a batch of own samples, or a
    gradient of it, is not finite. None if a step can be made.

    It draws from a random stream of its own, except for dropout, which the caller has to seed. It leaves everything as
    it was.
    """
    hyper, samples = method.spec.hyperparameters, state.data.train
    size = min(hyper.batch_size, len(samples))
    rows = round_.rng("probe of a round").choice(len(samples), size, replace=False, shuffle=False)
    schedule = Schedule((torch.from_numpy(rows).to(samples.y.device),), 1)
    with _kept(state):
        prepared = method.prepare(state, replace(round_, offers=(), gone=frozenset(), blobs={}), schedule)
        (batch,) = gather_batches(samples.x, samples.y, prepared.by_sample, schedule.batches)
        state.model.train()
        with engine.autocast(samples.x.device, state.model):
            loss = method.compute_loss(state.model, batch, prepared.context)
        parameters = tuple(parameter for parameter in state.model.parameters() if parameter.requires_grad)
        gradients = compute_gradients(loss, parameters)
        are_finite = torch.stack([torch.isfinite(tensor).all() for tensor in (loss.detach(), *gradients)]).tolist()
    if not are_finite[0]:
        return f"the training loss of {size} samples is not finite"
    return None if all(are_finite) else f"the gradients of the training loss of {size} samples are not finite"


def are_finite(arrays: Arrays) -> bool:
    """Says whether all floats in the arrays are finite."""
    floats = (array for array in arrays.values() if array.dtype.kind == "f")
    return all(bool(np.isfinite(block).all()) for array in floats for block in iter_blocks(array))


def has_finite_weights(model: Model) -> bool:
    """Says whether all trained weights are finite."""
    weights = [weight.detach() for weight in model.parameters() if weight.requires_grad]
    return bool(torch.stack(torch._foreach_norm(weights, torch.inf)).isfinite().all())


@contextmanager
def _kept(state: State) -> Iterator[None]:
    """Restores on exit what preparing and a forward pass change: the method's arrays, and the statistics of batch
    norm."""
    arrays = state.arrays
    buffers = [
        (buffer, buffer.clone()) for name, buffer in state.model.named_buffers() if not state.model.is_frozen(name)
    ]
    try:
        yield
    finally:
        state.arrays = arrays
        for buffer, before in buffers:
            buffer.copy_(before)
        state.model.eval()
