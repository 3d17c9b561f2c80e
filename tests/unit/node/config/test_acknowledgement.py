"""FedEDS sends transformed samples away: who makes a network of it, and who checks a configuration, is told plainly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.cli import main
from node.config.genesis_file import describe_sharing, load_genesis
from node.config.node_config import load_config
from node.testnet.layout import TestnetSpec, make_testnet

SPEC = TestnetSpec(
    num_nodes=2, method="fededs", partition="iid", rounds=3, settings=("model.hidden=[8]",), i_understand=True
)
PLAINLY = ("learned transformation of each member's samples", "obfuscation, not cryptography", "there is no key")
NOT_APPROVED = "--set", "consensus.approves_genesis=false"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_testnet(tmp_path_factory.mktemp("fededs") / "cluster", SPEC).directory


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "command",
    [
        lambda config: ("--config", config, "--check", *NOT_APPROVED),
        lambda config: ("config", "check", "--config", config, *NOT_APPROVED),
    ],
    ids=["start --check", "config check"],
)
def test_without_it_the_checks_say_plainly_what_would_leave(
    capsys: Captured, cluster: Path, command: Callable[[Path], tuple[str | Path, ...]]
) -> None:
    code, out, err = run(capsys, *command(cluster / "node0.yaml"))
    assert code == 0
    assert out.startswith("ok: ")
    (note,) = [line for line in err.splitlines() if line.startswith("note: ")]
    assert note.startswith(f"note: {cluster}/genesis.yaml: method.name: fededs sends ")
    assert all(words in note for words in PLAINLY)
    assert note.endswith("with consensus.approves_genesis: true in its own configuration (got false)")
    assert not (cluster / "data").exists()


def test_with_it_the_checks_pass(capsys: Captured, cluster: Path) -> None:
    assert run(capsys, "config", "check", "--config", cluster / "node1.yaml")[::2] == (0, "")
    code, out, _ = run(capsys, "--config", cluster / "node1.yaml", "--check")
    assert code == 0
    assert out.startswith("ok: node1 is node1 (")


def test_a_configuration_is_checked_without_genesis_as_before(capsys: Captured, cluster: Path, tmp_path: Path) -> None:
    config = cluster / "node0.yaml"
    assert run(capsys, "config", "check", "--config", config, *NOT_APPROVED, "--set", "genesis_file=nope.yaml")[0] == 0
    (tmp_path / "genesis.yaml").write_text("method: nonsense\n")
    broken = f"genesis_file={tmp_path}/genesis.yaml"
    assert run(capsys, "config", "check", "--config", config, *NOT_APPROVED, "--set", broken)[0] == 0


def test_it_is_asked_for_where_samples_are_shared_and_nowhere_else(tmp_path: Path) -> None:
    annealed = replace(SPEC, settings=(*SPEC.settings, "share=false"), i_understand=False)
    for name, spec in (("annealed", annealed), ("fedavg", replace(SPEC, method="fedavg"))):
        directory = make_testnet(tmp_path / name, spec).directory
        genesis = load_genesis(directory / "genesis.yaml").genesis
        assert describe_sharing(tmp_path, genesis, is_approved=False) is None
        assert "approves_genesis" not in (directory / "node0.yaml").read_text()


@pytest.mark.parametrize("command", [("testnet", "-o"), ("demo", "--keep")])
def test_a_network_is_made_only_by_who_has_said_so(capsys: Captured, tmp_path: Path, command: tuple[str, str]) -> None:
    name, option = command
    code, out, err = run(capsys, name, "--method", "fededs", option, tmp_path / "cluster")
    assert (code, out) == (78, "")
    assert err.startswith("fednode: --method: fededs sends ")
    assert all(words in err for words in PLAINLY)
    assert "--i-understand" in err
    assert not (tmp_path / "cluster").exists()


def test_a_network_made_knowingly_says_so_in_every_configuration(capsys: Captured, tmp_path: Path) -> None:
    arguments = ("testnet", "-n", "2", "--method", "fededs", "--i-understand", "-o", tmp_path / "cluster")
    assert run(capsys, *arguments)[0] == 0
    for name in ("node0", "node1"):
        assert load_config(tmp_path / "cluster" / f"{name}.yaml").consensus.approves_genesis


@pytest.mark.parametrize("command", ["testnet", "demo"])
def test_help_says_what_it_is_about(capsys: Captured, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = run(capsys, command, "--help")
    assert "--i-understand" in out
    assert "obfuscation" in out
    assert "fededs" in out
