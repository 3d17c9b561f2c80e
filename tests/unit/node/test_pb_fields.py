"""No field on the wire ever changes under its number: proto/fields.txt remembers them all, proto/fields.py compares."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[3] / "proto"
KEPT = PROTO / "fields.txt"


def compare(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, str(PROTO / "fields.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PROTO.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr


def test_every_field_is_what_it_once_was_and_is_remembered() -> None:
    assert compare() == (0, "")


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("fednode.v1.NodeStatus 7 single uint64 height", "single uint64 high", "it was single uint64 high, and is"),
        ("fednode.v1.Status 6 single bool contributes", "single uint32 contributes", "and is single bool contributes"),
        ("fednode.v1.NodeStatus 26 optional double accuracy", "single double accuracy", "and is optional double"),
        ("fednode.v1.GetBlockRequest 2 single string id of which", "single string id", "and is single string id of"),
        ("fednode.v1.ListRequest 1 optional uint64 first as from", "optional uint64 first", "first as from"),
    ],
)
def test_another_name_type_label_or_place_under_an_old_number_is_refused(
    tmp_path: Path, line: str, other: str, said: str
) -> None:
    text = KEPT.read_text()
    assert text.count(f"{line}\n") == 1
    kept = tmp_path / "fields.txt"
    kept.write_text(text.replace(f"{line}\n", f"{' '.join(line.split(' ')[:2])} {other}\n"))
    before = kept.read_text()
    for arguments in ((kept,), ("--add", kept)):
        code, err = compare(*arguments)
        assert (code, err.count("\n")) == (1, 1)
        assert re.search(re.escape(said), err), err
    assert kept.read_text() == before


def test_the_number_of_a_field_that_is_gone_has_to_be_reserved(tmp_path: Path) -> None:
    kept = tmp_path / "fields.txt"
    kept.write_text(f"{KEPT.read_text()}fednode.v1.NodeStatus 999 single uint64 gone\n")
    code, err = compare(kept)
    assert code == 1
    assert "single uint64 gone is gone; say `reserved 999;` in the .proto" in err


def test_what_is_new_has_to_be_remembered(tmp_path: Path) -> None:
    lines = KEPT.read_text().splitlines(keepends=True)
    kept = tmp_path / "fields.txt"
    kept.write_text("".join(lines[1:]))
    code, err = compare(kept)
    assert (code, err.count("\n")) == (1, 1)
    assert "is new; run proto/generate.sh" in err
    assert compare("--add", kept) == (0, "")
    assert kept.read_text() == KEPT.read_text()
