"""The command line among other programs: in a pipe whose reader has enough, without colours, under completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.cli import main
from node.demos import announced, read_demo

pytestmark = pytest.mark.e2e

FEDNODE = (sys.executable, "-m", "node.cli")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shell") / "cluster"
    assert main(["testnet", "-n", "2", "-o", str(out), "--base-port", "0", "--partition", "iid"]) == 0
    return out


@pytest.mark.parametrize("command", [("config", "schema"), ("version", "--json")])
def test_a_reader_who_has_enough_is_no_accident(command: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)  # before anything was written
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run([*FEDNODE, *command], stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_completion_needs_nothing_but_the_shell() -> None:
    """The script that --install-completion would install, and what it asks fednode at each press of the key."""
    shell = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run([*FEDNODE, "--show-completion", "bash"], env=shell, capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    assert "_FEDNODE_COMPLETE=complete_bash" in script.stdout
    for words, place, expected in (
        ("fednode sta", "1", {"start", "status"}),
        ("fednode model ", "2", {"info", "export"}),
    ):
        asked = {"_FEDNODE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
        done = subprocess.run(FEDNODE, env={**os.environ, **asked}, capture_output=True, text=True)
        assert (set(done.stdout.split()), done.stderr) == (expected, "")


def test_a_demo_is_known_by_its_lock_alone(cluster: Path) -> None:
    assert read_demo(cluster).pid is None
    with announced(cluster):
        assert read_demo(cluster).pid == os.getpid()
    assert read_demo(cluster).pid is None
