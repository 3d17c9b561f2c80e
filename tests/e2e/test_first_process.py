"""A container's first process, which no signal ends that it has no handler for: here of a PID namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 60
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")

pytestmark = [pytest.mark.e2e]


def _can_unshare() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _can_unshare(), reason="needs util-linux's unshare and the right to make a PID namespace")
def test_sigterm_ends_a_first_process_that_has_not_started_its_node_yet(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    os.mkfifo(config)
    command = [*NAMESPACE, sys.executable, "-m", "node.cli", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as outside:
        try:
            with config.open("w"):  # returns when the configuration is about to be read
                (first,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
                os.kill(int(first), signal.SIGTERM)
            # Closed by now: a signal that came just before the read would else be seen only after it.
            assert outside.wait(PATIENCE_S) == 128 + signal.SIGTERM
        finally:
            outside.kill()
