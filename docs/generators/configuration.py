"""The page of node.yaml: every key of its sections, with type, limits and default."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from generators.words import Descriptions, code, make_table, show_default
from node.config.node_config import NodeConfig
from node.config.node_sections import PartSection


def write_configuration(words: Descriptions) -> str:
    parts = [
        "# node.yaml\n",
        "A site's decisions for its own node. What all members must agree on is in [genesis.yaml](genesis.md).\n",
        "A value comes from `--set KEY=VALUE`, else from the environment (`FEDNODE__NETWORK__LISTEN`), else from the "
        "file, else from the default. Relative paths are relative to the file. Unknown and duplicate keys are errors. "
        "`fednode config check` checks a file, `fednode config show` prints each value with its origin, and "
        "`fednode config schema` prints a JSON Schema for editors.\n",
    ]
    top = [(name, info) for name, info in NodeConfig.model_fields.items() if not get_section(info)]
    parts.append(make_key_table("", top, words))
    for name, info in NodeConfig.model_fields.items():
        if section := get_section(info):
            parts += write_section(name, section, words)
    parts.append(write_partitions(words))
    return "\n".join(parts)


def write_section(path: str, section: type[BaseModel], words: Descriptions) -> list[str]:
    parts = [f"## {path}\n", f"{words.get('sections', path)}\n"]
    keys: list[tuple[str, FieldInfo]] = []
    below: list[str] = []
    for name, info in section.model_fields.items():
        if inner := get_section(info):
            below += write_section(f"{path}.{name}", inner, words)
        else:
            keys.append((name, info))
    if keys:
        parts.append(make_key_table(f"{path}.", keys, words))
    return parts + below


def get_section(info: FieldInfo) -> type[BaseModel] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def make_key_table(prefix: str, keys: Iterable[tuple[str, FieldInfo]], words: Descriptions) -> str:
    rows = []
    for name, info in keys:
        default = "required" if info.is_required() else show_default(info.default)
        rows.append((code(prefix + name), words.get("node.yaml", prefix + name), show_type(info), default))
    return make_table(("key", "what it is", "value", "default"), rows)


def show_type(info: FieldInfo) -> str:
    """What a key takes: words to choose from, or a kind with its limits."""
    metadata = [*info.metadata, *(find_metadata(info.annotation))]
    limits = []
    for item in metadata:
        for attribute, sign in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
            bound = getattr(item, attribute, None)
            if bound is not None:
                limits.append(f"{sign} {show_bound(bound)}")
    kind = name_kind(info.annotation)
    return ", ".join([kind, *limits])


def show_bound(bound: float) -> str:
    if isinstance(bound, float):
        return f"{bound:g}"
    return f"{bound:,}" if bound < 1 << 31 else f"2^{bound.bit_length() - 1}"


def find_metadata(kind: Any) -> list[Any]:
    """The limits in an annotation, also those of pydantic's Field in one part of a union."""
    if typing.get_origin(kind) is typing.Annotated:
        base, *metadata = typing.get_args(kind)
        found = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return [*found, *find_metadata(base)]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return [item for argument in typing.get_args(kind) for item in find_metadata(argument)]
    return []


KINDS = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path"}


def name_kind(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return name_kind(arguments[0])
    if origin is Literal:
        return ", ".join(code(str(argument)) for argument in arguments)
    if origin is tuple:
        return f"list of {name_kind(arguments[0])}"
    if origin in (types.UnionType, typing.Union):
        names = [name_kind(argument) for argument in arguments if argument is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if isinstance(kind, type) and issubclass(kind, PartSection):
        return "a [partition](#partitions)"
    return KINDS[kind]


def write_partitions(words: Descriptions) -> str:
    parts = [
        "(partitions)=\n## Partitions\n",
        "`data.partition` gives a node its part of a shared data set. All schemes have these keys:\n",
        make_table(
            ("key", "what it is", "value", "default"),
            [make_part_row(name, info, name, words) for name, info in PartSection.model_fields.items()],
        ),
    ]
    for kind in sorted(PartSection.__subclasses__(), key=lambda kind: str(get_scheme(kind))):
        scheme = get_scheme(kind)
        own = [
            make_part_row(name, info, f"{scheme}.{name}", words)
            for name, info in kind.model_fields.items()
            if name not in PartSection.model_fields and name != "scheme"
        ]
        parts += [f"**scheme: {scheme}**. {' '.join((kind.__doc__ or '').split())}\n"]
        parts += [make_table(("key", "what it is", "value", "default"), own)] if own else []
    return "\n".join(parts)


def get_scheme(kind: type[BaseModel]) -> str:
    return str(typing.get_args(kind.model_fields["scheme"].annotation)[0])


def make_part_row(name: str, info: FieldInfo, key: str, words: Descriptions) -> tuple[str, str, str, str]:
    default = "required" if info.is_required() else show_default(info.default)
    return code(name), words.get("partition", key), show_type(info), default
