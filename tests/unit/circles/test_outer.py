"""Outer files that a change reaches: by the table alone, all of them where nobody knows what has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from circles.changes import ALL_PASSED, UnknownRevision, list_changed, read_base, write_base
from circles.outer import HUNT, PAGE, list_readers, show

README = """
| outer file | covers |
|---|---|
| `tests/test_nat.py` | `tests/nat.py` |
| `tests/fuzz` | `tests/fuzz/*` |
| `tests/web` | `node/web/*` |
"""
TREE = {
    "chain/codec.py": "",
    "chain/block.py": "",
    "node/web/site.py": "",
    "tests/nat.py": "",
    "tests/fuzz/targets.py": "from chain import codec\nfrom fuzz.bytes import check\n",
    "tests/fuzz/bytes.py": "from chain.block import Block\n",
    "tests/fuzz/other.py": "import nothing\n",
    "tests/test_nat.py": "pytestmark = pytest.mark.outer",
    "tests/test_usual.py": "",
    "tests/README.md": README,
}


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one commit, at which everything has passed."""
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    assert write_base(tmp_path, git(tmp_path, "rev-parse", "HEAD")) == 0
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("tests/nat.py", "tests/test_nat.py"),
        ("tests/test_nat.py", "tests/test_nat.py"),
        ("tests/fuzz/other.py", HUNT),
        ("chain/codec.py", HUNT),
        ("chain/block.py", HUNT),
        ("node/web/site.py", PAGE),
        ("chain/new.py", ""),
        ("tests/test_usual.py", ""),
    ],
)
def test_an_outer_file_is_reached_by_what_it_covers(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, reached: str
) -> None:
    (root / name).write_text("pytestmark = pytest.mark.outer  # changed" if "test_nat" in name else "# changed")
    assert show(root, read_base(root)) == 0
    said = capsys.readouterr()
    assert said.out.strip() == reached
    assert not reached or f"  {reached} ({name})" in said.err


def test_where_git_does_not_know_the_base_all_is_reached(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, "0" * 40) == 0
    said = capsys.readouterr()
    assert said.out.split() == [HUNT, PAGE, "tests/test_nat.py"]
    assert "nobody knows what has changed" in said.err


def test_the_readers_of_the_hunt_are_what_its_targets_import_themselves(root: Path) -> None:
    assert list_readers(root) == ["chain/block.py", "chain/codec.py"]


def test_changes_are_those_of_commits_and_of_the_working_tree(root: Path) -> None:
    (root / "chain/codec.py").write_text("# changed")
    git(root, "mv", "chain/block.py", "chain/moved.py")
    git(root, "commit", "--quiet", "--all", "--message", "two")
    (root / "tests/nat.py").write_text("# changed")
    (root / "tests/new.py").write_text("")
    expected = {"chain/codec.py", "chain/block.py", "chain/moved.py", "tests/nat.py", "tests/new.py", str(ALL_PASSED)}
    assert list_changed(root, read_base(root)) == expected
    with pytest.raises(UnknownRevision):
        list_changed(root, "no-such-branch")


def test_only_what_is_committed_has_passed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = read_base(root)
    assert write_base(root, git(root, "rev-parse", "HEAD")) == 1  # the file itself is new
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "two")
    assert write_base(root, base) == 1
    assert read_base(root) == base
    assert write_base(root, git(root, "rev-parse", "HEAD")) == 0
    assert read_base(root) != base
