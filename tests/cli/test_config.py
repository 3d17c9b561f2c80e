"""`fednode config`: where each value comes from, and what differs from the defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.cli import main

Captured = pytest.CaptureFixture[str]

CONFIG = """\
node: {identity_key_file: a.key, data_dir: data}
network: {listen: "127.0.0.1:7050"}
genesis_file: genesis.yaml
training: {seed: 7, device: auto}
log: {level: warning}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return path


def ask(capsys: Captured, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_option_goes_before_the_environment_before_the_file_before_the_default(
    capsys: Captured, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_level(*options: str) -> tuple[str, str]:
        shown = ask(capsys, "config", "show", "-c", str(config), *options)
        return shown["config"]["log"]["level"], shown["origins"]["log.level"]

    assert get_level() == ("warning", f"{config}:5:7")
    monkeypatch.setenv("FEDNODE__LOG__LEVEL", "error")
    assert get_level() == ("error", "FEDNODE__LOG__LEVEL")
    assert get_level("--set", "log.level=debug") == ("debug", "--set log.level")
    monkeypatch.delenv("FEDNODE__LOG__LEVEL")
    config.write_text(CONFIG.replace("log: {level: warning}", ""))
    assert get_level() == ("info", "default")


def test_what_is_as_by_default_is_no_difference_even_where_it_is_written_out(capsys: Captured, config: Path) -> None:
    found = ask(capsys, "config", "diff", "-c", str(config), "--set", "network.limits.peer_rate_mib_s=8")["different"]
    by_key = {entry["key"]: entry for entry in found}
    assert by_key.keys() == {
        "node.identity_key_file",
        "node.data_dir",
        "genesis_file",
        "network.listen",
        "network.limits.peer_rate_mib_s",
        "training.seed",
        "log.level",
    }
    assert by_key["log.level"] == {
        "key": "log.level",
        "value": "warning",
        "default": "info",
        "required": False,
        "origin": f"{config}:5:7",
    }
    assert by_key["training.seed"]["required"]
    assert by_key["network.limits.peer_rate_mib_s"]["default"] == 20.0
    assert main(["config", "diff", "-c", str(config)]) == 0
    assert 'log.level: "warning"' in capsys.readouterr().out


def test_a_section_that_is_not_there_by_default_differs_in_what_was_written_of_it(
    capsys: Captured, config: Path
) -> None:
    part = "data.partition={scheme: iid, index: 0, of: 2, seed: 1}"
    found = ask(capsys, "config", "diff", "-c", str(config), "--set", part)["different"]
    written = {entry["key"]: entry["origin"] for entry in found if entry["key"].startswith("data.")}
    assert written == {f"data.partition.{key}": "--set data.partition" for key in ("scheme", "index", "of", "seed")}


def test_check_says_so_in_json(capsys: Captured, config: Path) -> None:
    assert ask(capsys, "config", "check", "-c", str(config)) == {"ok": True, "file": str(config)}


def test_the_schema_requires_what_a_node_cannot_do_without(capsys: Captured) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["required"]) == {"node", "network", "training"}  # and one of genesis_file and join_file
    assert schema["additionalProperties"] is False
