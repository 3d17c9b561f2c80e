"""Words of the source: every module says what it is, and none begins with a question that a reader has to decode."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("chain", "deploy", "fednode", "ml", "node", "proto", "tests")
GENERATED = "_pb2"
QUESTIONS = frozenset(["how", "if", "what", "when", "where", "whether", "which", "who", "whom", "whose", "why"])


def find_fault(source: str) -> str | None:
    """Says what is wrong with the docstring of a module, None where nothing is."""
    words = (ast.get_docstring(ast.parse(source)) or "").split()
    if not words:
        return "no docstring"
    first = words[0].lower().partition("'")[0].rstrip(",:;.")
    return f"opens with {words[0]!r}" if first in QUESTIONS else None


def list_modules() -> list[Path]:
    """Every module of the product and the tests but the generated ones."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in found if GENERATED not in path.name)


def test_every_module_opens_with_a_noun_phrase_or_a_verb() -> None:
    modules = list_modules()
    assert len(modules) > 500  # a search that finds nothing proves nothing
    faults = {str(path): find_fault((ROOT / path).read_text()) for path in modules}
    assert {path: fault for path, fault in faults.items() if fault is not None} == {}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""The store of a node."""', None),
        ('"""Whatever a node keeps."""', None),
        ('"""What a store holds."""', "opens with 'What'"),
        ('"""Who: the members."""', "opens with 'Who:'"),
        ('"""\nWhat\'s kept."""', 'opens with "What\'s"'),
        ("import os", "no docstring"),
        ('"""  """', "no docstring"),
    ],
)
def test_a_module_without_a_noun_is_found(source: str, fault: str | None) -> None:
    assert find_fault(source) == fault
