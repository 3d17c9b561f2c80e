"""What a run is asked for on a command line: `--method dfpl --set lr=0.05`, as the parts of genesis it becomes.

Shared by test networks and simulations, so that one line asks both for the same thing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.data import get_default_input
from ml.errors import DataError
from ml.specs.architectures import MLP_HIDDEN
from node.errors import ConfigError
from node.yaml_source import Keys, YamlSource, parse_value, suggest

_OPTIONS: dict[Keys, str] = {
    ("method", "name"): "--method",
    ("model", "name"): "--model",
    ("input",): "--size",
    ("rounds",): "--rounds",
    ("profile",): "--profile",
    ("pow",): "--difficulty",
}


def apply_settings(mapping: Mapping[str, Any], settings: Sequence[str], sections: Collection[str]) -> YamlSource:
    """`mapping` under `KEY=VALUE` settings, with the option behind each value as its origin.

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


def make_model(name: str) -> dict[str, Any]:
    """Genesis' `model`, defaults written out."""
    return {"name": name, "hidden": list(MLP_HIDDEN)} if name == "mlp" else {"name": name}


def make_input(data: str, model: Mapping[str, Any], size: int | None) -> dict[str, Any]:
    """Genesis' `input`: what suits data and model, or `size` x `size` pixels. Raises ConfigError."""
    try:
        default = get_default_input(data, model)
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error
    if size is None or default["shape"][1:] == [size, size]:
        return default
    if not 1 <= size <= 1024:
        raise ConfigError(f"--size: expected 1 to 1024 pixels (got {size})")
    return default | {"shape": [default["shape"][0], size, size], "resize": [size, size]}
