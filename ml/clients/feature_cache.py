"""The feature cache: samples on the device that trains on them, already passed through the part of the model that never
changes (ALGORITHMS §3, §6).

A frozen encoder computes the same features of an image in every step of every round. So it does that once for each
set of samples, and a client holds the features [N, E] in place of the images: a step then costs what the head costs.
Only images that training augments stay images.

Features are float32, whatever the steps are computed in, so that an image classified later has the features it would
have had here. They are computed in chunks of one size, so that all who hold the same samples have the same bits.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ml.data.base import Images, InputFormat, Labels
from ml.data.fitted import FittedImages
from ml.data.mapped_samples import MappedSamples
from ml.methods.base import Samples
from ml.models.base import Model
from ml.training.loop import Engine

CHUNK = 128  # images in one pass: of 3x224x224 a ResNet18 then needs a GB, and more at once is no faster on a CPU

_log = logging.getLogger(__name__)


def place_samples(x: Images, y: Labels | Images, model: Model, engine: Engine, *, augmented: bool = False) -> Samples:
    """Copies x [N, C, H, W] and y [N] or [N, T] to the device of `model`, which has block 0's parameters. `augmented`
    samples may be changed by the engine whenever they are drawn."""
    device = _get_device(model)
    labels = torch.tensor(y).to(device)
    if not model.frozen_prefix or (augmented and engine.augment != "none"):
        return Samples(engine.lay_out_samples(torch.tensor(x).to(device)), labels)
    features = precompute(model, torch.tensor(x), engine)
    _log.info("Computed the features of %d samples by the frozen encoder", len(features))
    return Samples(features, labels)


def place_mapped(
    images: FittedImages,
    y: Labels | Images,
    model: Model,
    engine: Engine,
    input_: InputFormat,
    *,
    augmented: bool = False,
) -> Samples:
    """Places samples as `place_samples` does, for images that stay in their file and are normalised as they are read; a
    GPU takes them whole if it has room."""
    device = _get_device(model)
    labels = torch.tensor(y).to(device)

    def make(x_NCHW: Images) -> Tensor:
        return engine.lay_out_samples(torch.tensor(input_.normalise(x_NCHW)).to(device))

    mapped = MappedSamples(images, make, device)
    if not model.frozen_prefix or (augmented and engine.augment != "none"):
        return Samples(_hold(mapped, engine) if _has_room(mapped) else mapped, labels)
    features = precompute(model, mapped, engine)
    _log.info("Computed the features of %d samples by the frozen encoder", len(features))
    return Samples(features, labels)


def _has_room(mapped: MappedSamples) -> bool:
    """Says whether a GPU can hold all samples twice, and has as much again for training."""
    if mapped.device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(mapped.device)
    return 4 * mapped.numel() * mapped.element_size() <= free


def _hold(mapped: MappedSamples, engine: Engine) -> Tensor:
    held = torch.empty(mapped.shape, device=mapped.device)
    start = 0
    for chunk in mapped.chunks():
        held[start : start + len(chunk)] = chunk.read()
        start += len(chunk)
    return engine.lay_out_samples(held)


@torch.no_grad()
def precompute(model: Model, x_NCHW: Tensor, engine: Engine) -> Tensor:
    """Computes the features [N, E] of images, on the model's device. The images may be elsewhere: one chunk is copied
    at a time."""
    device = _get_device(model)
    parts = torch.split(x_NCHW, CHUNK)
    return torch.cat([model.precompute(engine.lay_out_samples(part.to(device))) for part in parts])


def _get_device(model: Model) -> torch.device:
    """Returns the device of its parameters."""
    return next(model.parameters()).device
