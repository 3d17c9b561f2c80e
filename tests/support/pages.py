"""Pages of a real federation: its nodes as processes that serve them, and windows of a browser that look at them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from node.testnet.layout import TestnetNode
from support.federation.real_nodes import POLL_S, WAIT_S, run_command

ROUNDS = 12
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIEW_MS = 30_000  # for a view to show, on a machine that others use too


def explain_missing() -> str | None:
    """Why there can be no test of the page here, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: make test-web"
    if find_browser() is None:
        return f"no Chromium is installed: expected one of {', '.join(BROWSERS)} on the path"
    return None


def find_browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@dataclass
class Served:
    """A federation whose nodes serve their pages."""

    nodes: tuple[TestnetNode, ...]
    http_port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def get_address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.http_port + self._find(name)}/"

    def start(self) -> None:
        for node in self.nodes:
            log = node.config_file.with_suffix(".log").open("wb")
            self.processes[node.name] = subprocess.Popen(
                [sys.executable, "-m", "node.cli", "--config", str(node.config_file)], stdout=log, stderr=log
            )
            log.close()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(WAIT_S)

    def tell(self, name: str, *words: object, json_out: bool = True) -> Any:
        """What a command about a node prints."""
        config = self.nodes[self._find(name)].config_file
        done = run_command(*words, *(["--json"] if json_out else []), "-c", config)
        assert done.code == 0, done.err
        return json.loads(done.out) if json_out else done.out

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while not is_so():
            if time.monotonic() > end_s:
                logs = [node.config_file.with_suffix(".log").read_text()[-2000:] for node in self.nodes]
                pytest.fail(f"waited {WAIT_S:g} s for {what}\n" + "\n---\n".join(logs))
            time.sleep(POLL_S)

    def has_applied(self, name: str, rounds: int) -> bool:
        try:
            with urllib.request.urlopen(f"{self.get_address(name)}api/v1/status", timeout=WAIT_S) as answer:
                return bool((json.load(answer)["measured_round"] or 0) >= rounds)
        except OSError:
            return False

    def _find(self, name: str) -> int:
        return [node.name for node in self.nodes].index(name)


class Visit:
    """One browser window at one node's page, and what its console said."""

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
        """The view, once it is there and nothing in it waits."""
        self.page.goto(f"{self.address}#/{view}")
        self.page.wait_for_selector("main h1")
        self.page.wait_for_selector("main .loading", state="detached")
        return self.page

    def read(self) -> str:
        text: str = self.page.inner_text("main")
        return text
