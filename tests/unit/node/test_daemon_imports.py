"""The daemon and the audit of a stopped node never load torch (DESIGN §6), and nothing that was not asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["node.daemon", "node.ledger.offline", "node.cli.app", "node.admin.client"])
def test_what_runs_beside_the_worker_loads_no_torch(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'torch', 'sklearn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_what_serves_and_writes_metrics_is_loaded_only_where_it_is_asked_for() -> None:
    heavy = {"prometheus_client", "starlette", "uvicorn", "tensorboardX", "mlflow", "opentelemetry"}
    program = f"import sys, node.daemon, node.cli.app; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
