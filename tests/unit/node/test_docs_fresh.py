"""The reference in docs/ is what docs/generate.py makes of the code, and the rest of it can be made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# In a process of its own: the script is no module of a package, and imports much.
GENERATE = """
import json, sys
sys.path.insert(0, "docs")
import generate
json.dump([generate.KEPT, generate.generate()], sys.stdout)
"""


@pytest.mark.slow
def test_generating_the_reference_again_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", GENERATE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, fresh = json.loads(done.stdout)
    stale = [path for path in kept if fresh[path] != (ROOT / "docs" / path).read_text()]
    assert not stale, f"run `make reference` and commit docs/reference: {stale} differ"
    others = [f"docs/{path}" for path in fresh.keys() - set(kept)]
    command = ["git", "check-ignore", *others, *(f"docs/{path}" for path in kept)]
    if (ROOT / ".git").exists():
        ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
        assert sorted(ignored) == sorted(others)
