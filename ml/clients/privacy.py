"""The noise that hides a client's samples in a local phase, or the client in what it sends, and what a phase may have
released about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ml.accountant import Release
from ml.errors import AggregationError
from ml.gaussian import add_noise
from ml.methods.base import Round
from ml.payload import Array, Arrays
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.privacy import count_private_steps
from ml.specs.sharing import ModelHyperparameters
from ml.training.private import StepPrivacy


def make_step_privacy(hyper: Hyperparameters, round_: Round, num_samples: int) -> StepPrivacy | None:
    """Returns the noise settings for the steps of a phase on so many samples; None if nothing hides them."""
    if not hyper.is_private:
        return None
    _, size = count_private_steps(hyper, num_samples, 1)
    return StepPrivacy(hyper.dp.noise, hyper.dp.clip, size, round_.secret_stream("noise in steps"))


def hide_update(hyper: Hyperparameters, round_: Round, model: Arrays, common: Arrays) -> Arrays:
    """Returns the model to be sent in place of `model`, where `common` is the model that the phase began with. The
    change is clipped to the length C and gets noise of sigma C in each number (McMahan et al., *Learning Differentially
    Private Recurrent Language Models*, 2018; there a server adds it). Returns `model` itself if nothing hides the
    client. Raises AggregationError."""
    if not isinstance(hyper, ModelHyperparameters) or hyper.update_noise is None:
        return model
    changes = {name: _subtract(array, common.get(name), name) for name, array in model.items()}
    length = math.sqrt(sum(float(np.vdot(change, change)) for change in changes.values()))
    scale = min(1.0, hyper.update_clip / length) if length else 1.0
    cut = torch.cat([torch.from_numpy(scale * changes[name].ravel()) for name in sorted(changes)])
    hidden = add_noise(cut, hyper.update_noise, hyper.update_clip, round_.secret_stream("noise in the update"))
    parts = torch.split(hidden, [changes[name].size for name in sorted(changes)])
    return {
        name: (common[name] + part.numpy().reshape(changes[name].shape)).astype(np.float32)
        for name, part in zip(sorted(changes), parts, strict=True)
    }


def _subtract(array: Array, common: Array | None, name: str) -> Array:
    if common is None or common.shape != array.shape:
        raise AggregationError(f"array {name!r}: expected one of shape {list(array.shape)} in the common model")
    change: Array = array.astype(np.float64) - common
    return change


def describe_release(planned: Release | None, payloads: Mapping[str, Arrays]) -> Release | None:
    """Returns what a phase has released that was planned so and sends these payloads. It leaves the prototype noise out
    if they have no prototype."""
    sent = payloads.get("prototypes")
    if planned is None or (sent is not None and len(sent["classes"])):
        return planned
    return replace(planned, prototype_noise=None)
