"""The files that docs/ and the pages beside it name are there, and links between them lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "deploy/README.md")]
PAGES = [*BESIDE, *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
NAMED = re.compile(r"\b(?:chain|ml|node|tests|deploy|proto)/[\w./-]*\w\.(?:py|yaml|yml|proto|png|txt|service)\b")
BESIDE_A_FILE = re.compile(r"`((?:chain|ml|node)/[\w/]+\.py)`(?: \(|, )((?:`\w+`(?:, | and )?)+)")
WORD = re.compile(r"`(\w+)`")
LINKED = re.compile(r"\]\((?!https?:)([^)#]+)")  # Sphinx looks after the links within docs/

TESTS = {file.name for file in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(page: Path) -> None:
    named = {name for name in NAMED.findall(page.read_text()) if "NAME" not in name}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    tests = set(re.findall(r"\btest_\w+\.py\b", page.read_text()))
    assert tests <= TESTS, tests - TESTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_beside_a_file_are_defined_in_it(page: Path) -> None:
    beside = [(file, name) for file, names in BESIDE_A_FILE.findall(page.read_text()) for name in WORD.findall(names)]
    assert [(file, name) for file, name in beside if name not in list_definitions((ROOT / file).read_text())] == []


def list_definitions(source: str) -> set[str]:
    """Returns the names of the functions, classes and variables that a module defines, in its classes too."""
    return set(_find_definitions(ast.parse(source)))


def _find_definitions(scope: ast.Module | ast.ClassDef) -> Iterator[str]:
    for statement in scope.body:
        match statement:
            case ast.ClassDef(name=name):
                yield name
                yield from _find_definitions(statement)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_a_name_that_a_module_imports_or_mentions_is_no_definition_of_it() -> None:
    source = "from a import Spoiled\nLIMIT = 2\nclass Vote:\n    view: int = 0\n    def sign(self): raise Lost\n"
    assert list_definitions(source) == {"LIMIT", "Vote", "view", "sign"}


def test_files_are_named_at_all() -> None:
    named = {name for page in PAGES for name in NAMED.findall(page.read_text())}
    assert {"chain/finality.py", "ml/specs/peers.py", "deploy/requirements.txt"} <= named


@pytest.mark.parametrize("page", BESIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_beside_the_docs_lead_somewhere(page: Path) -> None:
    assert [link for link in LINKED.findall(page.read_text()) if not (page.parent / link).exists()] == []
