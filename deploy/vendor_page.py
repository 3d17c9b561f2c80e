"""The modules that the page is built on, renewed from npm: `python deploy/vendor_page.py`, where npm is installed.

Each is a file of a package as it was published, or that file with its imports made relative, since a browser knows no
packages. `vendor.json` beside them says which version each is of, under which licence, and what SHA-256 the published
file and ours have; a test holds the files to it. Name versions to take others than those it has: `preact@11.2.0`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "node" / "web" / "page" / "vendor"
LIST = VENDOR / "vendor.json"

# What is taken of which package: the file in it, its name here, and imports to be made relative.
TAKEN: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "preact": [
        ("dist/preact.mjs", "preact.js", {}),
        ("hooks/dist/hooks.mjs", "hooks.js", {'"preact"': '"./preact.js"'}),
    ],
    "htm": [("dist/htm.mjs", "htm.js", {})],
    "uplot": [("dist/uPlot.esm.js", "uplot.js", {}), ("dist/uPlot.min.css", "uplot.css", {})],
}


def main(asked: list[str]) -> None:
    known = {entry["package"]: entry["version"] for entry in json.loads(LIST.read_text())} if LIST.exists() else {}
    wanted = known | dict(name.split("@", 1) for name in asked)
    entries = []
    for package, files in TAKEN.items():
        with tempfile.TemporaryDirectory() as folder:
            entries.append(_take(package, wanted.get(package, "latest"), files, Path(folder)))
    LIST.write_text(json.dumps(entries, indent=2) + "\n")


def _take(package: str, version: str, files: list[tuple[str, str, dict[str, str]]], folder: Path) -> dict[str, object]:
    """Writes the files of one package, and tells of them."""
    packed = subprocess.run(  # noqa: S603 (npm, with names from above)
        ["npm", "pack", "--silent", f"{package}@{version}"],  # noqa: S607
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    with tarfile.open(folder / packed.stdout.strip().splitlines()[-1]) as archive:
        archive.extractall(folder, filter="data")
    source = folder / "package"
    about = json.loads((source / "package.json").read_text())
    (VENDOR / f"{package}.LICENSE").write_bytes((source / "LICENSE").read_bytes())
    told = []
    for path, name, imports in files:
        data = (source / path).read_bytes()
        ours = data
        for old, new in imports.items():
            ours = ours.replace(old.encode(), new.encode())
        ours = b"\n".join(line for line in ours.split(b"\n") if not line.startswith(b"//# sourceMappingURL="))
        (VENDOR / name).write_bytes(ours)
        told.append({"file": name, "of": path, "sha256": _hash(ours), "published_sha256": _hash(data)})
    return {"package": package, "version": about["version"], "license": about["license"], "files": told}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
