"""The generated code in node/pb is what proto/generate.sh makes of proto/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def read_all(folder: Path) -> dict[str, str]:
    """Every generated file; not __init__.py, which is ours."""
    return {path.name: path.read_text() for path in sorted(folder.glob("*_pb2*.py*")) if path.suffix in (".py", ".pyi")}


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "proto" / "generate.sh", tmp_path], check=True, env=environment, capture_output=True)
    fresh, committed = read_all(tmp_path / "node" / "pb"), read_all(ROOT / "node" / "pb")
    assert fresh.keys() == committed.keys(), "run proto/generate.sh and commit node/pb"
    stale = [name for name, text in fresh.items() if committed[name] != text]
    assert not stale, f"run proto/generate.sh and commit node/pb: {stale} differ"
    assert {f"{path.stem}_pb2.py" for path in (ROOT / "proto").glob("*.proto")} <= fresh.keys()
