"""A machine of its own that runs systemd, in a container, with the program installed as docs/deploy/image.md says.

    with booted("fednode-test") as machine:
        machine.run("systemctl", "start", "fednode@a")
        machine.wait_for(lambda: machine.show("fednode@a", "ActiveState") == "active", "a started", "fednode@a")

Needs root and podman. systemd is process 1 there, and may make namespaces and mounts as on a machine; the cgroups are
the engine's, so that where it has version 1 limits like TasksMax and DeviceAllow have no effect.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DOCKERFILE = "tests/support/machines/systemd.Dockerfile"
IMAGE = "fednode-systemd"
BUILD_S = 3000  # the first build downloads the image's packages
COMMAND_S = 180
PATIENCE_S = 240
POLL_S = 1.0
STOP_S = 90  # for everything on the machine to stop

# Capabilities that systemd itself needs to run a service; the unit decides what a service may do.
CAPABILITIES = ("SYS_ADMIN", "SYS_PTRACE", "SYS_RESOURCE", "SYS_NICE", "NET_ADMIN", "MKNOD", "SYSLOG", "AUDIT_WRITE")


def find_obstacle() -> str | None:
    """Returns why there can be no such machine here, or None."""
    if shutil.which("podman") is None:
        return "no podman, which runs systemd in a container"
    if os.geteuid() != 0:
        return "systemd in a container sets up services' namespaces only as root"
    probe = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False)
    return f"podman info: {probe.stderr.strip()}" if probe.returncode else None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine on which commands run as root."""

    name: str

    def run(self, *command: object, given: str | None = None, codes: tuple[int, ...] = (0,)) -> str:
        """Runs a command and returns its output. Raises AssertionError when it ends with another code than these."""
        done = subprocess.run(
            ["podman", "exec", "-i", self.name, *map(str, command)],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode in codes, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def sh(self, script: str) -> str:
        return self.run("sh", "-ec", script)

    def write(self, path: str, text: str) -> None:
        self.sh(f"mkdir -p $(dirname {path})")
        self.run("tee", path, given=text)

    def show(self, unit: str, name: str) -> str:
        """Returns one property of a unit, as systemd has it."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def read_journal(self, unit: str, *options: str) -> list[dict[str, Any]]:
        """Returns the entries of a unit, and those of systemd about it."""
        out = self.run("journalctl", "-q", "--no-pager", "-o", "json", "-u", unit, *options, codes=(0, 1))
        return [json.loads(line) for line in out.splitlines()]

    def wait_for(self, claim: Callable[[], bool], what: str, *units: str) -> None:
        """Waits until the claim holds. Raises AssertionError with the ends of the units' journals when it does not."""
        until_s = time.monotonic() + PATIENCE_S
        while not claim():
            if time.monotonic() > until_s:
                told = "\n".join(self.run("journalctl", "--no-pager", "-n", "30", "-u", unit) for unit in units)
                raise AssertionError(f"not within {PATIENCE_S} s: {what}\n{told}")
            time.sleep(POLL_S)

    def wait_until_booted(self) -> None:
        self.wait_for(
            lambda: self.run("systemctl", "is-system-running", codes=(0, 1)).strip() in ("running", "degraded"),
            "the machine is up",
        )

    def reboot(self) -> None:
        """Stops everything, and starts process 1 again."""
        _podman("restart", "-t", str(STOP_S), self.name)
        self.wait_until_booted()


@contextmanager
def booted(name: str) -> Iterator[Machine]:
    """Boots the machine, made from the working tree, of which it also has `deploy` and `tests/support` below /src."""
    _podman("build", "--network", "host", "-t", IMAGE, "-f", DOCKERFILE, ".", timeout_s=BUILD_S)
    volumes = [f"--volume={ROOT / folder}:/src/{folder}:ro" for folder in ("deploy", "tests/support")]
    rights = [f"--cap-add={','.join(CAPABILITIES)}", "--security-opt=seccomp=unconfined"]
    machine = Machine(name)
    try:
        _podman(
            *("run", "-d", "--name", name, "--hostname", name, "--systemd=always", "--network=none"),
            *("--tmpfs=/home", *rights, *volumes, IMAGE),
        )
        machine.wait_until_booted()
        yield machine
    finally:
        _podman("rm", "-f", "--ignore", "-t", str(STOP_S), name)


def _podman(*arguments: str, timeout_s: float = COMMAND_S) -> None:
    command = ["podman", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
