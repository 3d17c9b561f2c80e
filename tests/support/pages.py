"""Pages of a real federation: its nodes as processes that serve them, and windows of a browser that look at them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from node.testnet.layout import TestnetNode, TestnetSpec, make_testnet
from support.federation.fork_servers import CopiedProcess, start_node
from support.federation.ports import find_free_ports
from support.federation.real_nodes import POLL_S, WAIT_S, run_command

ROUNDS = 12
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIEW_MS = 30_000  # until a view must show, on a machine that others use too


def explain_missing() -> str | None:
    """Returns why the page cannot be tested here, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: make test-web"
    if find_browser() is None:
        return f"no Chromium is installed: expected one of {', '.join(BROWSERS)} on the path"
    return None


def find_browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@dataclass
class Served:
    """A federation whose nodes serve their pages. `via` holds for each node the command that starts it."""

    nodes: tuple[TestnetNode, ...]
    http_port: int
    via: Mapping[str, Sequence[str]] = field(default_factory=dict)
    processes: dict[str, CopiedProcess | subprocess.Popen[bytes]] = field(default_factory=dict)

    def get_address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.http_port + self._find(name)}/"

    @contextmanager
    def running(self, *names: str) -> Iterator[None]:
        """Starts the named nodes, or all; ends all running ones afterwards."""
        try:
            for node in self.nodes:
                if not names or node.name in names:
                    self.start(node.name)
            yield
        finally:
            for process in self.processes.values():
                process.terminate()
            for process in self.processes.values():
                process.wait(WAIT_S)

    def start(self, name: str) -> None:
        config = self.nodes[self._find(name)].config_file
        log_file = config.with_suffix(".log")
        if name not in self.via:
            self.processes[name] = start_node(config, log_file)
            return
        command = [*self.via[name], sys.executable, "-m", "node.cli", "--config", str(config)]
        with log_file.open("wb") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def tell(self, name: str, *words: object, json_out: bool = True) -> Any:
        """Returns what a command about a node prints."""
        config = self.nodes[self._find(name)].config_file
        done = run_command(*words, *(["--json"] if json_out else []), "-c", config)
        assert done.code == 0, done.err
        return json.loads(done.out) if json_out else done.out

    def ask(self, path: str, name: str = "node0") -> Any:
        """Returns the answer of a node's `/api/v1`."""
        with urllib.request.urlopen(f"{self.get_address(name)}api/v1/{path}", timeout=WAIT_S) as answer:
            return json.load(answer)

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while not is_so():
            if time.monotonic() > end_s:
                logs = [node.config_file.with_suffix(".log").read_text()[-2000:] for node in self.nodes]
                pytest.fail(f"waited {WAIT_S:g} s for {what}\n" + "\n---\n".join(logs))
            time.sleep(POLL_S)

    def has_applied(self, name: str, rounds: int) -> bool:
        try:
            return bool((self.ask("status", name)["measured_round"] or 0) >= rounds)
        except OSError:
            return False

    def _find(self, name: str) -> int:
        return [node.name for node in self.nodes].index(name)


def make_served(directory: Path, *, via: Mapping[str, Sequence[str]] | None = None, **spec: Any) -> Served:
    """Makes the files of four nodes with pages. `spec` is `TestnetSpec`'s."""
    first = find_free_ports(4)[0]
    usual: dict[str, Any] = {"num_nodes": 4, "method": "fedavg", "base_port": 0, "http_port": first, "difficulty": 4096}
    return Served(tuple(make_testnet(directory, TestnetSpec(**(usual | spec))).nodes), first, via or {})


class Visit:
    """One browser window at one node's page, and the messages of its console."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.said: list[str] = []
        page.set_default_timeout(VIEW_MS)
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.said.append(f"{kind}: {text}")

    def show(self, view: str = "") -> Any:
        """Shows a view, and returns it once it is loaded."""
        self.page.goto(f"{self.address}#/{view}")
        self.page.wait_for_selector("main h1")
        self.page.wait_for_selector("main .loading", state="detached")
        return self.page

    def read(self) -> str:
        text: str = self.page.inner_text("main")
        return text
