"""The schema of a run: what its contributions carry, round by round, and what its aggregate holds, as plain JSON.

Members agree on it when they start a run (FEDERATION §1). A run can go on from another's aggregate if both hold the
same arrays, and a reader of the chain learns what was sent without the code of any method.

    aggregate   {"model/fc1.weight": "float32[32,784]", ...}: each array of the aggregate after the last kind of round
    rounds      {"1": {kind: payload, ...}, "2..": {...}}: by round or span of rounds, the last of which is open. For
                methods whose last round exchanges something else than those before, that stands under "last", whatever
                the round's number
    payload     {"arrays": {...} | "aggregate", "rule": NAME | null, "max_bytes": N, "bounds": {...}, "ranges": {...}}

A change may nest values only a few levels deep, so bounds and ranges are text, as in "0..10". A dimension is a number
or the name of one that `bounds` limit; `authors` in an aggregate is the number of authors. In a run of masked sums
heights take turns, and `rounds` has `inputs` and `openings` instead (`ml.specs.masked`); what inputs have beside
`masked` is in the clear. `rule` is null for kinds that members pull on demand and nobody votes on. Arrays that the
aggregate has under that kind are not written twice. `bounds` and `ranges` are left out if there are none. The schema of
a plugin's method has `judging`, too (`ml.specs.by_schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ml.aggregation.nova import NOVA_NUMBERS
from ml.aggregation.sums import PRESENT
from ml.errors import SpecError
from ml.payload import ArraySchema, ArraySpec
from ml.specs.base import MethodSpec, RoundKinds
from ml.specs.masked.aggregate import MASKED
from ml.specs.masked.spec import INPUTS, OPENINGS, MaskedSpec
from ml.specs.statistics import StatisticsSpec

SAME = "aggregate"  # in place of arrays that the aggregate has under the same names


def describe_payloads(spec: MethodSpec) -> dict[str, Any]:
    """Returns the schema of a run by this method."""
    if isinstance(spec, MaskedSpec):
        return _describe_masked(spec)
    last = spec.sharing_heights + 1  # from this round on all rounds send the same
    aggregate = _describe_results(spec.rules(last), spec.schemas(last))
    if isinstance(spec, StatisticsSpec):  # statistics stay in every aggregate
        aggregate |= _describe_results(spec.rules_of_statistics, spec.statistics_schemas)
    aggregate |= {name: describe_array(array) for name, array in spec.carried.items()}
    spans: list[tuple[int, dict[str, Any]]] = []
    for number in range(1, last + 1):
        payloads = _describe_round(RoundKinds(spec.schemas(number), spec.rules(number)), aggregate)
        if not spans or spans[-1][1] != payloads:
            spans.append((number, payloads))
    rounds = {}
    for i, (first, payloads) in enumerate(spans):
        end = spans[i + 1][0] - 1 if i + 1 < len(spans) else None
        rounds[str(first) if first == end else f"{first}..{'' if end is None else end}"] = payloads
    if spec.closing is not None:
        rounds["last"] = _describe_round(spec.closing, aggregate)
    judging = {} if spec.record is None else {"judging": spec.describe_judging().to_mapping()}
    return {"aggregate": aggregate, "rounds": rounds, **judging}


def _describe_masked(spec: MaskedSpec) -> dict[str, Any]:
    """Returns the schema of a run of masked sums, whose heights take turns."""
    aggregate = _describe_results(spec.inner.rules(1), spec.inner.schemas(1))
    aggregate |= {name: describe_array(array) for name, array in spec.inner.carried.items()}
    aggregate |= {f"{MASKED}/{name}": "uint8[authors,32]" for name in ("keys", "members")}
    aggregate |= {f"{MASKED}/spoiled": "int64[]", f"{MASKED}/summed": "int64[]", f"{MASKED}/silent": "uint8[n,32]"}
    if spec.box is not None:
        aggregate[f"{MASKED}/clipped"] = "int64[]"
    if spec.shown:
        aggregate[f"{MASKED}/shown"] = "uint8[n,32]"
    heights = {INPUTS: 2, OPENINGS: 3}
    rounds = {
        name: _describe_round(RoundKinds(spec.schemas(height), spec.rules(height)), aggregate)
        for name, height in heights.items()
    }
    return {"aggregate": aggregate, "rounds": rounds}


def _describe_results(rules: Mapping[str, str], schemas: Mapping[str, ArraySchema]) -> dict[str, str]:
    return {
        f"{kind}/{name}": describe_array(array)
        for kind, rule in rules.items()
        if rule != "carry"
        for name, array in _get_result(rule, schemas[kind]).items()
    }


def _describe_round(sent: RoundKinds, aggregate: Mapping[str, str]) -> dict[str, Any]:
    return {
        kind: _describe_payload(kind, schema, sent.rules.get(kind), aggregate) for kind, schema in sent.schemas.items()
    }


def _describe_payload(kind: str, schema: ArraySchema, rule: str | None, aggregate: Mapping[str, str]) -> dict[str, Any]:
    arrays = {name: describe_array(array) for name, array in schema.arrays.items()}
    is_same = bool(arrays) and arrays == {
        name.removeprefix(f"{kind}/"): text for name, text in aggregate.items() if name.startswith(f"{kind}/")
    }
    payload: dict[str, Any] = {"arrays": SAME if is_same else arrays, "rule": rule, "max_bytes": schema.max_bytes}
    ranges = {name: _show_span(array.range) for name, array in schema.arrays.items() if array.range is not None}
    if schema.bounds:
        payload["bounds"] = {name: _show_span(bounds) for name, bounds in schema.bounds.items()}
    if ranges:
        payload["ranges"] = ranges
    return payload


def _get_result(rule: str, schema: ArraySchema) -> Mapping[str, ArraySpec]:
    """Returns the arrays that a rule makes from payloads of this schema."""
    arrays = dict(schema.arrays)
    if rule.startswith("class_"):
        return {name: arrays[name] for name in ("classes", "prototypes")}
    if rule in ("pool", "trimmed_pool"):
        return {**arrays, "authors": ArraySpec("int64", arrays["classes"].shape)}
    if rule == "stack":
        return {name: replace(array, shape=("authors", *array.shape)) for name, array in arrays.items()}
    if rule in ("sum", "trimmed_sum"):
        channels = arrays["sums"].shape[:1]
        shapes = {"sites": (), "samples": (), "counts": channels}
        summed = {name: array for name, array in arrays.items() if name not in ("count", PRESENT)}
        return {**summed, **{name: ArraySpec("int64", shape) for name, shape in shapes.items()}}
    if rule == "nova":
        return {name: array for name, array in arrays.items() if name not in NOVA_NUMBERS}
    return arrays


def has_whole_model(spec: MethodSpec, aggregate: Mapping[str, str]) -> bool:
    """Says whether an aggregate, as a schema has it, holds every array of the model except frozen ones. Then every site
    can measure the model."""
    model = {f"model/{name}": describe_array(array) for name, array in spec.task.model_schema.arrays.items()}
    return model.items() <= aggregate.items()


def check_evaluated(spec: MethodSpec) -> None:
    """Raises SpecError if a run by `spec` ends without a model that every site could evaluate."""
    if not has_whole_model(spec, describe_payloads(spec)["aggregate"]):
        raise SpecError(
            "select.evaluate", f"expected false: {spec.name} has no whole model in common that every site could measure"
        )


def _show_span(span: tuple[float, float]) -> str:
    return f"{span[0]!r}..{span[1]!r}"


def describe_array(array: ArraySpec) -> str:
    """Returns an array's description, such as `float32[32,784]`."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
