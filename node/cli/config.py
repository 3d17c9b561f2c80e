"""`fednode config`: what a node would be started with."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from node.cli.options import AsJson, ConfigFile, Overrides, make_group
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.config import NodeConfig


def register(app: typer.Typer) -> None:
    group = make_group("Check, show or describe a node's configuration.")
    group.command("check")(check)
    group.command("show")(show)
    group.command("schema")(show_schema)
    app.add_typer(group, name="config")


def check(config: ConfigFile, overrides: Overrides = None) -> None:
    """Validate a configuration, and that it allows for what the method of its genesis shares, where that is there.

    `fednode start --check` also reads the other files it names.
    """
    from node.config import load_config

    _validate_sharing(load_config(config, overrides or (), os.environ))
    print(f"ok: {config}")


def _validate_sharing(config: NodeConfig) -> None:
    if config.fededs.i_understand or not config.genesis_file.is_file():
        return
    from node.genesis_file import load_genesis, validate_sharing

    genesis = None
    with suppress(ConfigError):  # what is wrong with genesis itself keeps the node from starting, whatever is said here
        genesis = load_genesis(config.genesis_file).genesis
    if genesis is not None:
        validate_sharing(config.genesis_file, genesis, is_understood=False)


def show(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Print the effective configuration, with the origin of each value."""
    from node.config import load_config_source

    loaded = load_config_source(config, overrides or (), os.environ)
    values = loaded.config.model_dump(mode="json")
    if as_json:
        origins = {".".join(keys): loaded.get_origin(keys) for keys, _ in _walk(values)}
        print(json.dumps({"config": values, "origins": origins}))
        return
    lines = [(f"{'.'.join(keys)}: {json.dumps(value, ensure_ascii=False)}", keys) for keys, value in _walk(values)]
    width = min(max(len(text) for text, _ in lines), 72)
    for text, keys in lines:
        print(f"{text:<{width}}  # {loaded.get_origin(keys)}")


def show_schema() -> None:
    """Print the JSON Schema of node.yaml, for editors."""
    from node.config import NodeConfig

    print(json.dumps(NodeConfig.model_json_schema(), indent=2))


def _walk(tree: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of nested sections, each under its keys."""
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        keys = (*above, key)
        leaves += _walk(value, keys) if isinstance(value, dict) and value else [(keys, value)]
    return leaves
