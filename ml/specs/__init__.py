"""The methods that a federation can choose from, in the part that a validator needs: numpy alone.

An aggregate is one set of arrays for all voted kinds of a height, named "kind/name" ("prototypes/classes",
"model/fc1.weight"), in the canonical encoding. Block 0's aggregate is the initial model under "model/".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ml.aggregation import MAX_WEIGHT, RULES, Contributed, carry
from ml.errors import AggregationError, SpecError, suggest
from ml.payload import Array, Arrays, encode_arrays
from ml.plugins import NO_PLUGINS, Plugins
from ml.specs.base import AuthorPayloads, MethodSpec
from ml.specs.by_schema import read_judge
from ml.specs.masked.spec import MaskedSpec, get_unmasked_spec, mask
from ml.specs.masked.statistics import MaskedStatisticsSpec, mask_statistics
from ml.specs.methods import METHODS
from ml.specs.methods.evaluation import EvaluationSpec
from ml.specs.methods.lending import LendingSpec
from ml.specs.own import is_offered, load_spec
from ml.specs.selection import Offer
from ml.specs.statistics import AGREED, StatisticsSpec, agree, count_own_rounds
from ml.specs.task import MAX_ABS, Task
from ml.specs.task_rules import check_task
from ml.tasks import CLASSIFICATION, TargetScale

__all__ = [
    "METHODS",
    "MethodSpec",
    "StatisticsSpec",
    "MaskedSpec",
    "MaskedStatisticsSpec",
    "Task",
    "AuthorPayloads",
    "Offer",
    "get_spec",
    "get_simulated_spec",
    "get_judge",
    "compute_aggregate",
    "unpack_all",
    "add_kind",
    "get_kind",
]

_OWN: dict[str, type[MethodSpec]] = {**METHODS, EvaluationSpec.name: EvaluationSpec}  # with those that train nothing


def get_spec(
    method: Mapping[str, Any],
    model: Mapping[str, Any],
    num_classes: int,
    input_shape: Sequence[int],
    *,
    max_weight: int = MAX_WEIGHT,
    rounds: int = 0,
    num_members: int = 0,
    max_abs: float = MAX_ABS,
    input_: Mapping[str, Any] | None = None,
    plugins: Plugins = NO_PLUGINS,
    kind: str = CLASSIFICATION,
    target: Mapping[str, Any] | None = None,
) -> MethodSpec:
    """Returns the spec of genesis' `method` on its `model`. `max_weight` is genesis' limit, by default the protocol's
    2^29 - 1, `max_abs` another of its limits. `rounds` is how many are planned, 0 if there is no end. `num_members` is
    the number of members, which may be left out if nothing will be aggregated. `kind` is the run's `task`, and `target`
    the mean and deviation of the targets of a regression. `input_` is genesis' `input`, which says whether members
    agree on statistics. Code of `plugins` may be imported.

    Raises SpecError with the dotted place of an unknown method, model or key, or of a value out of range.
    """
    name = method.get("name")
    if not isinstance(name, str):
        raise SpecError("method.name", f"expected one of {', '.join(METHODS)}, got {name!r}")
    if name in _OWN and "plugin" in method:
        raise SpecError("method.plugin", f"expected none: {name} is fednode's own")
    if name not in _OWN and "plugin" not in method and (plugins == NO_PLUGINS or not is_offered(name)):
        raise SpecError("method.name", f"unknown method {name!r}: {suggest(name, METHODS)}")
    own_rounds, scale = count_own_rounds(rounds, input_ or {}), TargetScale.from_mapping(target)
    task = Task(model, tuple(input_shape), num_classes, max_weight, own_rounds, num_members, max_abs, kind, scale)
    if name == EvaluationSpec.name and method.get("lend"):
        own: MethodSpec = LendingSpec.from_mapping(method, task)
        if (input_ or {}).get("normalize") is not None:
            raise SpecError("input.normalize", "expected constants with lend, as the models were trained by them")
    else:
        own = _OWN[name].from_mapping(method, task) if name in _OWN else load_spec(method, task, plugins)
    check_task(own, METHODS.values())
    if own.hyperparameters.is_private and (why := own.explain_not_private()):
        raise SpecError("method.dp_noise", f"expected none: {why}")
    if own.hyperparameters.update_noise is not None and (why := _explain_not_hiding_updates(own, input_ or {})):
        raise SpecError("method.dp_update_noise", f"expected none: {why}")
    _check_counts(kind, input_ or {})
    if own.hyperparameters.is_masked and not own.schemas(1):
        return mask_statistics(own, rounds, input_ or {})
    masked = mask(own)
    if isinstance(masked, MaskedSpec) and (input_ or {}).get("normalize") is not None:
        raise SpecError(
            "input.normalize",
            "expected none with aggregation masked_sum, as members would tell sums of their features unhidden; give "
            "the mean and the std that all normalise with, as a run of statistics with masked sums tells them "
            "(fednode propose statistics --masked)",
        )
    return agree(masked, input_ or {})


def get_simulated_spec(*args: Any, **terms: Any) -> MethodSpec:
    """Returns the spec of `get_spec` without masks, for a run in one process, which has nobody to hide from."""
    return get_unmasked_spec(get_spec(*args, **terms))


def get_judge(
    method: Mapping[str, Any],
    schema: Mapping[str, Any],
    model: Mapping[str, Any],
    num_classes: int,
    input_shape: Sequence[int],
    *,
    rounds: int = 0,
    input_: Mapping[str, Any] | None = None,
    kind: str = CLASSIFICATION,
    target: Mapping[str, Any] | None = None,
    **limits: Any,
) -> MethodSpec:
    """Returns the spec by which every member judges a run: fednode's own, or for a plugin's method one made from the
    run's schema. Imports no plugin. Takes and raises what `get_spec` does."""
    if "plugin" not in method or method.get("name") in _OWN:
        terms: dict[str, Any] = {"rounds": rounds, "input_": input_, "kind": kind, "target": target}
        return get_spec(method, model, num_classes, input_shape, **terms, **limits)
    if not isinstance(method.get("name"), str):
        raise SpecError("method.name", f"expected a name, got {method.get('name')!r}")
    own_rounds, scale = count_own_rounds(rounds, input_ or {}), TargetScale.from_mapping(target)
    task = Task(model, tuple(input_shape), num_classes, rounds=own_rounds, kind=kind, scale=scale, **limits)
    _check_counts(kind, input_ or {})
    return read_judge(method, schema, task, input_ or {})


def _explain_not_hiding_updates(spec: MethodSpec, input_: Mapping[str, Any]) -> str | None:
    if input_.get("normalize") == AGREED:
        return "members tell the sums of their features; expected input.normalize auto or none beside it"
    return spec.explain_not_hiding_updates()


def _check_counts(kind: str, input_: Mapping[str, Any]) -> None:
    if kind != CLASSIFICATION and input_.get("class_counts"):
        raise SpecError("input.class_counts", f"expected none for task {kind}, which has no classes")


def compute_aggregate(
    spec: MethodSpec, height: int, contributions: Sequence[AuthorPayloads], parent: Arrays | None
) -> bytes | None:
    """Computes the encoded aggregate of a round, from payloads that `spec` has validated; their order does not matter.

    `parent` is the decoded aggregate of the parent block, with its kinds in front of the names. Returns None for a
    method that votes on nothing: its aggregate is the zero digest. Raises AggregationError.
    """
    if isinstance(spec, MaskedSpec):
        return encode_arrays(spec.combine(height, contributions, parent))
    rules, kept = spec.rules(height), spec.get_kept(height)
    if not rules and not kept:
        return None
    if kept and parent is None:
        raise AggregationError(f"expected the parent's aggregate, which {', '.join(sorted(kept))} is of, got none")
    aggregate: dict[str, Array] = {}
    for kind in kept:
        aggregate |= add_kind(kind, get_kind(parent, kind) or {})
    for kind, rule in sorted(rules.items()):
        if RULES[rule] is carry:
            aggregate |= carry((), parent)
            continue
        before = spec.get_origin(kind) or get_kind(parent, kind)
        given = [
            Contributed(c.author, c.weight, spec.unpack(kind, _get_payload(c, kind), before, height))
            for c in contributions
        ]
        aggregate |= add_kind(kind, RULES[rule](given, before, spec.rule_settings))
    aggregate |= spec.carry(height, sorted(c.author for c in contributions), aggregate, parent)
    return encode_arrays(aggregate)


def unpack_all(
    spec: MethodSpec, height: int, contributions: Sequence[AuthorPayloads], parent: Arrays | None
) -> Sequence[AuthorPayloads]:
    """Returns contributions as the rules of a round read them. Raises AggregationError."""
    if not spec.sends_changes:
        return contributions
    befores = {kind: get_kind(parent, kind) for kind in spec.rules(height)}
    return [
        replace(
            made,
            payloads={
                kind: spec.unpack(kind, arrays, befores.get(kind), height) for kind, arrays in made.payloads.items()
            },
        )
        for made in contributions
    ]


def add_kind(kind: str, arrays: Arrays) -> dict[str, Array]:
    """Returns the arrays of one kind under the names they have in an aggregate."""
    return {f"{kind}/{name}": array for name, array in arrays.items()}


def get_kind(aggregate: Arrays | None, kind: str) -> dict[str, Array] | None:
    """Returns the arrays of one kind in an aggregate, without the kind in front; None if it has none of them."""
    prefix = f"{kind}/"
    found = {name.removeprefix(prefix): array for name, array in (aggregate or {}).items() if name.startswith(prefix)}
    return found or None


def _get_payload(contribution: AuthorPayloads, kind: str) -> Arrays:
    arrays = contribution.payloads.get(kind)
    if arrays is None:
        raise AggregationError(f"expected a payload {kind!r} of {contribution.author.hex()[:8]}, got none")
    return arrays
