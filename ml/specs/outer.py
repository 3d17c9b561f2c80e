"""An outer optimiser: the common model changes by an optimiser's step, in the direction of a round's rule
(`ml.aggregation.outer`).

Its moments are common to all members: they are in the aggregate beside the model, `outer/v1/NAME` and for adam and yogi
`outer/v2/NAME`, float32. So everyone who has a block's parent and its contributions can compute them, a new member
finds them there, and nobody sends them. They restart with a run, and stay as they are if a height makes no model, as
the last one with `reembed`, or if a masked sum is not opened. Only the model's own parameters go through it: running
statistics of batch norm, and the projections that FedIntR adds to the model, are the rule's result.
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

OUTER = "outer"  # the kind of the moments in an aggregate
MODEL_RULES = ("weighted_mean", "uniform_mean", "median", "trimmed_mean", "clipped_mean", "multi_krum", "nova")
LR, BETA, EPS = "(0, 1000]", "[0, 1)", "[1e-8, 1]"
DEFAULT_LR = {MOMENTUM: 1.0, NESTEROV: 0.7, **dict.fromkeys(ADAPTIVE, 0.1)}
DEFAULTS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3}
_MOMENTS = ("v1", "v2")
_MAX_NAME = 128 - len(f"{OUTER}/v1/")  # of an array, since names in an aggregate are bounded


@dataclass(frozen=True, kw_only=True)
class OuterHyperparameters(Hyperparameters):
    """Settings of `outer`, an optimiser by whose steps the model changes from round to round, in the direction of its
    training or of the rule for all members' models. Defaults are written out."""

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
        """The outer optimiser; None if the result of training or of the rule is the model."""
        if self.outer_optimizer is None:
            return None
        given = {name: getattr(self, f"outer_{name}") for name in ("lr", "beta1", "beta2", "eps")}
        return OuterSettings(self.outer_optimizer, **{name: of for name, of in given.items() if of is not None})


def complete_outer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of `outer` with their defaults; none if there is no optimiser. Raises SpecError."""
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
    """Raises SpecError for a model with array names so long that those of their moments would exceed the limit."""
    for name in names:
        if len(name) > _MAX_NAME:
            raise SpecError("method.outer", f"expected arrays whose names have {_MAX_NAME} characters at most: {name}")


def describe_outer(settings: OuterSettings | None, trained: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Returns the moments in an aggregate for a model with these `trained` arrays; none without settings."""
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
    """Returns the model's arrays after the optimiser's step, from those that a rule has `made`, and its moments, which
    restart in a run's first round. If `made` is None, the round made no model, and the moments before stay. Raises
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
