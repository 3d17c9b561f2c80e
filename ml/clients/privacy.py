"""The noise that hides a client's samples in a local phase, and what the phase may have told of any of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ml.accountant import Release
from ml.methods.base import Round
from ml.payload import Arrays
from ml.specs import Hyperparameters, MethodSpec
from ml.training.private import StepPrivacy


def make_step_privacy(
    hyper: Hyperparameters, round_: Round, num_samples: int, device: torch.device
) -> StepPrivacy | None:
    """Of the steps of a phase on so many samples; None where nothing hides them."""
    if not hyper.is_private:
        return None
    generator = round_.secret_generator("noise in steps", device)
    return StepPrivacy(hyper.dp.noise, hyper.dp.clip, min(hyper.batch_size, num_samples), generator)


def describe_release(
    hyper: Hyperparameters, num_steps: int, num_samples: int, payloads: Mapping[str, Arrays]
) -> Release | None:
    """Of a phase of so many steps that sends these payloads; None where nothing hides samples."""
    if not hyper.is_private:
        return None
    sent = payloads.get("prototypes")
    told = hyper.dp.prototype_noise if sent is not None and len(sent["classes"]) else None
    return Release(num_steps, min(hyper.batch_size, num_samples) / num_samples, hyper.dp.noise, told)


def plan_release(spec: MethodSpec, num_samples: int, height: int, num_iterations: int | None = None) -> Release | None:
    """What a phase of this height will have told at most; None where nothing hides samples."""
    hyper, planned = spec.hyperparameters, spec.get_local_work(height)
    if not hyper.is_private:
        return None
    work = num_iterations if planned and num_iterations is not None else planned
    size = min(hyper.batch_size, num_samples)
    num_steps = work * (-(-num_samples // size) if hyper.counts_epochs else 1)
    told = hyper.dp.prototype_noise if "prototypes" in spec.schemas(height) else None
    return Release(num_steps, size / num_samples, hyper.dp.noise, told)
