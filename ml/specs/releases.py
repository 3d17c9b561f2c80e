"""The releases of a run: what a member's local phase for a round will reveal, computed from the member's number of
samples without training anything."""

from __future__ import annotations

from ml.accountant import Release
from ml.specs.base import MethodSpec
from ml.specs.masked.spec import MaskedSpec
from ml.specs.privacy import count_private_steps
from ml.specs.statistics import StatisticsSpec


def plan_release(spec: MethodSpec, num_samples: int, height: int, num_iterations: int | None = None) -> Release | None:
    """Returns the most that a phase of this height reveals, with `num_iterations` in place of the method's own number;
    None if nothing hides samples, or nothing is trained."""
    if isinstance(spec, MaskedSpec):
        inner = spec.to_inner(height)
        return plan_release(spec.inner, num_samples, inner, num_iterations) if spec.has_inputs(height) else None
    if isinstance(spec, StatisticsSpec):
        if spec.is_statistics(height):
            return _plan_statistics(spec)
        return plan_release(spec.inner, num_samples, spec.to_inner(height), num_iterations)
    return _plan_training(spec, num_samples, height, num_iterations)


def _plan_statistics(spec: StatisticsSpec) -> Release | None:
    """Returns the release of sums with noise, which count as prototypes do, and no step."""
    hyper = spec.hyperparameters
    return Release(0, 0.0, hyper.dp.noise, hyper.dp.statistics_noise) if hyper.is_private else None


def _plan_training(spec: MethodSpec, num_samples: int, height: int, num_iterations: int | None) -> Release | None:
    hyper, planned = spec.hyperparameters, spec.get_local_work(height)
    if hyper.update_noise is not None:
        return Release.of_update(hyper.update_noise)
    if not hyper.is_private:
        return None
    work = num_iterations if planned and num_iterations is not None else planned
    num_steps, size = count_private_steps(hyper, num_samples, work)
    told = hyper.dp.prototype_noise if "prototypes" in spec.schemas(height) else None
    return Release(num_steps, size / num_samples, hyper.dp.noise, told)
