"""The modules that the page is built on are those that `vendor.json` says, and it loads nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "node" / "web" / "page"
VENDOR = PAGE / "vendor"


def test_vendored_modules_are_those_that_are_listed() -> None:
    entries = json.loads((VENDOR / "vendor.json").read_text())
    assert [entry["package"] for entry in entries] == ["preact", "htm", "uplot"]
    listed = {"vendor.json"}
    for entry in entries:
        assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])
        assert (VENDOR / f"{entry['package']}.LICENSE").stat().st_size > 500
        listed.add(f"{entry['package']}.LICENSE")
        for file in entry["files"]:
            assert hashlib.sha256((VENDOR / file["file"]).read_bytes()).hexdigest() == file["sha256"], file
            listed.add(file["file"])
    assert {path.name for path in VENDOR.iterdir()} == listed


def test_modules_import_what_is_there_by_relative_paths() -> None:
    for module in PAGE.rglob("*.js"):
        for name in re.findall(r'^(?:import|export)\b.*?\bfrom ?"([^"]+)"', module.read_text(), re.MULTILINE):
            assert name.startswith("."), f"{module.name}: {name}"
            assert (module.parent / name).is_file(), f"{module.name}: {name}"


def test_own_modules_write_no_markup_and_keep_files_short() -> None:
    for module in [*PAGE.glob("*.js"), *(PAGE / "views").glob("*.js")]:
        text = module.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text), module
        assert "dangerouslySet" not in text, module
        assert len(text.splitlines()) <= 450, module
