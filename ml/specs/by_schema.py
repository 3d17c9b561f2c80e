"""The judge of a run whose method is a plugin's: a spec that is made of the run's schema alone, without the plugin.

Every member judges such a run by it, also those that have the plugin: whether a payload is accepted must not depend on
the code that a member has installed. So no code of a plugin's takes part in a vote, and a member without it votes like
all others.

A plugin's method therefore keeps to what a schema can say: kinds that are combined by the rules in
`ml.aggregation.RULES`, the same in all rounds after its first few, and besides them kinds that members draw of each
other as in `ml.specs.peers.PeerSpec`. What its rules need is in the schema, too, under `judging`:

    judging   {"weights": "1" | "samples", "weight_cap": 4, "clip": 1.0, "momentum": 0.9, "draw": 5, "outer": {...}}

of which only `weights` is always there. `draw` is the number of other members whose on-demand kinds a member pulls, and
`outer` is the optimiser that updates the common model (`ml.specs.outer`). Rules assume the largest number of liars with
which `quorum: bft` stays safe.

A schema comes from peers, as part of a change. It is refused if any payloads that fit it could not be combined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from ml.aggregation import MAX_WEIGHT, RULES, RULES_ON_PARENT, RuleSettings, compute_max_liars
from ml.aggregation.nova import NOVA_NUMBERS
from ml.aggregation.outer import OuterSettings
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import KINDS, Array, Arrays, ArraySchema, ArraySpec
from ml.plugins import PluginRecord
from ml.specs.base import Judging, MethodSpec
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.masked.aggregate import MASKED
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.methods.feddbe import REPRESENTATION
from ml.specs.methods.fednova import validate_numbers
from ml.specs.methods.scaffold import CONTROL
from ml.specs.outer import MODEL_RULES, carry_outer, describe_outer
from ml.specs.peers import draw_peers
from ml.specs.run_schema import SAME, describe_payloads
from ml.specs.selection import Authors, Offers
from ml.specs.sharing import ModelHyperparameters
from ml.specs.statistics import STATISTICS, agree
from ml.specs.task import Task

MAX_ROUNDS_APART = 16  # after so many rounds, all send the same payloads
MAX_ROWS = 1 << 31
# used by FedEDS, SCAFFOLD or FedDBE alone, or by no method by itself
UNSUPPORTED_KINDS = ("encrypted_set", "chunk_digests", CONTROL, REPRESENTATION, STATISTICS, MASKED, EVALUATION)
UNSUPPORTED_RULES = ("sum", "trimmed_sum", "fixed_mean", "class_fixed_mean")  # for statistics, and for masked sums

_ROWS = ("pool", "trimmed_pool")
_DTYPES = ("float16", "float32", "float64", "int64", "uint8")
_SYMBOL = re.compile(r"[a-z]{1,16}", re.ASCII)
_ARRAY = re.compile(r"([a-z0-9]{1,8})\[((?:[a-z]{1,16}|\d{1,10})(?:,(?:[a-z]{1,16}|\d{1,10})){0,7})?\]", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_REAL = re.compile(r"-?\d{1,19}(\.\d{1,20})?(e[+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True)
class SchemaSpec(MethodSpec):
    """A plugin's method as its run's schema describes it. `spans` are the schemas and rules of the rounds, by the first
    round that each holds for. Like all specs it has its name and its plugin by its class, which is made for one run."""

    method: Mapping[str, Any]
    judging: Judging
    spans: tuple[tuple[int, Mapping[str, ArraySchema], Mapping[str, str]], ...]

    @classmethod
    def read(cls, method: Mapping[str, Any], schema: Mapping[str, Any], task: Task) -> Self:
        """Reads the judge of genesis' `method` from the `schema` of its run. Raises SpecError unless the schema is
        complete, says nothing else, and describes payloads that can be combined whatever their values."""
        record = PluginRecord.from_mapping("method.plugin", method.get("plugin"))
        aggregate, rounds, judging = (_get_mapping(schema, key) for key in ("aggregate", "rounds", "judging"))
        spans = _read_spans(rounds, aggregate)
        named = type(
            cls.__name__, (cls,), {"name": str(method["name"]), "record": record, "__module__": cls.__module__}
        )
        spec: Self = named(task, _read_hyperparameters(method), method, _read_judging(judging), spans)
        if spec.judging.outer is not None and spans[-1][2].get("model") not in MODEL_RULES:
            raise _fail("judging.outer", "expected none without a model that is voted on, array by array")
        for _, schemas, rules in spans:
            for kind, payload in schemas.items():
                _check_kind(kind, payload, rules.get(kind), spec)
        if describe_payloads(spec) != schema:
            raise SpecError("schema", "expected a plugin's method as fednode writes one down, got more than that")
        return spec

    @property
    def sharing_heights(self) -> int:
        return self.spans[-1][0] - 1

    def _get_span(self, height: int) -> tuple[int, Mapping[str, ArraySchema], Mapping[str, str]]:
        return next((span for span in reversed(self.spans) if span[0] <= height), self.spans[0])

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._get_span(height)[1]

    def rules(self, height: int) -> Mapping[str, str]:
        return self._get_span(height)[2]

    @property
    def rule_settings(self) -> RuleSettings:
        if self.task.num_members < 1:
            raise AggregationError(f"{self.name}: expected the number of members, got {self.task.num_members}")
        return self.judging.make_settings(compute_max_liars(self.task.num_members))

    @property
    def max_weight_is_one(self) -> bool:
        return self.judging.weights == "1"

    def describe_judging(self) -> Judging:
        return self.judging

    def reads_parent(self, height: int) -> bool:
        return super().reads_parent(height) or self.judging.outer is not None

    @property
    def _trained(self) -> Mapping[str, ArraySpec]:
        """The arrays that an outer optimiser changes."""
        sent = self.spans[-1][1].get("model")
        trained = self.task.parameter_schema.arrays
        return {name: array for name, array in trained.items() if sent is not None and name in sent.arrays}

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        return describe_outer(self.judging.outer, self._trained)

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        is_first, own = self.get_round_number(height) <= 1, made if "model" in self.rules(height) else None
        return carry_outer(self.judging.outer, self._trained, own, parent, is_first=is_first)

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        rule = self.rules(height).get(kind, "")
        if rule.startswith("class_"):
            classes = arrays["classes"]
            if not np.all(classes[1:] > classes[:-1]):
                raise PayloadError(f"payload {kind!r}: expected classes sorted and once each, got {classes.tolist()}")
        if rule == "nova":
            validate_numbers(arrays, None, self.judging.momentum)

    def wanted(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Sequence[bytes]:
        on_demand = sorted(self.schemas(height).keys() - self.rules(height).keys())
        by_author = {offer.author: offer for offer in offers}
        if not on_demand or me not in by_author:
            return ()
        drawn = [peer for peer in draw_peers(beacon, me, by_author, self.judging.draw or 0) if peer not in gone]
        return tuple(by_author[peer].digests[kind] for peer in drawn for kind in on_demand)

    def to_mapping(self) -> dict[str, Any]:
        return dict(self.method)


def read_judge(
    method: Mapping[str, Any], schema: Mapping[str, Any], task: Task, input_: Mapping[str, Any]
) -> MethodSpec:
    """Reads the judge of a run with this `input`, in whose first round members may agree on statistics. Raises
    SpecError."""
    has_round = input_.get("normalize") == "agreed"
    own = _leave_statistics_out(schema, has_round=has_round) if "normalize" in input_ else schema
    judge = agree(SchemaSpec.read(method, own, task), input_)
    if describe_payloads(judge) != schema:
        raise SpecError("schema", "expected a plugin's method as fednode writes one down, got more than that")
    return judge


def _leave_statistics_out(schema: Mapping[str, Any], *, has_round: bool) -> dict[str, Any]:
    """Returns the schema of the same run without statistics. If these had a round, all others come one earlier."""
    aggregate, rounds = _get_mapping(schema, "aggregate"), _get_mapping(schema, "rounds")
    start = f"{STATISTICS}/"
    own = {str(name): text for name, text in aggregate.items() if not str(name).startswith(start)}
    if not has_round:
        return {**schema, "aggregate": own}
    shifted = {}
    for span, payloads in rounds.items():
        numbers = str(span).split("..")
        if span != "1" and len(numbers) <= 2 and all(re.fullmatch(r"\d{0,2}", n, re.ASCII) for n in numbers):
            shifted["..".join(str(int(n) - 1) if n else "" for n in numbers)] = payloads
    return {**schema, "aggregate": own, "rounds": shifted}


# ---- reading a peer's schema


def _read_hyperparameters(method: Mapping[str, Any]) -> Hyperparameters:
    """Reads the hyper-parameters that all methods have; the plugin's own are needed for training alone."""
    keys = Hyperparameters.keys()
    return Hyperparameters.from_mapping({key: value for key, value in method.items() if key in keys})


def _read_judging(judging: Mapping[str, Any]) -> Judging:
    known = {field.name for field in fields(Judging)}
    for key in judging:
        if key not in known:
            raise _fail("judging", f"unknown key {_show(key)}")
    weights = judging.get("weights")
    if weights not in ("1", "samples"):
        raise _fail("judging.weights", f"expected 1 or samples, got {_show(weights)}")
    for key, highest in (("weight_cap", MAX_WEIGHT), ("draw", 1 << 16)):
        value = judging.get(key, 1)
        if type(value) is not int or not 1 <= value <= highest:
            raise _fail(f"judging.{key}", f"expected 1 to {highest}, got {_show(value)}")
    for key, most in (("clip", 1e300), ("momentum", 0.999999)):
        real = judging.get(key, most)
        if not isinstance(real, float) or not 0 < real <= most:
            raise _fail(f"judging.{key}", f"expected a number above 0, up to {most:g}; got {_show(real)}")
    return Judging(**{**judging, "outer": _read_outer(judging["outer"]) if "outer" in judging else None})


def _read_outer(value: Any) -> OuterSettings:
    """Reads an outer optimiser with all its settings written out."""
    try:
        outer = ModelHyperparameters.from_mapping({"outer": value}).outer
    except SpecError as error:
        raise _fail("judging.outer", error.message) from error
    if outer is None or outer.to_mapping() != value:
        raise _fail("judging.outer", f"expected an optimizer with all its settings, got {_show(value)}")
    return outer


def _read_spans(
    rounds: Mapping[str, Any], aggregate: Mapping[str, Any]
) -> tuple[tuple[int, Mapping[str, ArraySchema], Mapping[str, str]], ...]:
    spans = []
    for span, payloads in rounds.items():
        match = re.fullmatch(r"(\d{1,2})(\.\.(\d{1,2})?)?", span, re.ASCII) if isinstance(span, str) else None
        if match is None or not isinstance(payloads, Mapping):
            raise _fail("rounds", f"expected payloads by round, got {_show(span)}")
        first = int(match[1])
        if not 1 <= first <= MAX_ROUNDS_APART:
            raise _fail("rounds", f"expected rounds from 1 to {MAX_ROUNDS_APART}, got {_show(span)}")
        schemas = {kind: _read_payload(kind, payload, aggregate) for kind, payload in payloads.items()}
        rules = {kind: payload["rule"] for kind, payload in payloads.items() if payload["rule"] is not None}
        spans.append((first, schemas, rules))
    spans.sort(key=lambda span: span[0])
    if not spans or spans[0][0] != 1:
        raise _fail("rounds", "expected payloads from round 1 on")
    return tuple(spans)


def _read_payload(kind: str, payload: Any, aggregate: Mapping[str, Any]) -> ArraySchema:
    if kind not in KINDS or kind in UNSUPPORTED_KINDS or not isinstance(payload, Mapping):
        raise _fail("rounds", f"expected a kind of payload that a plugin can have, got {_show(kind)}")
    rule = payload.get("rule", "")
    if rule is not None and not (isinstance(rule, str) and rule in RULES and rule not in UNSUPPORTED_RULES):
        raise _fail("rounds", f"{kind}: expected one of fednode's own rules, got {_show(rule)}")
    arrays = payload.get("arrays")
    if arrays == SAME:
        start = f"{kind}/"
        arrays = {name.removeprefix(start): text for name, text in aggregate.items() if str(name).startswith(start)}
    if not isinstance(arrays, Mapping) or not arrays:
        raise _fail("rounds", f"{kind}: expected arrays, got {_show(arrays)}")
    bounds = {name: _read_bounds(kind, name, text) for name, text in _get_optional(payload, "bounds").items()}
    ranges = _get_optional(payload, "ranges")
    specs = {name: _read_array(kind, name, text, bounds, ranges.get(name)) for name, text in arrays.items()}
    max_bytes = payload.get("max_bytes")
    try:
        largest = ArraySchema(specs, bounds).max_bytes
    except PayloadError as error:
        raise _fail("rounds", f"{kind}: {error}") from error
    if type(max_bytes) is not int or not 1 <= max_bytes <= largest:
        raise _fail("rounds", f"{kind}: expected max_bytes from 1 to {largest}, got {_show(max_bytes)}")
    return ArraySchema(specs, bounds, max_bytes)


def _read_array(kind: str, name: str, text: Any, bounds: Mapping[str, tuple[int, int]], range_: Any) -> ArraySpec:
    match = _ARRAY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in _DTYPES:
        raise _fail("rounds", f"{kind}: expected a type and a shape of {_show(name)}, got {_show(text)}")
    shape = tuple(int(n) if n.isdigit() else n for n in (match[2] or "").split(",") if n)
    for n in shape:
        if isinstance(n, str) and n not in bounds:
            raise _fail("rounds", f"{kind}: expected bounds of {n!r}, which {_show(name)} has")
    return ArraySpec(match[1], shape, None if range_ is None else _read_range(kind, match[1], range_))


def _read_bounds(kind: str, name: str, text: Any) -> tuple[int, int]:
    low, dots, high = str(text).partition("..")
    if not _SYMBOL.fullmatch(str(name)) or not dots or not _INTEGER.fullmatch(low) or not _INTEGER.fullmatch(high):
        raise _fail("rounds", f"{kind}: expected bounds as in 0..10, got {_show(text)}")
    if not 0 <= int(low) <= int(high) <= MAX_ROWS:
        raise _fail("rounds", f"{kind}: expected bounds from 0 to {MAX_ROWS}, got {_show(text)}")
    return int(low), int(high)


def _read_range(kind: str, dtype: str, text: Any) -> tuple[float, float]:
    low, dots, high = str(text).partition("..")
    rule = _REAL if dtype.startswith("float") else _INTEGER
    if not dots or not rule.fullmatch(low) or not rule.fullmatch(high):
        raise _fail("rounds", f"{kind}: expected a range as in 0..1, got {_show(text)}")
    convert: type[float] = float if dtype.startswith("float") else int
    if not convert(low) <= convert(high):
        raise _fail("rounds", f"{kind}: expected a range that holds a number, got {_show(text)}")
    return convert(low), convert(high)


# ---- checks that all fitting payloads can be combined


def _check_kind(kind: str, schema: ArraySchema, rule: str | None, spec: SchemaSpec) -> None:
    """Raises SpecError if payloads that fit could not be combined by their rule."""
    if rule is None:
        if spec.judging.draw is None:
            raise _fail("judging.draw", f"expected how many others' {kind} a member takes, which nobody votes on")
        return
    if rule == "carry":
        return
    if rule.startswith("class_"):
        _check_rows(kind, schema, ("prototypes",), ("counts",), spec)
    elif rule in _ROWS:
        _check_rows(kind, schema, ("prototypes",), tuple(schema.arrays), spec)
    else:
        _check_whole(kind, schema, rule, spec)


def _check_rows(
    kind: str, schema: ArraySchema, needed: tuple[str, ...], others: tuple[str, ...], spec: SchemaSpec
) -> None:
    """Checks rows by class: `classes` int64[n], `prototypes` float32[n, D], and others with a row for each. Raises
    SpecError."""
    arrays = schema.arrays
    classes = arrays.get("classes")
    if classes is None or classes.dtype != "int64" or len(classes.shape) != 1:
        raise _fail("rounds", f"{kind}: expected classes int64[n]")
    if classes.range is None or not 0 <= classes.range[0] <= classes.range[1] < spec.task.num_classes:
        raise _fail("rounds", f"{kind}: expected classes below {spec.task.num_classes}")
    rows = arrays.get("prototypes")
    if rows is None or rows.dtype != "float32" or len(rows.shape) != 2 or not isinstance(rows.shape[1], int):
        raise _fail("rounds", f"{kind}: expected prototypes float32[n,D]")
    for name, array in arrays.items():
        if name not in ("classes", *needed, *others):
            raise _fail("rounds", f"{kind}: expected no array {name!r}")
        if not array.shape or array.shape[0] != classes.shape[0] or not all(type(n) is int for n in array.shape[1:]):
            raise _fail("rounds", f"{kind}: expected one row of {name!r} for each entry of classes")
    counts = arrays.get("counts")
    is_count = counts is None or (counts.dtype == "int64" and counts.range is not None and len(counts.shape) == 1)
    if counts is not None and not (is_count and counts.range and 1 <= counts.range[0] <= counts.range[1] <= MAX_WEIGHT):
        raise _fail("rounds", f"{kind}: expected counts int64[n] from 1 to {MAX_WEIGHT}")


def _check_whole(kind: str, schema: ArraySchema, rule: str, spec: SchemaSpec) -> None:
    """Checks whole arrays, which must have the same shapes from all members. Raises SpecError."""
    is_nova = rule == "nova"
    for name, array in schema.arrays.items():
        if not all(isinstance(n, int) for n in array.shape):
            raise _fail("rounds", f"{kind}: expected fixed shapes for {rule}, got {name!r} of {_show(array.shape)}")
        if rule != "stack" and array.dtype != "float32" and not (is_nova and name in NOVA_NUMBERS):
            raise _fail("rounds", f"{kind}: expected float32 for {rule}, got {name!r} of {array.dtype}")
    if is_nova:
        _check_nova(kind, schema, spec)
    if (rule in RULES_ON_PARENT or spec.judging.outer is not None) and kind == "model":
        initial = spec.task.initial_schema.arrays
        for name, array in schema.arrays.items():
            if name in initial and initial[name].shape != array.shape:
                raise _fail("rounds", f"{kind}: expected {name!r} as the initial model has it")
            if is_nova and name not in initial and name not in NOVA_NUMBERS:
                raise _fail("rounds", f"{kind}: expected arrays of the initial model, got {name!r}")


def _check_nova(kind: str, schema: ArraySchema, spec: SchemaSpec) -> None:
    if kind != "model" or len(spec.spans) > 1:
        raise _fail("rounds", "expected nova for the model alone, in all rounds")
    numbers = tuple(schema.arrays.get(name) for name in NOVA_NUMBERS)
    wanted = (("int64", (1,)), ("float64", (1,)))
    for name, number, (dtype, shape) in zip(NOVA_NUMBERS, numbers, wanted, strict=True):
        if number is None or (number.dtype, number.shape) != (dtype, shape) or number.range is None:
            raise _fail("rounds", f"model: expected {name} {dtype}[1] with a range")
    steps = numbers[0]
    if steps is None or steps.range is None or not 1 <= steps.range[0] <= steps.range[1] <= 1 << 20:
        raise _fail("rounds", f"model: expected local_steps from 1 to {1 << 20}")


def _get_mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    if not isinstance(value, Mapping):
        raise _fail(key, f"expected a mapping, got {_show(value)}")
    return value


def _get_optional(payload: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = payload.get(key, {})
    if not isinstance(value, Mapping):
        raise _fail("rounds", f"{key}: expected a mapping, got {_show(value)}")
    return value


def _fail(path: str, message: str) -> SpecError:
    return SpecError(f"schema.{path}", message)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
