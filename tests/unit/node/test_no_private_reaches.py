"""Private names of the product: tests and benchmarks reach for none of them, but for those that are listed here with
the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("chain", "fednode", "ml", "node")
ALLOWED = {
    # A room of the library's face is private to its users; what it gives the others is public there.
    ("tests/unit/fednode/test_api.py", "fednode._settings"),
    ("tests/support/federation/memory_census.py", "_queue"),  # that of asyncio's queues
}
# Texts that are private names by chance: suffixes of metrics and of secrets, a folder, and a function of notebooks.
TEXTS = {"_count", "_sum", "_key", "_build", "_shown", "_images"}


def is_private(name: str) -> bool:
    """Not what Python and notebooks call, such as `__init__` and `_repr_png_`."""
    return name.startswith("_") and not name.endswith("_") and not name.startswith("__")


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.parent.name != "pb")


def read_nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def find_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a module defines: of functions, classes, attributes and arguments."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name


def find_modules(nodes: Iterable[ast.AST]) -> set[str]:
    """What a test has imported from elsewhere than the product: its private names are not the product's."""
    found = set()
    for node in nodes:
        match node:
            case ast.Import(names=names):
                found |= {(each.asname or each.name).split(".")[0] for each in names if not is_product(each.name)}
            case ast.ImportFrom(module=str(module), names=names) if not is_product(module):
                found |= {each.asname or each.name for each in names}
    return found


def is_product(module: str) -> bool:
    return module.split(".")[0] in PRODUCT


def get_root(node: ast.expr) -> str | None:
    """The name that a chain of attributes, calls and items begins with."""
    while True:
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case ast.Name(id=name):
                return name
            case _:
                return None


def find_reaches(source: str, private: set[str]) -> set[str]:
    """The private names of the product, of these, that a test names; those that it defines itself are its own."""
    nodes = read_nodes(source)
    theirs, foreign, found = private - set(find_names(nodes)), find_modules(nodes), set[str]()
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if is_product(module):
                if any(map(is_private, module.split("."))):
                    found.add(module)
                found |= {each.name for each in names if is_private(each.name)}
            case ast.Import(names=names):
                found |= {each.name for each in names if is_product(each.name) and "._" in each.name}
            case ast.Attribute(value=value, attr=name) if name in theirs:
                root = get_root(value)
                if root not in {"self", "cls", "super"} and root not in foreign:
                    found.add(name)
            case ast.keyword(arg=str(name)) if name in theirs:
                found.add(name)
            case ast.Constant(value=str(text)) if text in theirs - TEXTS or names_inside(text):
                found.add(text)
    return found


def names_inside(text: str) -> bool:
    """Whether a text is the path of something private in the product, as a patch takes it."""
    parts = text.split(".")
    return parts[0] in PRODUCT and all(map(str.isidentifier, parts)) and any(map(is_private, parts))


def list_private() -> set[str]:
    defined = (find_names(read_nodes(path.read_text())) for path in list_files(*PRODUCT))
    return {name for names in defined for name in names if is_private(name)}


@pytest.mark.slow
def test_no_test_reaches_for_a_private_name_of_the_product() -> None:
    private, files = list_private(), set(list_files("tests")) - {Path(__file__)}
    assert len(private) > 1000  # a search that finds nothing proves nothing
    assert len(files) > 500
    found = {(str(path.relative_to(ROOT)), name) for path in files for name in find_reaches(path.read_text(), private)}
    assert found == ALLOWED


def test_a_reach_is_found_however_it_is_written() -> None:
    private = {"_held", "_own"}
    for source in (
        "from node.p2p import _peers",
        "from fednode._settings import write",
        "import node._inside",
        "book._held.clear()",
        "get_service(net)._held = {}",
        "monkeypatch.setattr(module, '_held', None)",
        "monkeypatch.setattr('node.p2p.gossip._unknown', None)",
        "put(Gossip, _held=None)",
        "PATH = ('handler', '_held')",
    ):
        assert find_reaches(source, private), source
    for source in (
        "self._held = 1",
        "super()._held()",
        "import os\nos._held(1)",
        "from bench import masked\nmasked._held(1)",
        "class Site:\n    def _own(self): ...\nsite._own()",
        "thing._not_ours",
        "name = '_count'",
    ):
        assert not find_reaches(source, private), source
