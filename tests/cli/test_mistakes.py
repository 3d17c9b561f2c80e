"""Mistakes of users, and the answers they get: what is wrong, what to do, and nobody's secret."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from node import daemon
from node.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mistakes") / "cluster"
    assert main(["testnet", "-n", "2", "-o", str(out), "--rounds", "2", "--base-port", "0"]) == 0
    return out


def complain(capsys: Captured, *arguments: str, code: int = 78) -> str:
    """The one line on stderr of a command that ends with `code` and prints nothing."""
    capsys.readouterr()
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fednode: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("command", [["start", "--config"], ["config", "check", "--config"], ["genesis", "show"]])
def test_a_key_named_in_the_place_of_a_configuration_is_not_repeated(
    capsys: Captured, cluster: Path, command: list[str]
) -> None:
    key = cluster / "keys" / "node0.key"
    secret = key.read_text().splitlines()[1]
    said = complain(capsys, *command, str(key))
    assert said == f"fednode: {key}: expected keys and values (got text)\n"
    assert secret[-8:] not in said


def test_a_genesis_is_no_configuration_and_a_configuration_no_genesis(capsys: Captured, cluster: Path) -> None:
    said = complain(capsys, "start", "--config", str(cluster / "genesis.yaml"))
    assert "expected a node's configuration, which names its genesis_file (got a genesis)" in said
    said = complain(capsys, "genesis", "show", str(cluster / "node0.yaml"))
    assert "expected a genesis (got a node's configuration, which names it: genesis_file)" in said


def test_a_genesis_that_is_not_there_yet_can_be_had_or_made(capsys: Captured, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "site")]) == 0
    said = complain(capsys, "start", "--config", str(tmp_path / "site" / "node.yaml"))
    assert "genesis.yaml: no such file (take the other members' as it is, or make one: fednode genesis new)" in said


def test_an_encrypted_key_says_where_its_passphrase_is_named(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("word\n")
    key = tmp_path / "a.key"
    assert main(["keygen", "-o", str(key), "--passphrase-file", str(tmp_path / "word")]) == 0
    said = complain(capsys, "id", "--key", str(key), code=77)
    assert "no passphrase was given (node.identity_passphrase_file, or --passphrase-file, names" in said


def test_a_file_that_is_no_key_is_not_blamed_on_a_passphrase(capsys: Captured, tmp_path: Path) -> None:
    key = tmp_path / "a.key"
    key.touch(mode=0o600)
    assert complain(capsys, "id", "--key", str(key), code=77).endswith("expected PKCS#8 PEM\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listen", "reason"),
    [("203.0.113.7:7050", "Cannot assign requested address"), ("nobody.invalid:7050", "")],
)
def test_an_address_that_is_not_this_machines_is_one_line(
    capsys: Captured, cluster: Path, listen: str, reason: str
) -> None:
    arguments = ["start", "--config", str(cluster / "node0.yaml"), "--set", f"network.listen={listen}"]
    said = subprocess.run([sys.executable, "-m", "node.cli", *arguments], capture_output=True, text=True, timeout=600)
    assert said.returncode == 78
    last = said.stderr.splitlines()[-1]
    assert last.startswith(f"fednode: network.listen: {listen}: cannot listen there ({reason}")
    assert "Traceback" not in said.stderr


def test_a_port_that_is_taken_is_one_line(cluster: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["start", "--config", str(cluster / "node1.yaml"), "--set", f"network.listen={listen}"]
        said = subprocess.run(
            [sys.executable, "-m", "node.cli", *arguments], capture_output=True, text=True, timeout=600
        )
    assert said.returncode == 78
    last = said.stderr.splitlines()[-1]
    assert last.startswith(f"fednode: network.listen: {listen} is in use by process {os.getpid()} (")
    assert last.endswith("); choose another port, or stop what is there")


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_character_is_no_failure(tmp_path: Path) -> None:
    """A testnet's ids end with an ellipsis, and a path may have any bytes."""
    out = os.fsencode(tmp_path) + b"/t\xfc\xc3\xbc"
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command: list[str | bytes] = [sys.executable, "-m", "node.cli", "testnet", "-n", "2", "--base-port", "0", "-o", out]
    done = subprocess.run(command, capture_output=True, env=env, timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u2026" in done.stdout


def test_a_path_of_any_bytes_does_not_break_json(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONUTF8": "1"}
    key = os.fsencode(tmp_path) + b"/t\xfc.key"
    command: list[str | bytes] = [sys.executable, "-m", "node.cli", "keygen", "--json", "-o", key]
    done = subprocess.run(command, capture_output=True, env=env, timeout=600, check=True)
    assert os.fsencode(json.loads(done.stdout)["key"]).endswith(b"/t\xfc.key")


def test_ctrl_c_while_a_command_is_loading_is_no_traceback() -> None:
    script = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
from node import daemon
from node.cli import main
sys.exit(main(["version"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_a_node_writes_is_its_owners_whatever_the_umask(
    capsys: Captured, cluster: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A data directory may have been made beforehand, for all to enter, and holds a model of private data."""

    def run(*_: object, **__: object) -> int:
        (tmp_path / "written").touch()
        return 0

    monkeypatch.setattr(daemon, "run_daemon", run)
    handlers = logging.getLogger().handlers[:]
    before = os.umask(0)
    try:
        assert main(["start", "--config", str(cluster / "node0.yaml")]) == 0
    finally:
        os.umask(before)
        logging.getLogger().handlers[:] = handlers
    assert stat.S_IMODE((tmp_path / "written").stat().st_mode) == 0o600


@pytest.mark.slow
@pytest.mark.parametrize(("place", "reason"), [("file", "File exists"), ("file/below", "Not a directory")])
def test_a_data_directory_that_cannot_be_made_names_the_key(
    capsys: Captured, cluster: Path, place: str, reason: str
) -> None:
    (cluster / "file").touch()
    arguments = ["start", "--config", str(cluster / "node0.yaml"), "--set", f"node.data_dir={place}"]
    said = subprocess.run([sys.executable, "-m", "node.cli", *arguments], capture_output=True, text=True, timeout=600)
    assert said.returncode == 1
    assert said.stderr == f"fednode: {cluster / place}: {reason} (node.data_dir)\n"
