"""`fednode runs report` of a stopped node: what is written, what is refused, and with which code it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chain.genesis import Genesis
from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from node.cli import main
from support.federation.ledgers import flip_byte, make_ledgers, read_cell

ROUNDS = 3
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Genesis, Path]:
    path = tmp_path_factory.mktemp("chain")
    return make_ledgers(path, ROUNDS), path / "node1"


@pytest.fixture
def data_dir(original: tuple[Genesis, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FEDNODE_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(original[1], tmp_path / "data"))


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["runs", "report", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_stopped_node_makes_it_and_the_chain_is_verified_for_it(capsys: Captured, data_dir: Path) -> None:
    code, out, err = run(capsys, "1", "-o", "report.html", "--data-dir", data_dir)
    assert (code, out, err) == (0, f"report.html: run 1, {ROUNDS} rounds, verified\n", "")
    page = Path("report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "The chain holds:" in page
    assert f"{ROUNDS} of {ROUNDS}" in page
    assert {path.name for path in Path().iterdir()} == {"data", "report.html"}


def test_runs_of_a_stopped_node_are_listed_and_shown(capsys: Captured, data_dir: Path) -> None:
    assert main(["runs", "list", "--data-dir", str(data_dir)]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["RUN", "METHOD", "MODEL"]
    assert f"{ROUNDS} of {ROUNDS}" in line
    assert main(["runs", "show", "1", "--json", "--data-dir", str(data_dir)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["made"], shown["counted"], shown["phase"]) == (ROUNDS, ROUNDS, "done")
    assert [author["rounds"] for author in shown["authors"]] == [ROUNDS] * 4
    assert main(["runs", "show", "2", "--data-dir", str(data_dir)]) == 3
    assert capsys.readouterr().err == "fednode: run 2: there were runs 1 to 1\n"


def test_json_has_what_the_chain_says_and_the_verdict(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = run(capsys, "--json", "--data-dir", data_dir)
    assert code == 0
    shown = json.loads(out)
    assert (shown["run"]["number"], shown["run"]["made"], shown["node"]) == (1, ROUNDS, None)
    assert shown["verified"]["ok"] is True
    assert shown["verified"]["recomputed"] == ROUNDS
    assert shown["chain"]["head"]["id"] == shown["verified"]["head"]
    assert [one["rounds"] for one in shown["participants"]] == [[1, 2, 3]] * 4
    assert [entry["round"] for entry in shown["rounds"]] == [1, 2, 3]


def test_what_was_not_verified_says_so(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = run(capsys, "-o", "-", "--no-verify", "--data-dir", data_dir)
    assert code == 0
    assert "The chain was not verified for this report." in out
    _, out, _ = run(capsys, "--json", "--no-verify", "--data-dir", data_dir)
    assert json.loads(out)["verified"] is None


def test_a_number_without_a_run_is_not_found_and_writes_nothing(capsys: Captured, data_dir: Path) -> None:
    code, out, err = run(capsys, "7", "-o", "report.html", "--data-dir", data_dir)
    assert (code, out, err) == (3, "", "fednode: run 7: there were runs 1 to 1\n")
    assert not Path("report.html").exists()


def test_nothing_is_written_over(capsys: Captured, data_dir: Path) -> None:
    Path("report.html").write_text("mine")
    code, _, err = run(capsys, "-o", "report.html", "--data-dir", data_dir)
    assert code == 1
    assert "nothing is written over" in err
    assert Path("report.html").read_text() == "mine"


@pytest.mark.parametrize("arguments", [(), ("-o", "-", "--json")])
def test_it_has_to_go_somewhere_and_two_things_do_not_go_to_stdout(
    capsys: Captured, data_dir: Path, arguments: tuple[str, ...]
) -> None:
    assert run(capsys, *arguments, "--data-dir", data_dir)[0] == 2


def test_a_fault_beside_the_blocks_is_on_the_page_and_in_the_code(
    capsys: Captured, original: tuple[Genesis, Path], data_dir: Path
) -> None:
    with SqliteStore.open(data_dir, original[0], readonly=True) as store:
        stored = store.get_block(2)
        assert stored is not None
        blob = store.blob_path(stored.block.contributions[0].payloads[0].digest)
    flip_byte(blob, blob.read_bytes(), -1)
    code, out, err = run(capsys, "-o", "report.html", "--data-dir", data_dir)
    assert code == 5
    assert out == f"report.html: run 1, {ROUNDS} rounds, the chain does not hold\n"
    assert err.startswith("fednode: block 2: ")
    assert "The chain does not hold." in Path("report.html").read_text()


def test_blocks_that_cannot_be_read_make_no_report(capsys: Captured, data_dir: Path) -> None:
    flip_byte(data_dir / DATABASE, read_cell(data_dir, "SELECT block FROM blocks WHERE height = 2"), 4)
    code, out, err = run(capsys, "-o", "report.html", "--data-dir", data_dir)
    assert (code, out) == (5, "")
    assert "block 2" in err
    assert not Path("report.html").exists()


def test_a_stopped_nodes_report_loads_no_torch(data_dir: Path) -> None:
    script = (
        "import sys; from node.cli import main; "
        f"assert main(['runs', 'report', '-o', 'x.html', '--data-dir', {str(data_dir)!r}]) == 0; "
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
