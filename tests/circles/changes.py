"""Changes since a revision, as git tells them, and the revision at which everything has passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALL_PASSED = Path("tests/all-passed")


class UnknownRevision(SystemExit):
    """Git does not know the revision: fetch it, or name another."""


def list_changed(root: Path, base: str) -> frozenset[str]:
    """Returns the files that are not as they were at `base`, new and deleted ones too, from the root of the checkout.
    Raises UnknownRevision."""
    known = _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}", check=False)
    if known.returncode != 0:
        raise UnknownRevision(f"expected a revision that git knows, got {base!r}")
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", known.stdout.strip())
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset(name for name in (changed.stdout + new.stdout).split("\0") if name)


def read_base(root: Path) -> str:
    """Reads at which commit everything but the long tests has passed."""
    return (root / ALL_PASSED).read_text().strip()


def write_base(root: Path, commit: str) -> int:
    """Notes that everything has passed at this commit. Returns 1, and says why, where that is not what was tested."""
    if _git(root, "rev-parse", "HEAD").stdout.strip() != commit or _git(root, "status", "--porcelain").stdout:
        print(f"{ALL_PASSED} stays as it is: what has passed is no commit, or HEAD has moved since", file=sys.stderr)
        return 1
    (root / ALL_PASSED).write_text(f"{commit}\n")
    print(f"{ALL_PASSED} has {commit}: commit it")
    return 0


def _git(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=check)
