"""Imports as they are read from source: statements anywhere, names in strings, and lists of what is loaded by need."""

from __future__ import annotations

from pathlib import Path

import pytest

from circles.imports import parse_source, read_sources

NAMES = {
    "node": "node/__init__.py",
    "node.cli": "node/cli/__init__.py",
    "node.cli.__main__": "node/cli/__main__.py",
    "node.cli.backup": "node/cli/backup.py",
    "node.cli.keys": "node/cli/keys.py",
    "node.errors": "node/errors.py",
}
ABOVE = {"node/__init__.py", "node/cli/__init__.py"}


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("import node.errors", {"node/__init__.py", "node/errors.py"}),
        ("from node import errors", {"node/__init__.py", "node/errors.py"}),
        ("from node.cli.backup import backup", {*ABOVE, "node/cli/backup.py"}),
        ("def f():\n    from node.errors import NodeError", {"node/__init__.py", "node/errors.py"}),
        ('RUN = ["python", "-m"]\nrun("node.cli")', {*ABOVE, "node/cli/__main__.py"}),
        ('PLACE = "node.cli.keys:Keys"', {*ABOVE, "node/cli/keys.py"}),
        ('"""About node.errors."""\nimport os\nx = "node"', set()),
    ],
)
def test_what_a_module_imports(text: str, imports: set[str]) -> None:
    source = parse_source(text, "one", NAMES)
    assert source.imports == imports
    assert source.listed == set()


@pytest.mark.parametrize(
    "text",
    [
        'MODULES = ("node.cli.backup", "node.cli.keys")',
        'MODULES: dict[str, str] = {"a": "node.cli.backup", "b": "node.cli.keys:Keys"}',
        'MODULES = {name: f"node.cli.{name}" for name in ("backup", "keys")}',
    ],
)
def test_modules_that_a_constant_lists_are_loaded_by_need(text: str) -> None:
    source = parse_source(text, "one", NAMES)
    assert {("node/cli/backup.py", "MODULES"), ("node/cli/keys.py", "MODULES")} <= source.listed
    assert source.imports == set()


def test_a_module_is_asked_for_by_what_it_defines_and_by_its_commands() -> None:
    text = 'def register(app):\n    app.command("keygen")(make)\n\ndef make(): ...\n\ndef _check(): ...\n'
    assert parse_source(text, "keys", NAMES).calls == {"register", "make", '"keygen"'}


def test_a_module_without_commands_is_asked_for_by_its_name() -> None:
    assert parse_source("class Moon: ...", "moon", NAMES).calls == {"moon", "Moon"}


def test_words_are_those_of_the_source_and_those_in_quotes() -> None:
    words = parse_source("main(['log-level', x]); f'{y}: keygen'", "one", NAMES).words
    assert {"main", "x", "keygen", '"log-level"'} <= words
    assert '"keygen"' not in words


def test_modules_of_tests_are_found_without_their_folder(tmp_path: Path) -> None:
    (tmp_path / "tests/support").mkdir(parents=True)
    (tmp_path / "tests/support/one.py").write_text("import chain")
    (tmp_path / "tests/test_a.py").write_text("from support.one import x")
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain/__init__.py").write_text("")
    sources = read_sources(tmp_path)
    assert sources.keys() == {"chain/__init__.py", "tests/support/one.py", "tests/test_a.py"}
    assert sources["tests/test_a.py"].imports == {"tests/support/one.py"}
    assert sources["tests/support/one.py"].imports == {"chain/__init__.py"}
