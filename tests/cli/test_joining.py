"""The commands of a site that joins: a join file, a key and a configuration, a line for members."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chain.genesis import Genesis
from chain.join_file import JoinFile
from chain.join_request import JoinRequest
from chain.signing import encode_id
from node.cli import main
from node.config.federation import load_federation
from node.config.genesis_members import validate_membership
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.daemon import run_daemon
from node.errors import ConfigError
from support.federation.ledgers import make_ledgers

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Genesis, Path]:
    path = tmp_path_factory.mktemp("ledger")
    return make_ledgers(path, 3), path / "node1"


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def make_file(capsys: Captured, data_dir: Path, file: Path) -> str:
    code, out, err = run(capsys, "join-file", "-o", file, "--data-dir", data_dir)
    assert code == 0, err
    return out.strip()


def test_a_join_file_of_a_stopped_node_leads_to_its_head(
    capsys: Captured, ledger: tuple[Genesis, Path], tmp_path: Path
) -> None:
    genesis, data_dir = ledger
    file = tmp_path / "federation.join"
    shown = make_file(capsys, data_dir, file)
    joined = JoinFile.decode(file.read_bytes())
    assert shown == joined.describe_digest()
    assert joined.genesis == genesis
    assert joined.checkpoint.height == 3
    code, _, err = run(capsys, "join-file", "-o", file, "--data-dir", data_dir)
    assert (code, "expected no such file" in err) == (1, True)


def test_init_makes_a_site_that_joins(capsys: Captured, ledger: tuple[Genesis, Path], tmp_path: Path) -> None:
    genesis, data_dir = ledger
    file, site = tmp_path / "federation.join", tmp_path / "hospital-d"
    shown = make_file(capsys, data_dir, file)
    code, out, err = run(capsys, "init", site, "--join", file, "--advertise", "d.example:7050")
    assert code == 0, err
    assert shown in err
    checkpoint = JoinFile.decode(file.read_bytes()).checkpoint
    assert f"fednode chain show {checkpoint.height} says there: {checkpoint.id.hex()}" in err
    code, block, _ = run(capsys, "chain", "show", str(checkpoint.height), "--data-dir", data_dir)
    assert (code, checkpoint.id.hex() in block) == (0, True)  # as another member is asked to look up
    request = JoinRequest.decode(out, genesis.chain_id)
    assert (request.name, request.address) == ("hospital-d", "d.example:7050")
    assert request.made_ms > 1_700_000_000_000
    config = load_config(site / "node.yaml")
    assert config.join_file == site / "federation.join"
    assert open_identity(config).id == request.key
    federation = load_federation(config)
    assert federation.genesis == genesis
    assert federation.checkpoint == JoinFile.decode(file.read_bytes()).checkpoint
    assert federation.initial_model is None
    validate_membership(config, genesis, request.key)  # though genesis does not name it
    code, out, err = run(capsys, "start", "--config", site / "node.yaml", "--check")
    assert code == 0, err
    assert f"hospital-d ({encode_id(request.key)}) is no member and joins the" in out


def test_init_joins_by_a_genesis_too(capsys: Captured, ledger: tuple[Genesis, Path], tmp_path: Path) -> None:
    file = tmp_path / "genesis.yaml"
    file.write_text(json.dumps(ledger[0].to_mapping(), indent=1)[1:-1].replace("\n ", "\n"))
    file.write_text("# a genesis\n" + json.dumps(ledger[0].to_mapping()))
    code, out, err = run(capsys, "init", tmp_path / "d", "--join", file, "--advertise", "d:1", "--json")
    assert code == 0, err
    made = json.loads(out)
    assert JoinRequest.decode(made["request"], ledger[0].chain_id).name == "d"
    assert made["join_hash"] == JoinFile.at_genesis(ledger[0]).describe_digest()
    assert made["checkpoint"] == {"height": 0, "id": ledger[0].block0.id.hex()}


@pytest.mark.parametrize(
    ("content", "why"), [("{}", "fednode_join: is missing"), ("a: 1", "unknown key"), ("{ not json", "expected JSON")]
)
def test_init_that_cannot_join_leaves_nothing(capsys: Captured, tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "bad.join"
    file.write_text(content)
    code, out, err = run(capsys, "init", tmp_path / "d", "--join", file, "--advertise", "d:1")
    assert (code, out, (tmp_path / "d").exists()) == (78, "", False)
    assert why in err


def test_a_node_whose_chain_is_another_history_does_not_start(
    capsys: Captured, ledger: tuple[Genesis, Path], tmp_path: Path
) -> None:
    data_dir = ledger[1]
    file, site = tmp_path / "federation.join", tmp_path / "d"
    make_file(capsys, data_dir, file)
    joined = JoinFile.decode(file.read_bytes())
    file.write_bytes(replace(joined, header=replace(joined.header, nonce=joined.header.nonce + 1)).encode())
    code, _, err = run(capsys, "init", site, "--join", file, "--advertise", "d:1")
    assert code == 0, err
    shutil.copytree(data_dir, site / "data")
    with pytest.raises(ConfigError, match="another history than the join file's"):
        run_daemon(load_config(site / "node.yaml"))


def test_an_address_that_nobody_can_dial_is_refused(
    capsys: Captured, ledger: tuple[Genesis, Path], tmp_path: Path
) -> None:
    joined = JoinFile.at_genesis(ledger[0])
    file = tmp_path / "bad.join"
    file.write_bytes(replace(joined, addresses={ledger[0].founders[0].key: "nowhere"}).encode())
    code, _, err = run(capsys, "init", tmp_path / "d", "--join", file, "--advertise", "d:1")
    assert (code, "host:port" in err) == (78, True)


def test_init_is_a_founder_s_or_a_joiner_s(capsys: Captured, tmp_path: Path) -> None:
    code, _, err = run(capsys, "init", tmp_path / "d", "--join", "a", "--genesis", "b")
    assert code == 2
    assert "not both" in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(("given", "got"), [("", "neither"), ("genesis_file: a\njoin_file: b\n", "both")])
def test_a_configuration_names_one_of_the_two(tmp_path: Path, given: str, got: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(
        given + "node: {identity_key_file: k, data_dir: d}\nnetwork: {listen: '127.0.0.1:1'}\ntraining: {seed: 1}\n"
    )
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert f"expected a genesis_file or a join_file (got {got})" in raised.value.problems[0]
