"""Federations that have done all their rounds, each lived through once for all tests that ask of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.federation.networks import NETWORKS, Lived
from support.federation.real_nodes import DemoRun, run_process

PATIENCE_S = 900.0  # for a test with all its waits, on a machine that others use too


class ByFederation(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Gives all tests of a file to one process, which starts what they share; those of a network to the one that lived
    through it."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        return file + test[test.find("[") :] if file.endswith("/test_networks.py") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByFederation(config, log) if config.getvalue("dist") == "loadfile" else None


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


@pytest.fixture(scope="session")
def live_through(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lived]:
    """What a network said and left: it is lived through when it is first asked for, and never twice."""
    lived: dict[str, Lived] = {}
    failed: set[str] = set()
    networks = {network.name: network for network in NETWORKS}

    def find(name: str) -> Lived:
        assert name not in failed, f"{name} could not be lived through: see its first test"
        if name not in lived:
            failed.add(name)
            lived[name] = networks[name].live(tmp_path_factory.mktemp(name) / "net")
            failed.remove(name)
        return lived[name]

    return find


@pytest.fixture
def lived(request: pytest.FixtureRequest, live_through: Callable[[str], Lived]) -> Lived:
    return live_through(request.param)
