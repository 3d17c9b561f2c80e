"""The example packages as if they had been installed: their files in a directory on the search path, with the metadata
that an installer writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
METHOD, MODEL, READER, LOOP, TEXT = (
    f"fednode-example-{what}" for what in ("method", "model", "reader", "loop", "text")
)


def put_plugin(target: Path, name: str, *, as_name: str | None = None, version: str = "1.0") -> Path:
    """Copies an example's package into `target`, under another distribution's name if given. Returns the directory of
    its code."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())
    package: str = project["tool"]["setuptools"]["packages"][0]
    shutil.copytree(
        EXAMPLES / name / package, target / package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    info = target / f"{(as_name or name).replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {as_name or name}\nVersion: {version}\n")
    groups = project["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    files = [*sorted((target / package).rglob("*.py")), info / "METADATA", info / "entry_points.txt", info / "RECORD"]
    (info / "RECORD").write_text("".join(f"{file.relative_to(target).as_posix()},,\n" for file in files))
    return target / package


def pip_install(target: Path, *names: str, sources: Path) -> None:
    """Installs the examples as a user would, into `target` alone. Asks no index and builds in copies in `sources`."""
    for name in names:
        shutil.copytree(EXAMPLES / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check")
    places = [str(sources / name) for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(target), *places],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
