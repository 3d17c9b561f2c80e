"""`fednode config`: shows what a node would be started with."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from node.cli.options import AsJson, ConfigFile, Overrides, make_group
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.config.node_config import LoadedConfig, NodeConfig

_REQUIRED = object()  # of a key that has no default


def register(app: typer.Typer) -> None:
    group = make_group("Check, show, compare or describe a node's configuration.")
    group.command("check")(check)
    group.command("show")(show)
    group.command("diff")(diff)
    group.command("schema")(show_schema)
    app.add_typer(group, name="config")


def check(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a configuration file. Where its genesis is there, it also says what the site has not agreed to share.

    `fednode start --check` also reads the other files it names.

    Example: fednode config check --config node.yaml
    """
    from node.config.node_config import load_config

    _note_sharing(load_config(config, overrides or (), os.environ))
    print(json.dumps({"ok": True, "file": str(config)}) if as_json else f"ok: {config}")


def _note_sharing(config: NodeConfig) -> None:
    if not config.federation_file.is_file():
        return
    from node.config.federation import load_federation
    from node.config.genesis_file import describe_sharing

    with suppress(ConfigError):  # an error in genesis keeps the node from starting, whatever this says
        genesis = load_federation(config).genesis
        note = describe_sharing(config.federation_file, genesis, is_approved=config.consensus.approves_genesis)
        if note is not None:
            print(f"note: {note}", file=sys.stderr)


def show(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Print the configuration in force and where it comes from. Each value has its origin; secrets are redacted.

    What counts is --set, then the environment (FEDNODE__NETWORK__LISTEN=…), then the file, then the default.

    Example: FEDNODE__LOG__LEVEL=debug fednode config show --config node.yaml --set training.seed=5
    """
    from node.config.node_config import walk_values

    loaded, values = _load(config, overrides)
    if as_json:
        print(json.dumps({"config": values, "origins": loaded.list_origins()}))
        return
    lines = [(f"{'.'.join(keys)}: {_show(value)}", loaded.get_origin(keys)) for keys, value in walk_values(values)]
    _print_lines(lines)


def diff(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Print what a configuration changes from the defaults. Beside each value stands the default.

    Example: fednode config diff --config node.yaml
    """
    from node.config.json_schema import get_defaults
    from node.config.node_config import walk_values

    loaded, values = _load(config, overrides)
    defaults = get_defaults()
    different = [
        (keys, value)
        for keys, value in walk_values(values)
        if _get(defaults, keys, _REQUIRED) != value and loaded.get_origin(keys) != "default"
    ]
    if as_json:
        facts = [
            {
                "key": ".".join(keys),
                "value": value,
                "default": None if (default := _get(defaults, keys, _REQUIRED)) is _REQUIRED else default,
                "required": default is _REQUIRED,
                "origin": loaded.get_origin(keys),
            }
            for keys, value in different
        ]
        print(json.dumps({"different": facts}))
        return
    lines = []
    for keys, value in different:
        default = _get(defaults, keys, _REQUIRED)
        instead = "has no default" if default is _REQUIRED else f"default {_show(default)}"
        lines.append((f"{'.'.join(keys)}: {_show(value)}", f"{instead}, {loaded.get_origin(keys)}"))
    _print_lines(lines)


def _load(config: Path, overrides: list[str] | None) -> tuple[LoadedConfig, dict[str, Any]]:
    from node.config.node_config import load_config_source
    from node.config.redaction import redact

    loaded = load_config_source(config, overrides or (), os.environ)
    return loaded, redact(loaded.config.model_dump(mode="json"), keep_places=True)


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _print_lines(lines: list[tuple[str, str]]) -> None:
    width = max((len(text) for text, _ in lines), default=0)
    for text, remark in lines:
        print(f"{text:<{min(width, 72)}}  # {remark}")


def show_schema() -> None:
    """Print the JSON Schema of node.yaml, for editors. They complete and check the file by it.

    An editor with the YAML language server takes it from the first line of the file:
    # yaml-language-server: $schema=node.schema.json

    Example: fednode config schema > node.schema.json
    """
    from node.config.json_schema import make_schema

    print(json.dumps(make_schema(), indent=2))


def _get(tree: dict[str, Any], keys: tuple[str, ...], otherwise: Any) -> Any:
    """Returns the value under `keys`, or `otherwise` where there is none."""
    found: Any = tree
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return otherwise
        found = found[key]
    return found
