"""Reach of a change in a small tree: through imports, what is loaded by need, and the README's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from circles.imports import Source, read_sources
from circles.reach import find_reached, list_tests
from circles.readme import Rule

TREE = {
    "chain/tip.py": "",
    "chain/votes.py": "def g():\n    import chain.tip",
    "node/app.py": 'MODULES = ("node.backup", "node.keys")',
    "node/backup.py": 'import chain.votes\n\ndef register(app):\n    app.command("backup")(run)\n\ndef run(): ...\n',
    "node/keys.py": 'def register(app):\n    app.command("keygen")(generate)\n\ndef generate(): ...\n',
    "tests/conftest.py": "import support.common",
    "tests/support/common.py": "",
    "tests/support/net.py": "import node.app",
    "tests/unit/test_votes.py": "from chain import votes",
    "tests/cli/test_backup.py": 'from node.app import main\nmain(["backup"])',
    "tests/cli/test_keys.py": 'from node.app import main\nmain(["keygen"])',
    "tests/cli/test_all.py": "from node.app import MODULES",
    "tests/e2e/conftest.py": "",
    "tests/e2e/test_demo.py": "import support.net\nimport chain.tip",
}
RULES = [
    Rule(("*",), ("pyproject.toml",)),
    Rule(("tests/e2e/*",), ("node/daemon.py", "node/web/*")),
    Rule(("-",), (".gitignore",)),
]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Source]:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return read_sources(tmp_path)


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ({"chain/votes.py"}, {"unit/test_votes", "cli/test_backup", "cli/test_all"}),
        ({"chain/tip.py"}, {"unit/test_votes", "cli/test_backup", "cli/test_all", "e2e/test_demo"}),
        ({"node/app.py"}, {"cli/test_backup", "cli/test_keys", "cli/test_all"}),
        ({"node/keys.py"}, {"cli/test_keys", "cli/test_all"}),
        ({"tests/support/net.py"}, {"e2e/test_demo"}),
        ({"tests/e2e/conftest.py"}, {"e2e/test_demo"}),
        ({"tests/cli/test_keys.py", ".gitignore"}, {"cli/test_keys"}),
        ({"node/web/page/index.html"}, {"e2e/test_demo"}),
        ({".gitignore"}, set()),
        (set(), set()),
    ],
)
def test_who_stands_on_what_has_changed_is_reached(
    sources: dict[str, Source], changed: set[str], reached: set[str]
) -> None:
    assert find_reached(sources, RULES, changed).keys() == {f"tests/{name}.py" for name in reached}


@pytest.mark.parametrize("name", ["pyproject.toml", "tests/support/common.py", "data/unknown.bin", "chain/deleted.py"])
def test_what_all_stand_on_and_what_nobody_knows_reaches_all(sources: dict[str, Source], name: str) -> None:
    assert list(find_reached(sources, RULES, {name, "node/keys.py"})) == list_tests(sources)


def test_each_is_named_with_what_reaches_it(sources: dict[str, Source]) -> None:
    reached = find_reached(sources, RULES, {"chain/votes.py", "node/daemon.py"})
    assert reached["tests/unit/test_votes.py"] == "chain/votes.py"
    assert reached["tests/e2e/test_demo.py"] == "node/daemon.py"
    assert find_reached(sources, RULES, {"LOGO"})["tests/cli/test_keys.py"] == "LOGO, of which nothing is known"
