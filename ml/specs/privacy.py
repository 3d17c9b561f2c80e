"""The settings that hide samples, and the settings that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ml.errors import SpecError

if TYPE_CHECKING:
    from ml.specs.hyperparameters import Hyperparameters

CLIP, PROTOTYPE_NOISE, STATISTICS_NOISE, DELTA = 1.0, 5.0, 5.0, 1e-5  # the defaults of these four if dp_noise is set
HIDDEN = "hidden"  # the kind in the state of a client that hides its samples
_USUAL = {"dp_clip": CLIP, "dp_prototype_noise": PROTOTYPE_NOISE, "dp_prototype_clip": CLIP}


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSettings:
    """Holds the noise in steps and in prototypes, in units of the clips (the greatest length of a sample's gradient or
    embedding), and in agreed statistics, in units of the most that one sample adds to all their sums. `delta` is the
    chance that epsilon leaves out."""

    noise: float
    clip: float
    prototype_noise: float
    prototype_clip: float
    statistics_noise: float
    delta: float


def get_dp_settings(hyper: Hyperparameters) -> DpSettings:
    """Returns the settings with defaults written out. Raises ValueError if nothing hides samples."""
    if hyper.dp_noise is None:
        raise ValueError("dp_noise: expected a number, got none")
    return DpSettings(
        noise=hyper.dp_noise,
        clip=hyper.dp_clip or CLIP,
        prototype_noise=hyper.dp_prototype_noise or PROTOTYPE_NOISE,
        prototype_clip=hyper.dp_prototype_clip or CLIP,
        statistics_noise=hyper.dp_statistics_noise or STATISTICS_NOISE,
        delta=hyper.dp_delta or DELTA,
    )


def list_noise(hyper: Hyperparameters) -> dict[str, float]:
    """Returns the settings that hide samples, or the client, by key, with defaults written out; {} if nothing hides
    them."""
    if hyper.update_noise is not None:
        return {"dp_update_noise": hyper.update_noise, "dp_update_clip": hyper.update_clip}
    if hyper.dp_noise is None:
        return {}
    dp = hyper.dp
    return {
        "dp_noise": dp.noise,
        "dp_clip": dp.clip,
        "dp_prototype_noise": dp.prototype_noise,
        "dp_prototype_clip": dp.prototype_clip,
    }


def strengthen(method: Mapping[str, Any], own: Mapping[str, float]) -> dict[str, Any]:
    """Merges a run's `method` with a site's `own` settings: of two noises, each in units of its clip, the larger holds,
    of two clips the smaller. What neither sets keeps its default."""
    merged = dict(method)
    if "dp_noise" in method:
        merged |= {key: method.get(key, usual) for key, usual in _USUAL.items() if key in own}
    elif "dp_update_noise" in method:
        merged |= {key: method.get(key, CLIP) for key in ("dp_update_clip",) if key in own}
    for key, value in own.items():
        choose = min if key.endswith("clip") else max
        merged[key] = choose(merged[key], value) if key in merged else value
    return merged


def count_private_steps(hyper: Hyperparameters, num_samples: int, work: int) -> tuple[int, int]:
    """Returns the number of steps that so much local work has on so many samples, and the average number of samples in
    a step."""
    size = min(hyper.batch_size, num_samples)
    return work * (-(-num_samples // size) if hyper.counts_epochs else 1), size


def check_privacy(hyper: Hyperparameters) -> None:
    """Raises SpecError for a setting that needs `dp_noise`, or cannot be used with it."""
    if hyper.dp_noise is None:
        for key in ("dp_clip", "dp_prototype_noise", "dp_prototype_clip", "dp_statistics_noise"):
            if getattr(hyper, key) is not None:
                raise SpecError(f"method.{key}", "expected none without dp_noise")
        if hyper.dp_delta is not None and hyper.update_noise is None:
            raise SpecError("method.dp_delta", "expected none without dp_noise")
        return
    if hyper.update_noise is not None:
        raise SpecError("method.dp_update_noise", "expected none with dp_noise: whose site is hidden, its samples are")
    for key, plain in (("clip_norm", None), ("class_weights", "none"), ("sampling", "uniform")):
        if (value := getattr(hyper, key)) not in (None, plain):
            raise SpecError(f"method.{key}", f"expected {plain or 'none'} with dp_noise, got {value}")
