"""Drafts a genesis from the options of a command line: for a test network, or for sites that only have each other's
ids. Everything but its creation time follows from the options."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chain.errors import GenesisError
from chain.genesis import PROTOCOL_VERSION, Genesis
from chain.pow import USUAL_DIFFICULTY
from ml.clients.build import make_initial_aggregate
from ml.data import get_classes, measure_target, open_once
from ml.errors import DataError, PayloadError, SpecError
from ml.models import Pretrained, build_model, load_pretrained, read_constants, resolve_model
from ml.payload import encode_arrays
from ml.plugins import ANY_PLUGIN
from ml.specs.architectures import is_user_model
from ml.specs.run_schema import describe_payloads
from ml.specs.statistics import AGREED
from ml.specs.task import USUAL_MAX_WEIGHT
from ml.tasks import CLASSIFICATION, REGRESSION, TASKS
from ml.training.layers import check_private, find_batch_norm
from node.config.genesis_file import (
    WHAT_LEAVES,
    check_initial,
    draft_spec,
    place_error,
    refuse_existing,
    write_genesis,
)
from node.config.genesis_members import parse_observers
from node.config.recommended import (
    AUTO,
    MIN_GUARDED,
    choose_guards,
    choose_method,
    choose_model,
    find_guards,
    is_told,
    recommend_input,
)
from node.config.settings import (
    apply_settings,
    complete_data,
    have_features,
    is_vector,
    make_data,
    make_input,
    make_model,
    make_sites,
    split_classes,
    state_agreed,
)
from node.config.table_settings import DROP
from node.config.yaml_source import YamlSource
from node.errors import ConfigError

# The time that mining should take, by profile, where difficulty adapts.
TARGET_MS = {"local": 50, "site": 1000, "wide": 1000}
SETTABLE = (
    *("method", "model", "data", "input", "classes", "waits", "pow", "limits"),
    *(
        "task",
        "target",
        "labels",
        "quorum",
        "chain_name",
        "min_contributions",
        "keep_heights",
        "evidence_heights",
        "select",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenesisSpec:
    """Holds the options from which a genesis is drafted. `data` is `digits` or `FORMAT:PATH`, which classes and input
    are read from; without data `classes` and `input_shape` [channels, height, width] give them, and `columns` the names
    of a table's columns. With `sites`, the paths of each site's own data, these are the data. Where `method` or `model`
    is `auto`, one that suits the data is chosen. `settings` are `KEY=VALUE` of the method (`lr=0.05`) or of a section
    (`waits.collect_s=1`), `observers` are `[NAME=]ID`.

    `normalize` is how samples of `data` are normalised where no setting gives it: `auto` by the mean and deviation of
    these data, as in a rehearsal, `agreed` by those that members agree on. Proof of work begins at `difficulty`, and
    stays there unless `adaptive`. `pretrained` is a file that the initial model is taken from. Without `i_understand`
    no genesis is made whose method shares samples in a transformed form.
    """

    method: str = AUTO
    model: str = AUTO
    data: str | None = None
    size: int | None = None
    rounds: int = 10
    seed: int = 1
    settings: tuple[str, ...] = ()
    profile: str = "local"
    difficulty: int = USUAL_DIFFICULTY
    adaptive: bool = False
    pretrained: Path | None = None
    i_understand: bool = False
    chain_name: str = "testnet"
    observers: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    input_shape: tuple[int, int, int] | None = None
    columns: tuple[str, ...] | None = None
    sites: tuple[str, ...] = ()
    normalize: str = "auto"
    task: str = CLASSIFICATION


def draft_genesis(spec: GenesisSpec) -> tuple[YamlSource, dict[str, Any]]:
    """Drafts a genesis from `spec` and its settings, without members. Returns it with the nodes' `data` ({} without
    any). Raises ConfigError."""
    mapping: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "chain_name": spec.chain_name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "members": [],
        "observers": parse_observers(spec.observers),
        "method": {},
        "model": {},
        "classes": None,
        "input": {},
        "initial_model": "0" * 64,  # until the model is made
        "rounds": spec.rounds,
        "quorum": "bft",
        "profile": spec.profile,
        "pow": {
            "difficulty": spec.difficulty,
            "target_ms": TARGET_MS.get(spec.profile, TARGET_MS["wide"]),
            "adaptive": spec.adaptive,
        },
        "limits": {"max_weight": USUAL_MAX_WEIGHT, "payload_mib": 512},
    }
    if spec.task != CLASSIFICATION:
        mapping["task"] = spec.task
    data = make_sites(spec.sites, spec.seed) if spec.sites else None if spec.data is None else make_data(spec.data)
    source = apply_settings(mapping | {"data": data}, spec.settings, SETTABLE)
    asked = dict(source.value)
    data, task = asked.pop("data"), asked.get("task", CLASSIFICATION)
    if task not in TASKS:
        raise ConfigError(f"--task: expected one of {', '.join(TASKS)} (got {task!r})")
    asked |= split_classes(asked["classes"])
    if spec.pretrained is not None and not is_told(asked["input"]):
        asked["input"] = {**asked["input"], **_read_constants(spec.pretrained)}
    if spec.data is None:
        if data is not None:
            raise ConfigError("--set data: expected --data as well, since this is about what is read from data")
        asked["input"] = _state_input(spec, asked["input"])
        asked |= _choose(spec, asked, task, is_table=is_vector(asked["input"]["shape"]))
    else:
        data = complete_data(data)
        if asked["classes"] is None:
            asked["classes"] = _get_classes(spec, data, task)
        asked |= _choose(spec, asked, task, is_table=have_features(data, task))
        wanted = recommend_input(asked["input"], spec.normalize)
        asked["input"] = make_input(
            data, asked["model"], spec.size, wanted, asked["classes"], task, asked.get("labels")
        )
    if asked["classes"] is None:
        asked["classes"] = _get_classes(spec, data, task)
    if task == REGRESSION and data is not None and "target" not in asked:
        asked["target"] = _measure_target(data, asked["classes"])
    return YamlSource(source.path, asked, source.origins), data or {}


def _choose(spec: GenesisSpec, asked: Mapping[str, Any], task: str, *, is_table: bool) -> dict[str, Any]:
    """Chooses genesis' `method` and `model`. Raises ConfigError."""
    method = choose_method(spec.method, asked["method"], task, is_table=is_table)
    return {"method": method, "model": make_model(choose_model(spec.model, asked["model"], method, is_table=is_table))}


def _read_constants(pretrained: Path) -> Mapping[str, list[float]]:
    """Returns the mean and the deviation that pretrained weights were trained with, from their file. Raises
    ConfigError."""
    try:
        constants = read_constants(pretrained)
    except SpecError as error:
        raise ConfigError(f"--{error}") from error
    if constants is None:
        raise ConfigError(
            f"--pretrained: {pretrained} does not say what its weights saw: expected a mean and a std in it, or "
            "--set input.mean=[…] --set input.std=[…] beside it; --set input.normalize=agreed goes by the members' data"
        )
    return constants


def _state_input(spec: GenesisSpec, settings: Any) -> dict[str, Any]:
    """Makes genesis' `input` from options, where there are no data to read it from. Raises ConfigError."""
    if spec.input_shape is None:
        raise ConfigError(
            "--input: expected CHANNELSxHEIGHTxWIDTH, or of tables the number of features, where there is no --data to "
            "read it from"
        )
    shape = list(spec.input_shape)
    made: dict[str, Any] = {"shape": shape, "resize": None if shape[1:] == [1, 1] else shape[1:]}
    if spec.columns is not None:
        made["columns"] = [{"name": name} for name in spec.columns]
    if isinstance(settings, Mapping) and DROP in settings:
        raise ConfigError("--drop: expected --data as well, since this is about its columns")
    told = recommend_input(settings, AGREED)
    if not isinstance(told, Mapping):
        raise ConfigError(f"--set input: expected {{mean: …, std: …}} (got {told!r})")
    match told.get("normalize", "none"):
        case "agreed":
            return state_agreed(made, told)
        case "none":
            if str(told.get("missing", "")).startswith("mean") and "mean" not in told:
                raise ConfigError("--set input.missing=mean: expected a mean: input.normalize=agreed, or input.mean")
            return {**made, "mean": [0.0], "std": [1.0]} | {k: v for k, v in told.items() if k != "normalize"}
        case other:
            raise ConfigError(f"--set input.normalize: expected agreed or none without --data (got {other!r})")


def _measure_target(data: Mapping[str, Any], targets: Any) -> dict[str, Any]:
    try:
        return dict(measure_target(data, targets))
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error


def _get_classes(spec: GenesisSpec, data: Mapping[str, Any] | None, task: str) -> list[str]:
    if spec.classes is not None:
        return list(spec.classes)
    if data is None:
        raise ConfigError("--classes: expected their names where there is no --data to read them from")
    try:
        return list(get_classes(data, task))
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error


def complete_genesis(
    asked: YamlSource, members: Sequence[Mapping[str, str]], spec: GenesisSpec
) -> tuple[Genesis, bytes, Pretrained | None]:
    """Completes the draft with these members. Returns the genesis, the initial model's blob, and the pretrained weights
    that it was taken from, if any. Raises ConfigError."""
    source = YamlSource(asked.path, asked.value | {"members": list(members)}, asked.origins)
    try:
        draft = Genesis.from_mapping(source.value)
        shape, num_classes = draft.run.input["shape"], len(draft.run.classes)
        model = resolve_model(draft.run.model, shape, num_classes)
        drafted = Genesis.from_mapping(source.value | {"model": model})
        method = draft_spec(drafted.run, drafted.rules, drafted.state.n, ANY_PLUGIN)  # its maker asks for the plugin
        if method.shares_samples and not spec.i_understand:
            raise ConfigError(f"--method: {method.name} {WHAT_LEAVES}. Say --i-understand if that may be")
        if is_user_model(model):
            net = build_model(model, shape, num_classes, plugins=ANY_PLUGIN)
            find_batch_norm(net, method)
            check_private(net, method)
        pretrained = None
        if spec.pretrained is not None:
            pretrained = load_pretrained(spec.pretrained, model, shape, num_classes)
        aggregate = make_initial_aggregate(model, shape, num_classes, spec.seed, pretrained=pretrained)
        check_initial(method, aggregate)
        initial_model = encode_arrays(aggregate)
        digest = hashlib.sha256(initial_model).hexdigest()
        final = source.value | {
            "method": method.to_mapping(),
            "model": model,
            "initial_model": digest,
            "schema": describe_payloads(method),
        }
        return Genesis.from_mapping(final), initial_model, pretrained
    except (GenesisError, SpecError) as error:
        raise ConfigError(place_error(source, error).text) from error
    except PayloadError as error:
        raise ConfigError(f"the initial model does not fit genesis: {error}") from error


def _add_settings(asked: YamlSource, settings: Mapping[str, Any]) -> YamlSource:
    if not settings:
        return asked
    return YamlSource(asked.path, asked.value | {"method": asked.value["method"] | settings}, asked.origins)


def make_genesis(
    path: Path, members: Sequence[Mapping[str, str]], spec: GenesisSpec
) -> tuple[Genesis, Mapping[str, Any]]:
    """Writes genesis into `path`, and its initial model beside it. Returns the genesis with those of GUARDS that were
    left out because the members are too few. Raises ConfigError, also where either file exists."""
    refuse_existing(path)
    spec = replace(spec, normalize=AGREED)
    with open_once():
        asked, _ = draft_genesis(spec)
    asked = _add_settings(asked, choose_guards(asked.value["method"], len(members)))
    left_out = {} if len(members) >= MIN_GUARDED else find_guards(asked.value["method"])
    genesis, initial_model, _ = complete_genesis(asked, members, spec)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_genesis(path, genesis, initial_model)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return genesis, left_out
