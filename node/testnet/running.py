"""Running demos on this machine, also from another terminal: lists them, shows how their nodes fare, and ends them.

A demo holds a lock on a file in its directory as long as it lives, and writes its process id into it. So an id read
while the lock is held is certainly that of a demo. Nodes whose demo was killed still answer on their sockets; they are
ended by the process id in their answer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from node.admin.client import AdminClient, is_served
from node.config.node_config import load_config
from node.errors import ConfigError, NodeError, NotFound, PermissionRefused
from node.pb import admin_pb2 as pb

PREFIX = "fednode-demo-"  # prefix of a demo's directory in the temporary one
LOCK = "demo.lock"
STOP_S = 30.0  # for a demo to end its nodes, each of which has ten seconds, at the same time
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node's files, and its HTTP address. Its log lies beside its configuration."""

    name: str
    socket: Path
    log_file: Path
    http: str | None = None

    def get_status(self) -> pb.NodeStatus | None:
        """Returns the node's status, None where it does not answer."""
        try:
            if not is_served(self.socket):
                return None
            with AdminClient(self.socket) as client:
                return client.get_status()
        except NodeError:  # it is starting or ending
            return None


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo's directory, its nodes, and the process that runs it (None: it has ended)."""

    directory: Path
    pid: int | None
    nodes: tuple[DemoNode, ...]

    @property
    def is_temporary(self) -> bool:
        """Says whether the directory is removed with the demo."""
        above = self.directory.parent
        return above.name.startswith(PREFIX) and above.parent == Path(tempfile.gettempdir())


@contextmanager
def announced(directory: Path) -> Iterator[None]:
    """Marks this process as the one that runs the demo in `directory`, until the context is left."""
    with (directory / LOCK).open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))
        file.flush()
        yield


def find_demos() -> list[Demo]:
    """Finds the demos in temporary directories of this user: those that run, and those that left nodes running."""
    found = []
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/cluster")):
        with suppress(OSError, NodeError):  # another user's, or being removed
            if directory.stat().st_uid == os.geteuid() and (directory / LOCK).exists():
                demo = read_demo(directory)
                if demo.pid is not None or any(is_served(node.socket) for node in demo.nodes):
                    found.append(demo)
    return found


def read_demo(directory: Path) -> Demo:
    """Reads the demo in a directory. Raises NotFound where none was."""
    nodes = []
    for file in sorted(directory.glob("node*.yaml")):
        try:
            config = load_config(file)
        except ConfigError as error:
            raise NotFound(f"{directory}: expected the directory of a demo ({error})") from error
        if config.admin.socket is not None:
            http = config.http.listen if config.http.is_on else None
            nodes.append(DemoNode(config.node.name, config.admin.socket, file.with_suffix(".log"), http))
    if not nodes:
        raise NotFound(f"{directory}: expected the directory of a demo, but there are no configurations in it")
    return Demo(directory, _read_pid(directory / LOCK), tuple(nodes))


def _read_pid(lock: Path) -> int | None:
    """Returns the id of the process that holds the lock, None where none does."""
    try:
        with lock.open("r", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read()
                return int(text) if text.isdecimal() else None  # it is about to write its id
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise PermissionRefused(f"{lock}: this demo is another user's") from error
    return None


def end_demo(demo: Demo) -> list[str]:
    """Ends a demo and its nodes, by a signal to the demo if it runs. Returns the names of the nodes that ran. Raises
    NodeError when one does not end."""
    running = [node.name for node in demo.nodes if is_served(node.socket)]
    if demo.pid is not None:
        _send(demo.pid)
        _wait(lambda: _read_pid(demo.directory / LOCK) is None, f"demo {demo.pid}")
    left = {node.name: status.pid for node in demo.nodes if (status := node.get_status()) is not None}
    for pid in left.values():
        _send(pid)
    for name, pid in left.items():
        _wait(lambda pid=pid: not is_running(pid), name)  # type: ignore[misc]
    if demo.is_temporary:
        shutil.rmtree(demo.directory.parent, ignore_errors=True)
    return running


def _send(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def is_running(pid: int) -> bool:
    """Says whether a process runs; false also for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait(is_over: Callable[[], bool], who: str) -> None:
    until_s = time.monotonic() + STOP_S
    while not is_over():
        if time.monotonic() > until_s:
            raise NodeError(f"{who} has not ended within {STOP_S:g} s")
        time.sleep(POLL_S)
