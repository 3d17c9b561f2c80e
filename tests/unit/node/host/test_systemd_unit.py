"""deploy/systemd: what systemd itself says of it, and that it agrees with the node."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from node.errors import ConfigError, PermissionRefused

UNIT = Path(__file__).parents[4] / "deploy/systemd/fednode@.service"
MAX_EXPOSURE = 2.0  # of 10, which is no hardening at all

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that this machine has."""
    text = UNIT.read_text()
    assert text.count("/opt/fednode/bin/fednode ") == 2
    path = tmp_path / UNIT.name
    path.write_text(text.replace("/opt/fednode/bin/fednode ", f"{shutil.which('true')} "))
    return path


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_the_unit_confined(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= MAX_EXPOSURE, done.stdout


def test_what_a_restart_cannot_mend_is_not_restarted() -> None:
    found = re.search(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found
    usage, before_the_program = 2, {"EXEC", "USER", "CREDENTIALS"}
    ours = {str(code) for code in (usage, PermissionRefused.exit_code, ConfigError.exit_code)}
    assert set(found[1].split()) == ours | before_the_program


def test_a_reload_asks_the_socket_that_the_node_has() -> None:
    """Unlike a signal the command waits, and fails where the configuration has problems."""
    found = dict(re.findall(r"^(ExecReload|Environment=FEDNODE__ADMIN__SOCKET)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert found["ExecReload"].endswith(f"fednode reload --socket {found['Environment=FEDNODE__ADMIN__SOCKET']}")
