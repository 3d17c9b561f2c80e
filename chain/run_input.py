"""A run's `input`: what samples are fitted to, what normalises them, and what becomes of a table's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from chain.agreed_input import AGREED_KEYS, read_agreed
from chain.errors import GenesisError
from chain.schema import Section, check_choice, check_range, check_unique, quote, read_number

OF_TABLES = {"columns": (), "missing": ("mean", "mean+flag", "zero"), "unknown": ("other",), "empty": ()}
FLAG = "+flag"  # at the end of `missing`: each column has one more feature, which says whether its cell is empty
MAX_EMPTY, MAX_EMPTY_CHARS = 32, 64  # texts that stand for an empty cell
MAX_EDGES = 64  # of a histogram


def read_input(top: Section) -> dict[str, Any]:
    """Reads the input: shape [channels, height, width]; resize null or [height, width]; a mean and std for all channels
    or for each, or the settings by which members agree on these."""
    section = top.section("input", ("shape", "resize", "mean", "std", *AGREED_KEYS, *OF_TABLES))
    shape = _read_sizes(section.path("shape"), section.items("shape"), range(1, 5))
    resize = section.value("resize", None)
    if resize is not None:
        resize = _read_sizes(section.path("resize"), section.items("resize"), range(2, 3))
    if agreed := read_agreed(section, shape[0]):
        return {"shape": shape, "resize": resize, **agreed, **_read_table(section, shape)}
    constants: dict[str, list[float]] = {}
    for key, default in (("mean", [0.0]), ("std", [1.0])):
        values, path = section.items(key, default), section.path(key)
        if len(values) not in (1, shape[0]):
            raise GenesisError(path, f"expected 1 value or {shape[0]}, got {len(values)}")
        constants[key] = [read_number(f"{path}[{i}]", value) for i, value in enumerate(values)]
    check_deviations(section.path("std"), constants["std"])
    return {"shape": shape, "resize": resize, **constants, **_read_table(section, shape)}


def has_own_empty(input_: Mapping[str, Any]) -> bool:
    """Says whether a column lists texts of its own for an empty cell, which needs a protocol above 4."""
    return any("empty" in column for column in input_.get("columns") or ())


def has_later_terms(input_: Mapping[str, Any]) -> bool:
    """Says whether the input has terms that need a protocol above 3: histograms, a feature or a text for empty cells,
    or empty cells filled by a mean that members agree on."""
    missing = input_.get("missing", "")
    is_counted = any("edges" in column for column in input_.get("columns") or ())
    return is_counted or "empty" in input_ or missing.endswith(FLAG) or (missing == "mean" and "normalize" in input_)


def _read_table(section: Section, shape: Sequence[int]) -> dict[str, Any]:
    """Reads how a table's columns become features; each column holds numbers or a category. Settings that the input
    lacks are left out."""
    told: dict[str, Any] = {}
    for key, choice in OF_TABLES.items():
        if section.has(key) and choice and (value := section.text(key)) != "refuse":
            check_choice(section.path(key), value, choice)
            told[key] = value
    if section.has("empty"):
        told["empty"] = _read_empty(section)
    if told and len(shape) == 3 and list(shape[1:]) != [1, 1]:
        raise GenesisError(section.path(next(iter(told))), "expected none for images")
    if section.value("columns", None) is None:
        return told
    columns: list[dict[str, Any]] = []
    num_features, flag = 0, int(told.get("missing", "").endswith(FLAG))
    for i, item in enumerate(section.items("columns")):
        column = Section(f"{section.path('columns')}[{i}]", item, ("name", "values", "edges", "empty"))
        columns.append({"name": column.text("name")})
        if column.has("values"):
            values = column.texts("values")
            check_unique(column.path("values"), values)
            columns[-1]["values"] = list(values)
            num_features += len(values) + int("unknown" in told) + flag
        else:
            num_features += 1 + flag
        if column.has("edges"):
            if "values" in columns[-1] or section.value("normalize", None) is None:
                raise GenesisError(column.path("edges"), "expected none for a category, or where nothing is agreed on")
            columns[-1]["edges"] = _read_edges(column)
        if column.has("empty"):
            columns[-1]["empty"] = _read_empty(column)
    check_unique(section.path("columns"), [column["name"] for column in columns], "name")
    if list(shape) != [num_features, 1, 1]:
        raise GenesisError(section.path("columns"), f"expected {shape[0]} features, as in shape, got {num_features}")
    return {"columns": columns, **told}


def _read_edges(column: Section) -> list[float]:
    """Returns the numbers that separate the bins of a histogram; the first and the last bin are open at the outer
    end."""
    path = column.path("edges")
    edges = [read_number(f"{path}[{i}]", value) for i, value in enumerate(column.items("edges"))]
    check_range("number of edges", len(edges), 1, MAX_EDGES, path=path)
    if any(low >= high for low, high in pairwise(edges)):
        raise GenesisError(path, "expected each number above the one before it")
    return edges


def _read_empty(section: Section) -> list[str]:
    """Returns the texts that stand for an empty cell."""
    path, texts = section.path("empty"), section.texts("empty")
    check_range("number of texts", len(texts), 1, MAX_EMPTY, path=path)
    check_unique(path, texts)
    for i, text in enumerate(texts):
        if not 1 <= len(text) <= MAX_EMPTY_CHARS or not text.isprintable() or text != text.strip():
            raise GenesisError(
                f"{path}[{i}]", f"expected 1 to {MAX_EMPTY_CHARS} printable characters, got {quote(text)}"
            )
    return list(texts)


def check_deviations(path: str, values: Sequence[float]) -> None:
    """Raises GenesisError unless all values are above 0."""
    for i, value in enumerate(values):
        if value <= 0:
            raise GenesisError(f"{path}[{i}]", f"expected more than 0, got {value:g}")


def _read_sizes(path: str, values: Sequence[object], counts: range) -> list[int]:
    if len(values) not in counts:
        wanted = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        raise GenesisError(path, f"expected {wanted} sizes, got {len(values)}")
    sizes: list[int] = []
    for i, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65_536:
            raise GenesisError(f"{path}[{i}]", f"expected 1 to 65536, got {quote(value)}")
        sizes.append(value)
    return sizes
