"""The noise that hides a client's samples in a local phase, and what the phase may have told of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ml.accountant import Release
from ml.methods.base import Round
from ml.payload import Arrays
from ml.specs import Hyperparameters, MethodSpec
from ml.specs.privacy import count_private_steps
from ml.training.private import StepPrivacy


def make_step_privacy(
    hyper: Hyperparameters, round_: Round, num_samples: int, device: torch.device
) -> StepPrivacy | None:
    """Of the steps of a phase on so many samples; None where nothing hides them."""
    if not hyper.is_private:
        return None
    _, size = count_private_steps(hyper, num_samples, 1)
    return StepPrivacy(hyper.dp.noise, hyper.dp.clip, size, round_.secret_generator("noise in steps", device))


def plan_release(spec: MethodSpec, num_samples: int, height: int, num_iterations: int | None = None) -> Release | None:
    """What a phase of this height will have told at most; None where nothing hides samples."""
    hyper, planned = spec.hyperparameters, spec.get_local_work(height)
    if not hyper.is_private:
        return None
    work = num_iterations if planned and num_iterations is not None else planned
    num_steps, size = count_private_steps(hyper, num_samples, work)
    told = hyper.dp.prototype_noise if "prototypes" in spec.schemas(height) else None
    return Release(num_steps, size / num_samples, hyper.dp.noise, told)


def describe_release(planned: Release | None, payloads: Mapping[str, Arrays]) -> Release | None:
    """What a phase that was planned so has told, which sends these payloads: there may be no prototype among them."""
    sent = payloads.get("prototypes")
    if planned is None or (sent is not None and len(sent["classes"])):
        return planned
    return replace(planned, prototype_noise=None)
