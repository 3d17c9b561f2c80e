"""YAML that keeps the place of each value, so that a message can name file, line and column.

The values are YAML 1.2's core schema (JSON's types): `off` is text, `1e-3` a number, a date is text. Constructs that a
configuration never needs are refused, not guessed at: a key given twice, aliases, tags, non-finite numbers, a second
document, nesting beyond MAX_DEPTH.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from node.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_DIGITS = 100

Keys = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_BREAK = re.compile("[\x85\u2028\u2029]")
_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class YamlSource:
    """Holds one document: its plain value, and the origin of each key or item, by the keys that lead to it.

    An origin is `file:line:col`, or the name of the option or variable that set the value.
    """

    path: Path
    value: Any
    origins: dict[Keys, str] = field(default_factory=dict)

    def get_origin(self, keys: Iterable[str | int]) -> str:
        """Returns the place where `keys` were given; for absent keys, that of the closest section around them."""
        keys = tuple(keys)
        while keys and keys not in self.origins:
            keys = keys[:-1]
        return self.origins.get(keys, str(self.path))

    def with_value(self, keys: tuple[str, ...], value: Any, origin: str) -> YamlSource:
        """Returns a copy in which `keys` have `value`, given by `origin`. Raises ConfigError where a parent is no
        mapping."""
        tree = _replace(self.value if self.value is not None else {}, keys, value, origin)
        origins = {k: o for k, o in self.origins.items() if k[: len(keys)] != keys}
        for depth in range(1, len(keys)):
            origins.setdefault(keys[:depth], origin)
        origins |= dict.fromkeys(_walk_keys(keys, value), origin)
        return YamlSource(self.path, tree, origins)


def _walk_keys(keys: Keys, value: Any) -> Iterator[Keys]:
    """Yields `keys` and those of every section below them."""
    yield keys
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _walk_keys((*keys, key), below)


def _replace(tree: Any, keys: tuple[str, ...], value: Any, origin: str) -> Any:
    if not keys:
        return value
    if not isinstance(tree, dict):
        raise ConfigError(f"{origin}: expected a section above {keys[0]!r} (got {show_value(tree)})")
    return {**tree, keys[0]: _replace(tree.get(keys[0], {}), keys[1:], value, origin)}


def read_yaml(path: Path) -> YamlSource:
    """Reads the one document in `path`. Raises ConfigError, with one line, for any reason that it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: expected a file of at most {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError(
            f"{path}:{line}:{column}: expected text in UTF-8 (got byte 0x{data[error.start]:02x})"
        ) from error
    return parse_yaml(text, path)


def read_sections(path: Path, *, may_be_empty: bool = False) -> YamlSource:
    """Reads a file of keys and values as `read_yaml`. Raises ConfigError for any other content, without repeating it:
    the user may have named a key or token file by mistake."""
    source = read_yaml(path)
    if isinstance(source.value, dict) or (may_be_empty and source.value is None):
        return source
    got = {list: "a list", type(None): "nothing"}.get(type(source.value), "text")
    raise ConfigError(f"{path}: expected keys and values (got {got})")


def parse_yaml(text: str, path: Path) -> YamlSource:
    """Returns the document in `text`; messages name it by `path`. Raises ConfigError."""
    try:
        loader = _Composer(text)
        try:
            root = loader.get_single_node()
        except (ValueError, OverflowError) as error:  # PyYAML computes with "\UFFFFFFFF" and versions unchecked
            raise _Refused("not YAML: a character or version out of range", loader.get_mark()) from error
        finally:
            loader.dispose()
        origins: dict[Keys, str] = {}
        value = _build(root, (), str(path), origins) if root is not None else None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        raise ConfigError(f"{path}:{line}:{column}: not YAML: character #x{ord(text[error.position]):04x}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        said = ", ".join(" ".join(part.split()) for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: not YAML: {said}") from error
    except _Refused as error:
        raise ConfigError(f"{path}:{error.place}: {error}") from error
    return YamlSource(path, value, origins)


def parse_value(text: str, origin: str) -> Any:
    """Returns the value of an option or variable, read as YAML (`5`, `true`, `[a, b]`, text). Raises ConfigError."""
    try:
        return parse_yaml(text, Path("value")).value
    except ConfigError as error:
        raise ConfigError(f"{origin}: expected a YAML value (got {text!r}: {str(error).split(': ', 1)[-1]})") from error


def dump_yaml(value: Any) -> str:
    """Returns `value` as YAML that this module and readers of YAML 1.1 both read back as the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True)


def show_value(value: Any) -> str:
    """Returns `value` for use in a message: short, on one line."""
    if isinstance(value, dict):
        return "a section"
    if value is None:
        return "nothing"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean 'listen'?`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


class _Refused(Exception):
    """A configuration has no use for this construct of YAML."""

    def __init__(self, message: str, mark: Any) -> None:
        super().__init__(message)
        self.place = f"{mark.line + 1}:{mark.column + 1}"


class _Composer(yaml.SafeLoader):
    """Composes nodes only; `_build` builds values. Aliases are refused, so the tree is no larger than its text."""

    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML leaves it bare
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("expected plain values (got an alias)", event.start_mark)
        if (tag := getattr(event, "tag", None)) is not None:
            raise _Refused(f"expected plain values (got the tag {tag})", event.start_mark)
        if self.depth >= MAX_DEPTH:
            raise _Refused(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        self.depth += 1
        try:
            node: Node | None = super().compose_node(parent, index)
        finally:
            self.depth -= 1
        return node


def _build(node: Node, keys: Keys, name: str, origins: dict[Keys, str]) -> Any:
    if isinstance(node, MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            key = _build(key_node, keys, name, {})
            if not isinstance(key, str):
                raise _Refused(f"expected a name as key (got {show_value(key)})", mark)
            if key in mapping:
                first = origins[(*keys, key)].rsplit(":", 2)
                raise _Refused(f"{'.'.join(map(str, (*keys, key)))}: given twice (first on line {first[1]})", mark)
            origins[(*keys, key)] = f"{name}:{mark.line + 1}:{mark.column + 1}"
            mapping[key] = _build(value_node, (*keys, key), name, origins)
        return mapping
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            origins[(*keys, index)] = f"{name}:{item.start_mark.line + 1}:{item.start_mark.column + 1}"
            items.append(_build(item, (*keys, index), name, origins))
        return items
    return _build_scalar(cast(ScalarNode, node))


def _build_scalar(node: ScalarNode) -> Any:
    text: str = node.value
    if node.style is not None:  # quoted or block text
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _Refused(f"expected a number of at most {MAX_DIGITS} digits", node.start_mark)
        return int(text, {"x": 16, "o": 8}.get(text[1:2], 10))
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise _Refused(f"expected a finite number (got {text})", node.start_mark)
        return number
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as another type; writes short lists on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> Node:
    short = all(isinstance(item, str | int | float | None) for item in items) and len(repr(items)) <= 100
    return dumper.represent_sequence(f"{_PREFIX}seq", items, flow_style=short)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Node:
    # PyYAML folds text at YAML 1.1's line breaks and reads other text back; in double quotes it escapes them.
    return dumper.represent_scalar(f"{_PREFIX}str", text, style='"' if _BREAK.search(text) else None)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver(_PREFIX + "float", _FLOAT, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_PREFIX + "int", _INT, list("-+0123456789"))
