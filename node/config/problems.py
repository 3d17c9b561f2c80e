"""Problems of a configuration file, in fednode's own words, each at the place where the user wrote it.

`bad.yaml:4:3: training.seed: must be at least 0 (got -1)`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from node.config.yaml_source import YamlSource, show_value, suggest
from node.errors import ConfigError

_PHRASES = {
    "string_type": "expected text",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "path_type": "expected a path",
    "tuple_type": "expected a list",
    "model_type": "expected a section of keys",
    "model_attributes_type": "expected a section of keys",
    "literal_error": "expected {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "expected letters, digits, '.', '_' and '-', at most 64, a letter or digit first",
}

_PLACE = re.compile(r":(\d+):(\d+)$")


@dataclass(frozen=True, slots=True)
class Problem:
    """Describes one problem: the origin of the value, and the text, which begins with it."""

    origin: str
    text: str

    @classmethod
    def at(cls, source: YamlSource, keys: Sequence[str | int], message: str) -> Problem:
        """Makes a problem with `keys`. Where the origin is an option that names them, they are not repeated."""
        dotted = ".".join(map(str, keys))
        origin = source.get_origin(keys)
        named = not dotted or origin == f"--set {dotted}"
        return cls(origin, f"{origin}: {message}" if named else f"{origin}: {dotted}: {message}")

    def sort_key(self) -> tuple[bool, int, int]:
        """Returns a key that sorts the file from top to bottom, then variables and options."""
        place = _PLACE.search(self.origin)
        if place is None:
            return (self.origin.startswith(("--", "FEDNODE__")), 0, 0)
        return (False, int(place[1]), int(place[2]))


def report(problems: Iterable[Problem], path: Path) -> ConfigError:
    """Returns the error to raise for all problems of one file."""
    return ConfigError.from_problems([problem.text for problem in sorted(problems, key=Problem.sort_key)], str(path))


def describe_error(details: ErrorDetails, source: YamlSource, root: type[BaseModel]) -> Problem:
    """Returns the problem behind one of pydantic's errors while `root` was built from `source`."""
    keys: list[str | int] = []
    known: list[str] = []
    models = [root]
    for part in details["loc"]:
        if isinstance(part, int):  # an item of a list of sections
            keys.append(part)
            continue
        if len(models) > 1:  # pydantic names the branch of a union after its tag; the file has no such level
            models = [model for model in models if _has_tag(model, part)]
            continue
        known = list(models[0].model_fields) if models else []
        models = _get_models(models[0].model_fields[str(part)].annotation) if part in known else []
        keys.append(part)
    if details["type"].startswith("union_tag"):
        keys.append("scheme")
    return Problem.at(source, keys, _explain(details, known))


def _explain(details: ErrorDetails, known: Sequence[str]) -> str:
    kind = details["type"]
    context = {name: _simplify(value) for name, value in details.get("ctx", {}).items()}
    got = f"(got {show_value(details['input'])})"
    match kind:
        case "extra_forbidden":
            return f"unknown key.{suggest(str(details['loc'][-1]), known) or ' Known: ' + ', '.join(known)}"
        case "missing" | "union_tag_not_found":
            return "required, but missing"
        case "union_tag_invalid":
            return f"expected one of {context['expected_tags']} (got {context['tag']!r})"
        case "value_error":
            message = str(context["error"])
            return message if "(" in message else f"{message} {got}"
        case _ if kind in _PHRASES:
            return f"{_PHRASES[kind].format(**context)} {got}"
        case _:
            return f"{details['msg'][:1].lower()}{details['msg'][1:]} {got}"


def _simplify(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _get_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _get_models(inner)]


def _has_tag(model: type[BaseModel], tag: str | int) -> bool:
    """Says whether the branch is this model's: its tag is the value of one of its keys, or its name."""
    return tag == model.__name__ or any(tag in get_args(field.annotation) for field in model.model_fields.values())
