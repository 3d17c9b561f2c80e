"""An outer optimiser: the common model goes on from the one before by an optimiser's step, whose way a round's rule
gives (`ml.aggregation.outer`).

Its moments are of everyone: they are in the aggregate beside the model, `outer/v1/NAME` and of adam and yogi
`outer/v2/NAME`, float32. So whoever has a block's parent and its contributions computes them anew, and who joins finds
them there; nobody sends them. They begin anew with a run, and stay as they are where a height makes no model, as the
last one with `reembed`, and where a masked sum is not opened. Only the model's own parameters go by it: running
statistics of batch norm, and what FedIntR adds to the model, are what the rule gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ml.aggregation.contributed import check_parent
from ml.aggregation.outer import ADAPTIVE, MOMENTUM, NESTEROV, OPTIMIZERS, OuterSettings, begin_moments, step_outer
from ml.errors import AggregationError, SpecError
from ml.payload import Array, Arrays, ArraySpec
from ml.specs.hyperparameters import Hyperparameters, number, option
from ml.specs.sections import within

OUTER = "outer"  # what stands before the moments in an aggregate
MODEL_RULES = ("weighted_mean", "uniform_mean", "median", "trimmed_mean", "clipped_mean", "multi_krum", "nova")
LR, BETA, EPS = "(0, 1000]", "[0, 1)", "[1e-8, 1]"
DEFAULT_LR = {MOMENTUM: 1.0, NESTEROV: 0.7, **dict.fromkeys(ADAPTIVE, 0.1)}
DEFAULTS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3}
_MOMENTS = ("v1", "v2")
_MAX_NAME = 128 - len(f"{OUTER}/v1/")  # of an array, as its name in an aggregate is bounded


@dataclass(frozen=True, kw_only=True)
class OuterHyperparameters(Hyperparameters):
    """With `outer` a model goes on from round to round by an optimiser's step, whose way its training, or the rule for
    all members' models, gives; what is not set of it is written out."""

    outer_optimizer: str | None = within("outer", option(*OPTIMIZERS))
    outer_lr: float | None = within("outer", number(None, LR))
    outer_beta1: float | None = within("outer", number(None, BETA))
    outer_beta2: float | None = within("outer", number(None, BETA))
    outer_eps: float | None = within("outer", number(None, EPS))

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {name: getattr(self, f"outer_{name}") for name in ("optimizer", "lr", "beta1", "beta2", "eps")}
        for name, value in complete_outer(given).items():
            object.__setattr__(self, f"outer_{name}", value)

    @property
    def outer(self) -> OuterSettings | None:
        """The outer optimiser; None where the model is what training or the rule gives."""
        if self.outer_optimizer is None:
            return None
        given = {name: getattr(self, f"outer_{name}") for name in ("lr", "beta1", "beta2", "eps")}
        return OuterSettings(self.outer_optimizer, **{name: of for name, of in given.items() if of is not None})


def complete_outer(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `outer` with their defaults, from those that are set; none where there is no optimiser. Raises
    SpecError."""
    optimizer = given.get("optimizer")
    names = ("lr", "beta1", "beta2", "eps")
    taken = () if optimizer is None else names if optimizer in ADAPTIVE else names[:2]
    for name in names:
        if given.get(name) is not None and name not in taken:
            raise SpecError(f"method.outer.{name}", f"expected none with outer.optimizer {optimizer or 'none'}")
    if optimizer is None:
        return {}
    defaults = {"lr": DEFAULT_LR[optimizer], **DEFAULTS}
    wanted = {name: defaults[name] if given.get(name) is None else given[name] for name in taken}
    return {"optimizer": optimizer, **wanted}


def check_outer_names(names: Iterable[str]) -> None:
    """Raises SpecError for a model whose arrays have names that leave no room for what stands before their moments."""
    for name in names:
        if len(name) > _MAX_NAME:
            raise SpecError("method.outer", f"expected arrays whose names have {_MAX_NAME} characters at most: {name}")


def describe_outer(settings: OuterSettings | None, trained: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """The moments in an aggregate, of a model whose `trained` arrays these are; none without settings."""
    kept = () if settings is None else _MOMENTS[: settings.num_moments]
    return {_name(moment, name): ArraySpec("float32", of.shape) for moment in kept for name, of in trained.items()}


def carry_outer(
    settings: OuterSettings | None,
    trained: Iterable[str],
    made: Arrays | None,
    parent: Arrays | None,
    *,
    is_first: bool,
) -> dict[str, Array]:
    """The arrays of the model in an aggregate that the optimiser makes of those that a rule has `made`, and its
    moments, in a run's first round from none. Where `made` is None, no model was, and the moments before stay. Raises
    AggregationError."""
    if settings is None:
        return {}
    before = parent or {}
    if made is None:
        return {} if is_first else {name: of for name, of in before.items() if name.startswith(f"{OUTER}/")}
    carried: dict[str, Array] = {}
    for name in trained:
        array = made.get(f"model/{name}")
        if array is None:
            continue
        x = before.get(f"model/{name}")
        if x is None:
            raise AggregationError(f"outer: expected array {name!r} in the parent's model, got none")
        check_parent(x, array, name)
        places = [_name(moment, name) for moment in _MOMENTS[: settings.num_moments]]
        moments = begin_moments(array, settings)
        if not is_first and all(place in before for place in places):
            moments = [before[place] for place in places]
            for moment in moments:
                check_parent(moment, array, name)
        carried[f"model/{name}"], moments = step_outer(x, array, moments, settings)
        carried |= zip(places, moments, strict=True)
    return carried


def _name(moment: str, name: str) -> str:
    return f"{OUTER}/{moment}/{name}"
