"""`fednode experiment` as people use it: run, interrupted, killed, run again, reported."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.federation.processes import is_alive
from support.federation.real_nodes import WAIT_S, Finished, run_command, run_process

pytestmark = [pytest.mark.slow, pytest.mark.outer]

TEXT = """\
name: little
title: A little sweep
base: {clients: 3, rounds: 2, shots: 10, method: {local_iterations: 2}}
sweep:
  method: [local, dfpl]
  partition: ["classes:3,1", iid]
  seed: [1]
"""
ENDLESS = TEXT.replace("rounds: 2", "rounds: 100000")


def run(directory: Path, text: str, *options: object) -> Finished:
    (directory / "little.yaml").write_text(text)
    return run_command("experiment", "run", directory / "little.yaml", "-o", directory / "out", *options)


def read_runs(directory: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in (directory / "out" / "runs").glob("*.json")}


def get_taa(runs: dict[str, Any]) -> dict[str, list[float]]:
    return {name: [row["taa"] for row in document["rounds"]] for name, document in runs.items()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Where the little sweep was run, and what it said."""
    directory = tmp_path_factory.mktemp("swept")
    return directory, run(directory, TEXT, "--jobs", 2)


@pytest.fixture
def directory(swept: tuple[Path, Finished], tmp_path: Path) -> Path:
    """A copy of it, for a test to go on with."""
    return Path(shutil.copytree(swept[0], tmp_path / "swept"))


@pytest.mark.slow
def test_a_sweep_is_run_once_and_reported(swept: tuple[Path, Finished], directory: Path) -> None:
    done = swept[1]
    assert done.code == 0, done.err
    assert [line.split("  ")[0].strip() for line in done.out.splitlines()[:4]] == ["1/4", "2/4", "3/4", "4/4"]
    assert "4 runs, 0 of them done before; now 4 more done, 0 failed" in done.out
    assert "\x1b" not in done.out + done.err
    runs = read_runs(directory)
    assert len(runs) == 4
    for document in runs.values():
        assert [row["round"] for row in document["rounds"]] == [1, 2]
        assert len(document["clients"]) == 3
        assert document["machine"]["torch"]
        assert document["config"]["method"]["lr"] == 0.1

    listed = json.loads(run(directory, TEXT, "--dry-run", "--json").out)
    assert {(one["id"], one["state"]) for one in listed["runs"]} == {(Path(name).stem, "done") for name in runs}

    times = {path: path.stat().st_mtime_ns for path in (directory / "out" / "runs").iterdir()}
    again = run(directory, TEXT)
    assert (again.code, again.out.splitlines()[0]) == (0, "4 runs, 4 of them done before; now 0 more done, 0 failed")
    assert {path: path.stat().st_mtime_ns for path in (directory / "out" / "runs").iterdir()} == times

    simulated = run_process(
        *("simulate", "--method", "dfpl", "--partition", "iid", "--shots", 10, "--clients", 3, "--rounds", 2),
        *("--set", "local_iterations=2", "--json"),
    )
    rounds = json.loads(simulated.out)["rounds"]
    timed = {name: [row.pop("train_s") for row in document["rounds"]] for name, document in runs.items()}
    assert all(row.pop("aggregate_s") >= 0 for document in runs.values() for row in document["rounds"])
    assert all(seconds > 0 for own in timed.values() for seconds in own)
    same = [document for document in runs.values() if document["rounds"] == rounds]
    assert [(one["config"]["method"]["name"], one["config"]["partition"]) for one in same] == [("dfpl", "iid")]

    reported = run_command("experiment", "report", directory / "out")
    assert reported.code == 0, reported.err
    assert "4 of 4 runs are done" in reported.out
    assert "A little sweep" in (directory / "out" / "report.html").read_text()


@pytest.mark.slow
def test_programs_get_one_object_and_people_the_progress_of_runs_that_fail(tmp_path: Path) -> None:
    text = TEXT.replace("[local, dfpl]", "[local]") + "  method.lr: [0.1, 1.0e+30]\n"
    done = run(tmp_path, text, "--json", "--jobs", 1)
    assert done.code == 1
    (shown,) = (json.loads(line) for line in done.out.splitlines())
    counts = {key: shown[key] for key in ("directory", "runs", "done_before", "done_now", "left", "misfits")}
    assert counts == {
        **{"directory": str(tmp_path / "out"), "runs": 4, "done_before": 0, "done_now": 2, "left": 0, "misfits": []}
    }
    assert len(shown["failed"]) == 2
    for failed in shown["failed"]:
        assert failed["id"]
        assert "finite" in failed["error"]
    assert "4/4  " in done.err


@pytest.mark.slow
def test_embeddings_are_kept_of_the_runs_that_a_figure_shows(directory: Path) -> None:
    before = read_runs(directory)
    figure = "report: {figures: [{embedding: tsne, panels: method, where: {partition: iid}}]}\n"
    done = run(directory, TEXT + figure)
    assert done.code == 0, done.err
    assert "4 runs, 2 of them done before; now 2 more done, 0 failed" in done.out
    after = read_runs(directory)
    shown = [name for name, document in after.items() if "snapshot" in document]
    assert [before[name]["config"]["partition"] for name in shown] == ["iid", "iid"]
    assert get_taa(after) == get_taa(before)
    assert "4 of them done before; now 0 more done" in run(directory, TEXT + figure).out
    reported = run_command("experiment", "report", directory / "out")
    assert reported.code == 0, reported.err
    assert "figures/01-embeddings-by-t-sne.png" in reported.out


@pytest.mark.slow
def test_a_run_that_fails_is_recorded_the_others_go_on_and_it_is_tried_again(tmp_path: Path) -> None:
    text = TEXT.replace("[local, dfpl]", "[local, {name: local, lr: 1.0e+30, label: wild}]")
    done = run(tmp_path, text, "--jobs", 2)
    assert done.code == 1
    assert "now 2 more done, 2 failed" in done.out
    assert done.err.splitlines()[-1] == "fednode: 2 of 4 runs failed; the same command tries them again"
    assert "failed: wild, iid, seed 1: " in done.err
    failed = [document for document in read_runs(tmp_path).values() if "error" in document]
    assert {document["config"]["method"]["lr"] for document in failed} == {1e30}
    again = run(tmp_path, text)
    assert (again.code, "2 of them done before; now 0 more done, 2 failed" in again.out) == (1, True)


@pytest.mark.slow
def test_a_broken_result_is_named_and_run_again(directory: Path) -> None:
    before = read_runs(directory)
    path = next((directory / "out" / "runs").glob("*.json"))
    path.write_text(path.read_text()[:100])
    done = run(directory, TEXT)
    assert done.code == 0
    assert str(path) in done.err
    assert "3 of them done before; now 1 more done" in done.out
    assert get_taa(read_runs(directory)) == get_taa(before)


def test_what_cannot_be_run_is_refused_before_anything_is(tmp_path: Path) -> None:
    done = run(tmp_path, TEXT.replace("shots: 10", "data: {format: idx, path: nowhere}"))
    assert done.code == 78
    assert "nowhere" in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_dry_run_lists_and_starts_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, TEXT, "--dry-run")
    assert done.code == 0
    assert done.out.count("to run") == 4
    assert "dfpl, iid, seed 1" in done.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_whatever_stops_it_loses_only_the_runs_under_way(directory: Path, number: int, code: int) -> None:
    kept = read_runs(directory)
    (directory / "little.yaml").write_text(ENDLESS.replace("seed: [1]", "rounds: [2, 100000]\n  seed: [1]"))
    out = directory / "out"
    # A session of its own, so that Ctrl-C reaches it and its workers, as from a terminal.
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "node.cli",
            "experiment",
            "run",
            str(directory / "little.yaml"),
            "-o",
            str(out),
            "-j",
            "2",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        workers = wait_for_workers(process.pid, 2)
        if number == signal.SIGINT:
            subprocess.run(["kill", "-INT", "--", f"-{process.pid}"], check=True)
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in err
    if code == 130:
        assert "4 runs are left; the same command goes on with them" in err
    deadline_s = time.monotonic() + WAIT_S
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline_s, "the workers are still there"
        time.sleep(0.1)
    assert read_runs(directory) == kept
    assert not list((out / "runs").glob("*.part"))


def wait_for_workers(parent: int, count: int) -> list[int]:
    """The processes that compute for `parent`, once there are `count` that have loaded torch."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        ready = [int(pid) for pid in children if "libtorch" in _read_maps(pid)]
        if len(ready) >= count:
            return ready
        time.sleep(0.1)
    raise AssertionError(f"no {count} workers after {WAIT_S:g} s")


def _read_maps(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
