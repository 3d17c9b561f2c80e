"""One federation that has done all its rounds, for every test of what such a federation leaves."""

from __future__ import annotations

import json

import pytest

from support.real_nodes import DemoRun, run_command


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """Four nodes, ten rounds. They wait for each other as long as it takes, so that every block has all four."""
    directory, rounds, seed = tmp_path_factory.mktemp("demo") / "net", 10, 1
    finished = run_command(
        *("demo", "-n", 4, "--rounds", rounds, "--seed", seed, "--json", "--keep", directory),
        *("--set", "waits.collect_s=30"),
        timeout_s=240,
    )
    lines = finished.out.splitlines()
    return DemoRun(directory, rounds, seed, finished, json.loads(lines[-1]) if lines else {})
