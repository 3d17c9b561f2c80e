"""A virtual environment of a test's own, on top of the one that runs the tests: what an example needs is installed into
it, and torch is not there a second time.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALL_S = 1500.0


def make_private_venv(directory: Path, *packages: str) -> Path:
    """Makes an environment with these packages, which also sees those of the tests and fednode's own. Returns its
    Python."""
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    (site,) = directory.glob("lib/python*/site-packages")
    own = [path for path in dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib")) if path]
    (site / "parent.pth").write_text("".join(f"{path}\n" for path in (*own, ROOT)))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stderr
    return python
