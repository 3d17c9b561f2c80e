"""Sweeps that more than one process makes, and runs that go on inside after their process was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.federation.real_nodes import WAIT_S, run_command

pytestmark = [pytest.mark.slow, pytest.mark.outer]

TEXT = """\
name: shared
base: {clients: 4, rounds: 40, shots: 20, method: {local_iterations: 5}}
sweep:
  method: [local, dfpl]
  seed: [1, 2]
"""
LONG = """\
name: long
base: {clients: 4, rounds: 60, shots: 20, method: {local_iterations: 10}}
sweep:
  method: [dfpl]
  seed: [1]
"""


@contextmanager
def started(directory: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """`fednode experiment run`, in a session of its own."""
    command = [sys.executable, "-m", "node.cli", "experiment", "run", directory / "it.yaml", "-o", directory / "out"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"no {path} after {WAIT_S:g} s"
        time.sleep(0.05)


def read_numbers(directory: Path) -> dict[str, Any]:
    """What each run came to, whenever and however long."""
    found = {}
    for path in (directory / "runs").glob("*.json"):
        document = json.loads(path.read_text())
        rounds = [{key: value for key, value in row.items() if not key.endswith("_s")} for row in document["rounds"]]
        found[path.stem] = (rounds, document["clients"])
    return found


def test_two_shards_at_once_do_each_run_once(tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text(TEXT)
    with started(tmp_path, "--shard", "1/2", "-j", 1) as one, started(tmp_path, "--shard", "2/2", "-j", 1) as other:
        outs = [process.communicate(timeout=WAIT_S) for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], outs
    done = [[line.split("  ")[1] for line in out.splitlines() if "best TAA" in line] for out, _ in outs]
    assert ([*map(len, done)], len({*done[0], *done[1]})) == ([2, 2], 4), outs
    assert not list((tmp_path / "out" / "runs").glob("*.state"))

    alone = run_command("experiment", "run", tmp_path / "it.yaml", "-o", tmp_path / "alone")
    assert alone.code == 0, alone.err
    assert read_numbers(tmp_path / "out") == read_numbers(tmp_path / "alone")


def test_a_shard_and_a_call_for_all_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text(LONG)
    with started(tmp_path, "--shard", "1/2", "-j", 1) as shard:
        wait_for(tmp_path / "out" / "experiment.yaml")  # which is written under the lock
        os.killpg(shard.pid, signal.SIGSTOP)  # or it would be done before the other has begun
        done = run_command("experiment", "run", tmp_path / "it.yaml", "-o", tmp_path / "out")
    assert (done.code, "another process is running an experiment there" in done.err) == (1, True)


def test_a_killed_run_goes_on_inside_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text(LONG)
    listed = run_command("experiment", "run", tmp_path / "it.yaml", "-o", tmp_path / "out", "--dry-run", "--json")
    (run,) = json.loads(listed.out)["runs"]
    state = tmp_path / "out" / "runs" / f"{run['id']}.state"
    with started(tmp_path, "--save-every", 0) as process:
        wait_for(state)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=WAIT_S)
    assert state.exists()
    assert not state.with_suffix(".json").exists()
    resumed = run_command("experiment", "run", tmp_path / "it.yaml", "-o", tmp_path / "out")
    assert resumed.code == 0, resumed.err
    assert not state.exists()
    whole = run_command("experiment", "run", tmp_path / "it.yaml", "-o", tmp_path / "whole")
    assert whole.code == 0, whole.err
    assert read_numbers(tmp_path / "out") == read_numbers(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--shard 3/2", "--shard: expected I/N with I from 1 to N, as in 3/16 (got 3/2)"),
        ("--shard 0/2", "--shard: expected I/N"),
        ("--on slurm", "--on: expected ray or ray://HOST:PORT (got slurm)"),
        ("--on ray --shard 1/2", "--shard: expected it or --on"),
        ("--jobs-per-gpu 2", "--jobs-per-gpu: expected --gpus N or --on ray"),
        ("--gpus 1000", "--gpus 1000: torch finds"),
        ("--gpus 1 --jobs 2", "--jobs: expected it or --gpus"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(tmp_path: Path, options: str, message: str) -> None:
    (tmp_path / "it.yaml").write_text(TEXT)
    done = run_command("experiment", "run", tmp_path / "it.yaml", "-o", tmp_path / "out", *options.split())
    assert (done.code, message in done.err, len(done.err.splitlines())) == (78, True, 1), done.err
    assert not (tmp_path / "out").exists()
