"""The rules that every benchmark of `make bench-NAME` keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from bench.application import COMMANDS, make_app

pytestmark = pytest.mark.outer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_figures_can_be_had_as_json(name: str) -> None:
    command = typer.main.get_command(make_app()).commands[name]  # type: ignore[attr-defined]
    assert f"Example: make bench-{name} ARGS=" in " ".join(command.help.split())
    assert any("--json" in parameter.opts for parameter in command.params)


def test_make_calls_them_by_name() -> None:
    makefile = ROOT / "Makefile"
    said = subprocess.run(
        [
            "make",
            "--dry-run",
            "--no-print-directory",
            "-f",
            makefile,
            "-o",
            ".venv/.ready",
            "bench-catch-up",
            "ARGS=--rounds 9",
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # ours is not its part
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines()[-1].endswith("/python -m tests.bench catch-up --rounds 9")


@pytest.mark.slow
def test_they_run_from_the_root_of_a_checkout() -> None:
    command = [sys.executable, "-m", "tests.bench", "ledger", "--sizes", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 78
    assert done.stderr == "fednode: --sizes: expected numbers from 2 to 100, as in 4,16 (got '1')\n"
