"""`fednode assets`: what comes with the program is written, and nothing is written over unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from node.cli import main

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "docker-compose.yml",
    "deploy/docker-compose.gpu.yml",
    "deploy/systemd/fednode@.service",
    "deploy/monitoring/rules.yml",
    "deploy/monitoring/grafana/dashboards/fednode.json",
}
Captured = pytest.CaptureFixture[str]


def test_every_file_is_the_repositorys_and_is_listed(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "new" / "assets"
    assert main(["assets", str(out)]) == 0
    listed = [Path(line).relative_to(out) for line in capsys.readouterr().out.splitlines()]
    assert {str(name) for name in listed} >= EXPECTED
    assert sorted(listed) == sorted(file.relative_to(out) for file in out.rglob("*") if file.is_file())
    for name in listed:
        assert (out / name).read_bytes() == (ROOT / name).read_bytes()
        assert not (out / name).is_symlink()


def test_what_the_compose_files_mount_is_among_them(tmp_path: Path) -> None:
    assert main(["assets", str(tmp_path)]) == 0
    for file in ("docker-compose.yml", "deploy/docker-compose.gpu.yml"):
        for service in yaml.safe_load((tmp_path / file).read_text())["services"].values():
            for volume in service.get("volumes", []):
                if volume.startswith("${FEDNODE_MONITORING:-"):
                    assert (
                        tmp_path / volume.removeprefix("${FEDNODE_MONITORING:-").split(":")[0].replace("}", "")
                    ).exists()


def test_files_that_are_there_are_kept_unless_forced(tmp_path: Path, capsys: Captured) -> None:
    mine = tmp_path / "docker-compose.yml"
    mine.write_text("mine\n")
    assert main(["assets", str(tmp_path)]) == 78
    assert f"{mine}: expected no such file; --force writes over" in capsys.readouterr().err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [mine]
    assert mine.read_text() == "mine\n"

    assert main(["assets", str(tmp_path), "--force", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["directory"] == str(tmp_path)
    assert set(facts["files"]) >= EXPECTED
    assert mine.read_bytes() == (ROOT / "docker-compose.yml").read_bytes()
    assert main(["assets", str(tmp_path)]) == 78
    assert f" and {len(facts['files']) - 1} more: expected no such file" in capsys.readouterr().err


def test_a_link_that_is_there_is_replaced_and_not_followed(tmp_path: Path, capsys: Captured) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/docker-compose.yml").symlink_to(elsewhere)
    assert main(["assets", str(tmp_path / "out")]) == 78
    assert main(["assets", str(tmp_path / "out"), "--force"]) == 0
    assert elsewhere.read_text() == "kept\n"
    assert not (tmp_path / "out/docker-compose.yml").is_symlink()


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").touch()
    assert main(["assets", str(tmp_path / "file")]) == 78
    assert capsys.readouterr().err.startswith(f"fednode: {tmp_path}/file/")
