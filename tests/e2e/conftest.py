"""One federation that has done all its rounds, for every test of what such a federation leaves."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import DemoRun, run_process

PATIENCE_S = 900.0  # for a test with all its waits, on a machine that others use too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """Four nodes, ten rounds. They wait for each other as long as it takes, so that every block has all four."""
    directory, rounds, seed = tmp_path_factory.mktemp("demo") / "net", 10, 1
    finished = run_process(
        *("demo", "-n", 4, "--rounds", rounds, "--seed", seed, "--json", "--keep", directory),
        *("--set", "waits.collect_s=120"),
        timeout_s=PATIENCE_S,
    )
    lines = finished.out.splitlines()
    return DemoRun(directory, rounds, seed, finished, json.loads(lines[-1]) if lines else {})
