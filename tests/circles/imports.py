"""Imports of every module in the checkout, read from its source without running it.

Beside what stands in import statements, at the top or in a function, a module named by a string counts, as in
`[sys.executable, "-m", "node.cli"]`. Where a constant lists modules that are loaded by need, such as the commands and
the methods, each is imported only by who asks for it: who has one of its words, the constant's name for all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("fednode", "node", "chain", "ml", "tests", "docs", "deploy", "proto")
ROOTS = ("tests", "docs")  # whose modules are imported without the folder's name too
WORD, QUOTED = re.compile(r"\w+"), re.compile(r"""['"]([\w-]+)(?=['"])""")


@dataclass(frozen=True, slots=True)
class Source:
    """A module: what it imports, what its constants list with the name of the constant, all its words, and those by
    which it is asked for itself. Modules are paths from the root."""

    imports: frozenset[str]
    listed: frozenset[tuple[str, str]]
    words: frozenset[str]
    calls: frozenset[str]


def read_sources(root: Path) -> dict[str, Source]:
    """Reads every module below the root."""
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    names = _name_modules(path.relative_to(root) for path in paths)
    return {str(path.relative_to(root)): parse_source(path.read_text(), path.stem, names) for path in paths}


def _name_modules(paths: Iterable[Path]) -> dict[str, str]:
    """The path of each module by each of its names."""
    names = {}
    for path in paths:
        parts = path.with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        names[".".join(parts)] = str(path)
        if parts[0] in ROOTS:
            names.setdefault(".".join(parts[1:]), str(path))
    return names


def parse_source(text: str, stem: str, names: Mapping[str, str]) -> Source:
    """Parses the source of a module. `stem` is its own name, and `names` has the paths of all modules."""
    tree = ast.parse(text)
    tables = [(name, table) for statement in tree.body for name, table in _find_tables(statement)]
    in_tables = {id(node) for _, table in tables for node in ast.walk(table)}
    imported = {
        path
        for node in ast.walk(tree)
        if id(node) not in in_tables or isinstance(node, ast.Import | ast.ImportFrom)
        for path in _resolve(node, names)
    }
    listed = {
        (path, name)
        for name, table in tables
        for node in ast.walk(table)
        for path in [*_resolve(node, names), *_resolve_prefix(node, names)]
    }
    words = {*WORD.findall(text), *(f'"{word}"' for word in QUOTED.findall(text))}
    return Source(frozenset(imported), frozenset(listed), frozenset(words), frozenset(_list_calls(tree, stem)))


def _find_tables(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The constants of a module that are made of several things."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            if isinstance(value, ast.Dict | ast.DictComp | ast.Tuple | ast.List | ast.Set):
                yield name, value


def _resolve(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    """The modules that a node imports, with the packages around them; none of ours for most."""
    found: list[str] = []
    match node:
        case ast.Import(names=aliases):
            found = [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(module), names=aliases):
            found = [module, *(f"{module}.{alias.name}" for alias in aliases)]
        case ast.Constant(value=str(text)) if "." in text:
            name = text.partition(":")[0]  # as in "ml.methods.dfpl:Dfpl"
            found = [name, f"{name}.__main__"] if name in names else []
    for name in found:
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            if path := names.get(".".join(parts[:i])):
                yield path


def _resolve_prefix(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    """The modules of a package that a formatted string opens with, as in f"ml.data.readers.{name}"."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text.endswith("."):
            yield from (path for name, path in names.items() if name.startswith(text))


def _list_calls(tree: ast.Module, stem: str) -> Iterator[str]:
    """The words by which a module is asked for: those it defines for others, and its commands in quotes or, where it
    has none, its name."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and statement.name[0] != "_":
            yield statement.name
    has_commands = False
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="command"), args=[ast.Constant(value=str(word)), *_]):
                has_commands = True
                yield f'"{word}"'
    if not has_commands:
        yield stem
