"""Run settings from a command line: turns `--method dfpl --data npz:x.npz --set lr=0.05` into settings of genesis and
of the nodes' configurations.

Test networks and simulations share it, so that the same options mean the same in both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ml.data import FORMATS, TABLES, get_default_input, open_dataset, open_train
from ml.data.base import InputFormat
from ml.data.checks import compute_stats
from ml.data.detect_format import guess_format
from ml.data.source import DataSource, get_augment
from ml.data.table_input import TableInput
from ml.errors import DataError, SpecError
from ml.errors import suggest as suggest_word
from ml.plugins import list_offered
from ml.specs.architectures import complete_model, find_model, validate_model
from ml.specs.statistics import AGREED, Agreement
from ml.tasks import CLASSIFICATION
from node.config.table_settings import OF_TABLES, make_table
from node.config.yaml_source import Keys, YamlSource, parse_value, suggest
from node.errors import ConfigError

_OPTIONS: dict[Keys, str] = {
    ("method", "name"): "--method",
    ("model", "name"): "--model",
    ("pretrained",): "--pretrained",
    ("input",): "--size",
    ("data",): "--data",
    ("rounds",): "--rounds",
    ("task",): "--task",
    ("attack",): "--attack",
    ("profile",): "--profile",
    ("pow",): "--difficulty",
}


def apply_settings(mapping: Mapping[str, Any], settings: Sequence[str], sections: Collection[str]) -> YamlSource:
    """Returns `mapping` under `KEY=VALUE` settings, with the option behind each value as its origin.

    A dotted key goes into the section it begins with, one of `sections`; a bare one is a section that is a single
    value, or a hyper-parameter of the method. Raises ConfigError.
    """
    source = YamlSource(Path("the options"), dict(mapping), dict(_OPTIONS))
    for setting in settings:
        key, equals, text = setting.partition("=")
        keys = tuple(key.split("."))
        if not equals or not all(keys):
            raise ConfigError(f"--set {setting}: expected KEY=VALUE, as in lr=0.05 or model.hidden=[32]")
        if len(keys) > 1 and keys[0] not in sections:
            hint = suggest(keys[0], sections) or f" Known: {', '.join(sections)}"
            raise ConfigError(f"--set {key}: unknown section {keys[0]!r}.{hint}")
        if keys[0] not in sections:
            keys = ("method", *keys)
        source = source.with_value(keys, parse_value(text, f"--set {key}"), f"--set {key}")
    return source


def make_model(model: Any) -> Any:
    """Returns genesis' `model`, of this name or under settings that have one, with all defaults. Raises ConfigError."""
    if isinstance(model, str):
        model = {"name": model}
    if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
        return model
    try:
        return complete_model({**model, "name": find_model(model["name"])})
    except SpecError as error:
        raise ConfigError(f"--model: {error}") from error


def make_attack(text: str) -> dict[str, Any]:
    """Returns a simulation's `attack` for `NAME`, `NAME:COUNT` or `NAME:COUNT,KEY=VALUE…`. Raises ConfigError."""
    head, *settings = text.split(",")
    name, colon, liars = head.partition(":")
    attack: dict[str, Any] = {"name": name} | ({"liars": parse_value(liars, "--attack")} if colon else {})
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--attack: expected NAME:COUNT,KEY=VALUE, as in sign_flip:1,scale=4 (got {text!r})")
        if key in attack:
            raise ConfigError(f"--attack: {key} is given twice (got {text!r})")
        attack[key] = parse_value(value, "--attack")
    return attack


def make_data(text: str) -> dict[str, Any]:
    """Returns the configuration's `data` for `digits`, `FORMAT:PATH`, or the path of data whose format can be
    recognised.

    Raises ConfigError.
    """
    name, colon, path = text.partition(":")
    if name not in FORMATS and Path(text).expanduser().exists():
        try:
            return {"format": guess_format(Path(text).expanduser()), "path": text}
        except DataError as error:
            raise ConfigError(f"--data: {error}") from error
    if not name or (colon and not path):
        raise ConfigError(f"--data: expected digits or FORMAT:PATH (got {text!r})")
    is_path = os.sep in name or Path(name).suffix or Path(text).is_symlink()
    offered = [] if name in FORMATS else [entry.plugin for entry in list_offered("data") if entry.name == name]
    if offered:  # whoever types its name asks for its code
        return {"format": name, "plugins": offered} | ({"path": path} if path else {})
    if name not in FORMATS and is_path:
        raise ConfigError(f"--data: {text}: no such file or directory")
    if name not in FORMATS:
        what = "unknown format" if colon else "no such file or directory, and unknown format"
        raise ConfigError(f"--data: data.format: {what} {name!r}: {suggest_word(name, FORMATS)}")
    return {"format": name} | ({"path": path} if path else {})


def make_sites(paths: Sequence[str], seed: int) -> dict[str, Any]:
    """Returns the configuration's `data` in which each path is a domain, with a split of its own that follows from the
    run's seed. Raises ConfigError."""
    whole = [os.path.abspath(Path(path).expanduser()) for path in paths]
    for path in whole:
        if not Path(path).exists():
            raise ConfigError(f"--site: {path}: no such file or directory")
    if len(set(whole)) < len(whole):
        raise ConfigError(f"--site: expected each path once (got {', '.join(paths)})")
    if len(whole) < 2:
        raise ConfigError(f"--site: expected two and more, each with the data of one (got {paths[0]})")
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    domains = [os.path.relpath(path, common) for path in whole]
    return {"format": "domains", "path": common, "domains": domains, "split_seed": seed}


def set_label(data: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Returns `data` whose labels are in these columns of a table. Raises ConfigError."""
    if data["format"] not in TABLES:
        raise ConfigError(
            f"--label: expected a table ({', '.join(TABLES)}) in --data, as data.format {data['format']} has no columns"
        )
    return {**data, "columns": {"label": columns[0] if len(columns) == 1 else list(columns)}}


def complete_data(data: Any) -> dict[str, Any]:
    """Returns `data` after `--set data.KEY=VALUE`, with absolute paths. Raises ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"--data: expected digits or FORMAT:PATH (got {data!r})")
    if "partition" in data:
        raise ConfigError("--set data.partition: expected --partition instead")
    try:
        source = DataSource.from_mapping(data)
        get_augment(data)
    except DataError as error:
        raise ConfigError(str(error)) from error
    paths = {"path": source.path, "test": source.test}
    return {**data, **{key: os.path.abspath(path.expanduser()) for key, path in paths.items() if path is not None}}


def split_classes(classes: Any) -> dict[str, Any]:
    """Returns genesis' `classes` and, where labels are given for each class, `labels`. Raises ConfigError."""
    if not isinstance(classes, Mapping):
        return {"classes": classes}
    labels = {}
    for name, meaning in classes.items():
        if not isinstance(meaning, list) or not meaning or not all(type(label) in (int, str) for label in meaning):
            raise ConfigError(
                f"--set classes: expected the labels of each class, as in {{no: [0], yes: [1, 2]}} (got {classes!r})"
            )
        labels[str(name)] = [str(label) for label in meaning]
    return {"classes": list(labels), "labels": labels}


def have_features(data: Mapping[str, Any], task: str) -> bool:
    """Says whether the data's samples are rows of a table or vectors, not images. Raises ConfigError."""
    try:
        train = open_train(data, task)
        return train.cells is not None or is_vector(train.measure())
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error


def is_vector(shape: Sequence[int]) -> bool:
    """Says whether samples of this shape are features, one number each."""
    return tuple(shape[1:]) == (1, 1)


def make_input(
    data: Mapping[str, Any],
    model: Mapping[str, Any],
    size: int | None,
    settings: Any = None,
    classes: Any = None,
    task: str = CLASSIFICATION,
    labels: Any = None,
) -> dict[str, Any]:
    """Returns genesis' `input`: one that suits data and model, or `size` x `size` pixels, under `settings` of single
    keys.

    With `normalize: auto` the mean and deviation of each channel are measured on the training samples, unless they are
    given, too; with `normalize: agreed` the members agree on them. `classes` are genesis' own where they are listed,
    and `labels` those that stand for each. Raises ConfigError.
    """
    try:
        if not isinstance(model, Mapping):
            raise ConfigError(f"--model: expected a name (got {model!r})")
        listed = classes if isinstance(classes, list) and all(isinstance(name, str) for name in classes) else None
        table = make_table(data, settings, listed, task)
        made = get_default_input(data, model, task, listed, table) | ({} if table is None else table.to_mapping())
        if made["shape"][1:] == [1, 1]:
            _refuse_images(model, made["shape"], size)
        if size is not None and made["shape"][1:] != [size, size]:
            if not 1 <= size <= 1024:
                raise ConfigError(f"--size: expected 1 to 1024 pixels (got {size})")
            made |= {"shape": [made["shape"][0], size, size], "resize": [size, size]}
        if settings is not None and not isinstance(settings, Mapping):
            raise ConfigError(f"--set input: expected {{shape: …, mean: …, std: …}} (got {settings!r})")
        if settings is None:
            return made
        made |= {"resize": None} if "shape" in settings else {}
        if settings.get("normalize") == AGREED:
            return state_agreed(made, {key: value for key, value in settings.items() if key not in OF_TABLES})
        made |= {key: value for key, value in settings.items() if key not in ("normalize", *OF_TABLES)}
        try:
            InputFormat.from_mapping(made)
        except DataError as error:
            raise ConfigError(f"--set {error}") from error
        match settings.get("normalize", "none"):
            case "auto":
                return _measure(data, made, listed, task, labels) | {
                    key: made[key] for key in ("mean", "std") if key in settings
                }
            case "none":
                if table is not None and table.missing.startswith("mean") and "mean" not in settings:
                    raise ConfigError(
                        f"--set input.missing={table.missing}: expected a mean: input.normalize={AGREED} or auto, or "
                        "input.mean"
                    )
                return made
            case other:
                raise ConfigError(f"--set input.normalize: expected {AGREED}, auto or none (got {other!r})")
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error


def state_agreed(made: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns genesis' `input` of this shape, normalised by what members agree on. Raises ConfigError."""
    for key in ("mean", "std"):
        if key in settings:
            raise ConfigError(f"--set input.{key}: expected none with input.normalize={AGREED}")
    input_ = {key: value for key, value in {**made, **settings}.items() if key not in ("mean", "std")}
    try:
        InputFormat.from_mapping(input_)
        Agreement.from_input(input_)
    except DataError as error:
        raise ConfigError(f"--set {error}") from error
    except SpecError as error:
        raise ConfigError(f"--set {error}") from error
    return input_


def _refuse_images(model: Mapping[str, Any], shape: Sequence[int], size: int | None) -> None:
    """Raises ConfigError where the data are features and an option is for images only."""
    if size is not None:
        raise ConfigError(f"--size: expected images to resize, and the data have {shape[0]} features")
    try:
        validate_model(model, tuple(shape))
    except SpecError as error:
        if error.path == "input.shape":
            raise ConfigError(
                f"--model: {model['name']} takes images, and the data have {shape[0]} features"
            ) from error


def _measure(
    data: Mapping[str, Any], input_: Mapping[str, Any], classes: Sequence[str] | None, task: str, labels: Any
) -> dict[str, Any]:
    """Returns `input` with the mean and the deviation of the training samples."""
    shape = InputFormat.from_mapping(input_).shape
    table = TableInput.from_mapping(input_)  # without the mean, which is measured here
    train, _ = open_dataset(data, shape=shape, classes=classes, task=task, table=table, meaning=labels)
    mean, std = compute_stats(train, shape)
    if table is not None:  # a category's values stay 0 and 1
        is_number = table.get_numbers(shape[0])
        mean = np.where(is_number, mean, 0.0).tolist()
        std = np.where(is_number, std, 1.0).tolist()
    return {**input_, "mean": mean, "std": std}
