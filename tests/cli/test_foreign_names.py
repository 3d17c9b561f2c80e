"""A user's own `ml/`, `chain/` or `node.py` where the command is called, or on PYTHONPATH: it is nothing to us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.faults.foreign_names import make_environment, make_hostile_directory, run_as_user

SIMULATE = ("simulate", "--clients", 2, "--rounds", 1, "--shots", 10, "--set", "local_iterations=1")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_hostile_directory(tmp_path / "place")


@pytest.mark.parametrize("by_module", [False, True])
def test_the_command_starts(place: Path, by_module: bool) -> None:
    done = run_as_user(place, "--help", path=(place,), by_module=by_module)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: fednode ")


@pytest.mark.parametrize("by_module", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_simulation_runs(place: Path, by_module: bool) -> None:
    done = run_as_user(place, *SIMULATE, path=(place,), by_module=by_module)
    assert done.code == 0, done.err
    assert "accuracy on matched test sets" in done.out


def test_an_empty_directory_of_our_name_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "place" / "ml").mkdir(parents=True)
    done = run_as_user(tmp_path / "place", "version", path=(tmp_path / "place",), by_module=True)
    assert done.code == 0, done.err


def test_a_directory_that_was_removed_is_no_reason_not_to_start(tmp_path: Path) -> None:
    program = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    (tmp_path / "gone").mkdir()
    command = [sys.executable, "-c", program, "-m", "fednode", "version"]
    done = subprocess.run(command, cwd=tmp_path / "gone", env=make_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fednode ")


def test_whoever_has_imported_a_module_of_our_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "ml.py").touch()
    program = "import ml\nfrom fednode._names import claim_names\nclaim_names()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=make_environment(), capture_output=True, text=True)
    assert done.returncode == 1
    told = f"ImportError: expected 'ml' to be fednode's package, got {tmp_path}/ml.py; give that another name"
    assert done.stderr.splitlines()[-1] == told


def test_whoever_has_imported_a_node_is_told(tmp_path: Path) -> None:
    (tmp_path / "node.py").touch()
    program = "import node\nfrom fednode._names import claim_names\nclaim_names()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=make_environment(), capture_output=True, text=True)
    assert done.returncode == 1
    told = f"ImportError: expected 'node' to be fednode's package, got {tmp_path}/node.py; give that another name"
    assert done.stderr.splitlines()[-1] == told
