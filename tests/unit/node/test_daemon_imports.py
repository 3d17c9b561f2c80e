"""The daemon and the audit of a stopped node never load torch (DESIGN §6), and nothing that was not asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "sklearn")
METRICS = ("prometheus_client", "starlette", "uvicorn", "tensorboardX", "mlflow", "opentelemetry")
MODULES = ("node.admin.client", "node.cli.app", "node.admin.offline", "node.daemon")
PROGRAM = f"""
import importlib, sys
for module in {MODULES}:
    importlib.import_module(module)
    print(module, *(name for name in {HEAVY} if name in sys.modules))
print(*(name for name in {METRICS} if name in sys.modules))
"""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """What each module has loaded of torch, one after the other, and all of them of what shows metrics."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_what_runs_beside_the_worker_loads_no_torch(loaded: list[str]) -> None:
    assert tuple(loaded[:-1]) == MODULES


def test_what_serves_and_writes_metrics_is_loaded_only_where_it_is_asked_for(loaded: list[str]) -> None:
    assert loaded[-1] == ""
