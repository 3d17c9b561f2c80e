"""Schemes as text and as configuration: `classes:3,1,count=normal` and `{scheme: classes, avg: 3, std: 1, …}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

from ml.data.partition.base import Scheme, get_parameters, is_flag, is_text, show_value
from ml.data.partition.classes import Classes
from ml.data.partition.dirichlet import Dirichlet
from ml.data.partition.iid import Domains, Iid
from ml.data.partition.owned import Owned
from ml.data.partition.shards import Shards
from ml.errors import DataError, suggest

_SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme for scheme in (Classes, Owned, Dirichlet, Domains, Shards, Iid)
}
_MAX_NUMBER = 1 << 31

SCHEMES = tuple(_SCHEMES)


def parse_partition(text: str) -> Scheme:
    """Reads `NAME:NUMBERS,KEY=VALUE…`: `classes:3,1`, `dirichlet:0.3,per=client`, `iid`. Raises DataError."""
    name, _, rest = text.partition(":")
    if name not in _SCHEMES:
        raise DataError(f"partition: unknown scheme {name!r}: {suggest(name, _SCHEMES)}")
    scheme = _SCHEMES[name]
    if any(map(is_text, get_parameters(scheme))):
        return scheme(rest)  # type: ignore[call-arg] # its one parameter
    unexpected = DataError(f"partition: expected {scheme.form}, got {text!r}")
    numbers = [parameter for parameter in get_parameters(scheme) if not is_flag(parameter)]
    flags = {
        parameter.name: parameter.metadata["choices"] for parameter in get_parameters(scheme) if is_flag(parameter)
    }
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, word = part.partition("=")
        if equals:
            if key not in flags:
                raise DataError(f"partition: unknown flag {key!r} of {name}: {suggest(key, flags)}")
            choices = {show_value(choice): choice for choice in flags[key]}
            if word not in choices or key in values:
                raise DataError(f"partition: expected {key}={'|'.join(choices)} once, got {text!r}")
            values[key] = choices[word]
        else:
            if len(values) == len(numbers):
                raise unexpected
            number = numbers[len(values)]
            try:
                values[number.name] = float(part)
            except ValueError:
                raise unexpected from None
            if number.type == "int":
                values[number.name] = _to_int(values[number.name], f"partition: expected whole numbers, got {text!r}")
    if any(number.name not in values and _is_required(number) for number in numbers):
        raise unexpected
    return scheme(**values)


def partition_from_mapping(mapping: Mapping[str, Any]) -> Scheme:
    """Returns the scheme in `{scheme: dirichlet, alpha: 0.3, …}`; ignores other keys. Raises DataError."""
    name = mapping.get("scheme")
    scheme = _SCHEMES.get(name) if isinstance(name, str) else None
    if scheme is None:
        raise DataError(f"data.partition.scheme: unknown scheme {name!r}: {suggest(str(name), _SCHEMES)}")
    values: dict[str, Any] = {}
    for parameter in get_parameters(scheme):
        value, place = mapping.get(parameter.name), f"data.partition.{parameter.name}"
        if value is None and not _is_required(parameter):
            continue
        if is_text(parameter):
            if not isinstance(value, str):
                raise DataError(f"{place}: expected text, got {value!r}")
        elif not is_flag(parameter):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise DataError(f"{place}: expected a number, got {value!r}")
            if parameter.type == "int":
                value = _to_int(value, f"{place}: expected a whole number, got {value!r}")
        values[parameter.name] = value
    return scheme(**values)


def _is_required(parameter: Field[Any]) -> bool:
    return parameter.default is MISSING


def _to_int(number: float, problem: str) -> int:
    if not float(number).is_integer() or abs(number) >= _MAX_NUMBER:
        raise DataError(problem)
    return int(number)
