"""The reference in docs/ is what docs/generate.py makes of the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# In a process of its own: the script is no module of a package, and imports much.
GENERATE = "import json, sys; sys.path.insert(0, 'docs'); import generate; json.dump(generate.generate(), sys.stdout)"


@pytest.mark.slow
def test_generating_the_reference_again_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", GENERATE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fresh = json.loads(done.stdout)
    written = [*(ROOT / "docs" / "reference").rglob("*.md"), ROOT / "docs" / "reference" / "openapi.json"]
    committed = {str(file.relative_to(ROOT / "docs")): file.read_text() for file in written}
    stale = [path for path in sorted(fresh.keys() | committed.keys()) if fresh.get(path) != committed.get(path)]
    assert not stale, f"run `make reference` and commit docs/reference: {stale} differ"
