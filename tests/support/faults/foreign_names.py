"""A user's directory whose modules are called as our packages are, and `fednode` run from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from node.host.child import ROOT
from support.federation.real_nodes import COMMAND_S, Finished

# as pip writes it
START = "import sys\nfrom fednode.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def make_hostile_directory(directory: Path) -> Path:
    """Makes a directory with an `ml/`, a `chain/` and a `node.py` that nobody can import."""
    for name in ("ml", "chain"):
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text(f"raise RuntimeError('the user has a {name} of their own')\n")
    (directory / "node.py").write_text("raise RuntimeError('the user has a node of their own')\n")
    return directory


def make_environment(*first: Path) -> dict[str, str]:
    """Returns an environment with `first` before all else on PYTHONPATH, and our packages behind."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, first), ROOT])}


def run_as_user(place: Path, *arguments: object, path: tuple[Path, ...] = (), by_module: bool = False) -> Finished:
    """Runs `fednode` in the directory `place`, as pip's script starts it or by `python -m fednode`."""
    script = place.parent / "bin" / "fednode"
    script.parent.mkdir(exist_ok=True)
    script.write_text(START)
    start = ("-m", "fednode") if by_module else (str(script),)
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        cwd=place,
        env=make_environment(*path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
