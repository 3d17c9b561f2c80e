"""The commands about the ledger: what stands on stdout, what on stderr, and with which code they end."""

from __future__ import annotations

import json
import os
import shutil
import socket as sockets
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import typer

from chain.audit import read_export
from chain.genesis import Genesis
from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from node.admin.ledger_client import read_pages
from node.cli import main
from node.cli.chain.chain import describe_event
from node.cli.output import format_table, show_bytes, show_seconds
from node.cli.target import find_socket
from node.pb import admin_pb2 as pb
from support.federation.ledgers import flip_byte, make_ledgers, read_cell

ROUNDS = 4
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Genesis, Path]:
    path = tmp_path_factory.mktemp("chain")
    return make_ledgers(path, ROUNDS), path / "node1"


@pytest.fixture
def data_dir(original: tuple[Genesis, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(original[1], tmp_path / "data"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run in, and no node named by the environment."""
    monkeypatch.delenv("FEDNODE_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: Captured, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    got, out, err = run(capsys, *arguments, "--json")
    assert got == code, err
    shown: dict[str, Any] = json.loads(out)
    return shown


def test_verify_has_the_keys_that_others_rely_on(capsys: Captured, data_dir: Path) -> None:
    shown = run_json(capsys, "chain", "verify", "--data-dir", data_dir)
    assert list(shown) == ["ok", "from", "to", "blocks", "signatures", "recomputed", "not_held", "head", "seconds"]
    assert (shown["ok"], shown["from"], shown["to"], shown["blocks"]) == (True, 0, ROUNDS, ROUNDS + 1)
    assert (shown["recomputed"], shown["not_held"], len(shown["head"])) == (0, [], 64)
    deep = run_json(capsys, "chain", "verify", "--deep", "--require-all", "--data-dir", data_dir)
    assert deep["recomputed"] == ROUNDS


def test_verify_loads_no_torch(data_dir: Path) -> None:
    script = (
        "import sys; from node.cli import main; "
        f"assert main(['chain', 'verify', '--deep', '--data-dir', {str(data_dir)!r}]) == 0; "
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": os.getcwd()})


@pytest.mark.parametrize(("column", "place"), [("block", "block 2"), ("certificate", "certificate")])
def test_a_broken_chain_ends_with_5_and_names_the_place(
    capsys: Captured, data_dir: Path, column: str, place: str
) -> None:
    flip_byte(data_dir / DATABASE, read_cell(data_dir, f"SELECT {column} FROM blocks WHERE height = 2"), 4)
    shown = run_json(capsys, "chain", "verify", "--data-dir", data_dir, code=5)
    assert (shown["ok"], shown["fault"]["height"]) == (False, 2)
    assert place in shown["fault"]["what"]
    assert list(shown["fault"]) == ["height", "what", "expected", "got"]
    code, out, err = run(capsys, "chain", "verify", "--data-dir", data_dir)
    assert code == 5
    assert out.startswith("broken: ")
    assert err.startswith("fednode: block 2: ")
    code, _, err = run(capsys, "chain", "list", "--data-dir", data_dir)
    assert code == 5
    assert "block 2" in err


def test_a_gap_is_a_fault_only_when_all_is_required(
    capsys: Captured, data_dir: Path, original: tuple[Genesis, Path]
) -> None:
    with SqliteStore.open(data_dir, original[0]) as store:
        stored = store.get_block(3)
        assert stored is not None
        assert store.delete_blob(stored.block.contributions[0].payloads[0].digest)
    shown = run_json(capsys, "chain", "verify", "--deep", "--data-dir", data_dir)
    assert (shown["ok"], shown["not_held"]) == (True, [3])
    shown = run_json(capsys, "chain", "verify", "--deep", "--require-all", "--data-dir", data_dir, code=5)
    assert shown["fault"]["height"] == 3
    code, _, _ = run(capsys, "chain", "verify", "--require-all", "--data-dir", data_dir)
    assert code == 2


def test_list_is_newest_first_and_plain_in_a_pipe(capsys: Captured, data_dir: Path) -> None:
    code, out, err = run(capsys, "chain", "list", "--limit", "2", "--data-dir", data_dir)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["HEIGHT", "ID"]
    assert [line.split()[0] for line in lines[1:]] == [str(ROUNDS), str(ROUNDS - 1)]
    assert "\x1b" not in out
    blocks = run_json(capsys, "chain", "list", "--reverse", "--from", "1", "--data-dir", data_dir)["blocks"]
    assert [block["height"] for block in blocks] == list(range(1, ROUNDS + 1))
    assert len(blocks[0]["id"]) == 64
    assert len(blocks[0]["miner"]) == 52


def test_show_takes_a_height_an_id_or_head(capsys: Captured, data_dir: Path) -> None:
    head = run_json(capsys, "chain", "show", "head", "--data-dir", data_dir)
    assert head["height"] == ROUNDS
    assert run_json(capsys, "chain", "show", str(ROUNDS), "--data-dir", data_dir) == head
    assert run_json(capsys, "chain", "show", head["id"], "--data-dir", data_dir) == head
    shown = run_json(capsys, "chain", "show", "1", "--payloads", "--data-dir", data_dir)
    arrays = shown["contributions"][0]["payloads"][0]["arrays"]
    assert arrays[1] == {"name": "prototypes", "dtype": "float32", "shape": [2, 4]}
    code, out, _ = run(capsys, "chain", "show", "0", "--data-dir", data_dir)
    assert code == 0
    assert out.split()[:2] == ["height", "0"]


def test_what_is_not_there_ends_with_3(capsys: Captured, data_dir: Path, tmp_path: Path) -> None:
    for arguments in (["chain", "show", "99"], ["chain", "show", "00" * 32], ["rounds", "show", "99"]):
        code, out, err = run(capsys, *arguments, "--data-dir", data_dir)
        assert (code, out) == (3, "")
        assert err.startswith("fednode: ")
    code, _, err = run(capsys, "chain", "list", "--data-dir", tmp_path / "nothing")
    assert code == 3
    assert "no node has run there" in err
    code, _, err = run(capsys, "chain", "show", "0000f1c7", "--data-dir", data_dir)
    assert code == 2
    assert "64 hexadecimal digits" in err


def test_numbers_beyond_all_heights_are_a_usage_error_or_simply_everything(capsys: Captured, data_dir: Path) -> None:
    huge = str(10**20)
    for arguments in (["rounds", "show", huge], ["rounds", "list", "--from", huge], ["chain", "list", "--from", huge]):
        code, out, err = run(capsys, *arguments, "--data-dir", data_dir)
        assert (code, out) == (2, "")
        assert "9223372036854775807" in err
    code, out, _ = run(capsys, "chain", "list", "--limit", huge, "--json", "--data-dir", data_dir)
    assert code == 0
    assert len(json.loads(out)["blocks"]) == ROUNDS + 1


def test_export_writes_all_or_nothing(
    capsys: Captured, data_dir: Path, tmp_path: Path, original: tuple[Genesis, Path]
) -> None:
    file = tmp_path / "chain.bin"
    shown = run_json(capsys, "chain", "export", file, "--from", "1", "--data-dir", data_dir)
    assert (shown["from"], shown["to"], shown["blocks"]) == (1, ROUNDS, ROUNDS)
    assert shown["bytes"] == file.stat().st_size
    exported = list(read_export(BytesIO(file.read_bytes()), original[0].chain_id))
    assert [height for height, _, _ in exported] == list(range(1, ROUNDS + 1))
    code, _, err = run(capsys, "chain", "export", file, "--data-dir", data_dir)
    assert code == 1
    assert "--force" in err
    lines = tmp_path / "chain.jsonl"
    assert run(capsys, "chain", "export", lines, "--format", "jsonl", "--data-dir", data_dir)[0] == 0
    *rows, end = [json.loads(line) for line in lines.read_text().splitlines()]
    assert end == {"end": {"blocks": ROUNDS + 1, "head": rows[-1]["id"]}}
    assert [row["height"] for row in rows] == list(range(ROUNDS + 1))
    assert bytes.fromhex(rows[1]["block"]) == exported[0][1]
    code, _, _ = run(capsys, "chain", "export", tmp_path / "late", "--from", "99", "--data-dir", data_dir)
    assert code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.bin", "chain.jsonl", "data"]


def test_rounds_say_what_they_took_and_brought(capsys: Captured, data_dir: Path) -> None:
    rounds = run_json(capsys, "rounds", "--data-dir", data_dir)["rounds"]
    assert rounds == run_json(capsys, "rounds", "list", "--data-dir", data_dir)["rounds"]
    assert [entry["round"] for entry in rounds] == list(range(ROUNDS, 0, -1))
    shown = run_json(capsys, "rounds", "show", "2", "--data-dir", data_dir)
    assert shown == rounds[ROUNDS - 2]
    assert {"train", "exchange", "mine", "vote", "apply", "wall"} <= set(shown["seconds"])
    code, out, _ = run(capsys, "rounds", "show", "2", "--data-dir", data_dir)
    assert code == 0
    assert "accuracy" in out
    assert "s a local iteration" in out
    assert f"{shown['beta_s']:.3f} s of mining" in out
    code, out, _ = run(capsys, "rounds", "--data-dir", data_dir)
    heading, newest, *_ = (line.split() for line in out.splitlines())
    at = heading.index("E")
    told = rounds[0]["seconds"]
    assert newest[at : at + 4] == ["20", *(f"{told[phase]:.3f}" for phase in ("train", "mine", "wall"))]


def test_a_command_says_which_node_it_cannot_find(capsys: Captured, tmp_path: Path) -> None:
    for command in (["status"], ["peers"], ["health"], ["chain", "list"], ["rounds"]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (4, "")
        assert "--socket" in err
    (tmp_path / "run").mkdir()
    for name in ("node0.sock", "node1.sock"):
        (tmp_path / "run" / name).touch()
    code, _, err = run(capsys, "status")
    assert code == 2
    assert "run/node0.sock" in err
    assert "run/node1.sock" in err
    code, _, err = run(capsys, "status", "--socket", tmp_path / "none.sock")
    assert code == 4
    assert "none.sock: no such socket; is the node running?" in err
    assert run_json(capsys, "health", "--socket", tmp_path / "none.sock", code=4)["live"] is False
    code, _, err = run(capsys, "status", "--socket", tmp_path / "run" / "node0.sock")
    assert (code, "expected a node's socket, got a file" in err) == (4, True)
    code, _, err = run(capsys, "status", "--socket", tmp_path / "run")
    assert (code, "expected a node's socket, got a directory" in err) == (4, True)


def test_of_several_sockets_the_one_that_is_served_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDNODE_ADDRESS", raising=False)
    (tmp_path / "run").mkdir()
    with sockets.socket(sockets.AF_UNIX) as dead, sockets.socket(sockets.AF_UNIX) as alive:
        dead.bind("run/node0.sock")
        alive.bind("run/node1.sock")
        with pytest.raises(typer.BadParameter):
            find_socket(None, None)
        alive.listen()
        assert find_socket(None, None) == Path("run/node1.sock")
        dead.listen()
        with pytest.raises(typer.BadParameter, match=r"run/node0.sock, run/node1.sock"):
            find_socket(None, None)


def test_a_stopped_node_is_read_by_its_configuration(capsys: Captured, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    assert main(["testnet", "-n", "3", "-o", str(cluster), "--base-port", "0"]) == 0
    capsys.readouterr()
    config = cluster / "node0.yaml"
    code, _, err = run(capsys, "status", "--config", config)
    assert code == 4
    code, _, err = run(capsys, "chain", "list", "--config", config)
    assert code == 3
    assert f"reading {cluster / 'data' / 'node0'}" in err
    code, _, _ = run(capsys, "chain", "list", "--config", config, "--data-dir", cluster)
    assert code == 2


def test_an_event_is_one_line_with_names_for_ids() -> None:
    data = {"height": 3, "id": "ab" * 32, "miner": "k5ry" * 13, "miner_name": "node1", "seconds": {"train": 1.0}}
    line = describe_event("2026-11-20T14:02:16.042Z", "block", data)
    assert line == "2026-11-20 14:02:16  block     height 3  id abababab  miner node1"
    line = describe_event("2026-11-20T14:02:16.042Z", "consent", {"time_ms": 1_763_647_336_042})
    assert line == "2026-11-20 14:02:16  consent   time 2025-11-20 14:02:16"


def test_units_are_read_by_people() -> None:
    assert [show_bytes(count) for count in (0, 999, 7_800, 52_000_000)] == ["0 B", "999 B", "7.8 kB", "52.0 MB"]
    assert [show_seconds(seconds) for seconds in (0.0421, 12.34, 300, 7200)] == ["0.042 s", "12.3 s", "5 min", "2 h"]


def test_columns_are_aligned_and_lines_end_where_they_end() -> None:
    lines = format_table((">HEIGHT", "ID", "NOTE"), [("7", "ab", ""), ("12", "abcdef", "x")])
    assert lines == ["HEIGHT  ID      NOTE", "     7  ab", "    12  abcdef  x"]
    assert format_table(("", ""), [("id", "1"), ("height", "2")]) == ["id      1", "height  2"]


def test_pages_are_gathered_up_to_the_limit() -> None:
    def get_page(at: int | None, count: int) -> pb.ListBlocksReply:
        begin = at or 0
        heights = range(begin, min(begin + min(count, 3), 10))
        following = heights[-1] + 1 if heights[-1] < 9 else None
        return pb.ListBlocksReply(blocks=[pb.BlockSummary(height=height) for height in heights], next=following)

    def gather(first: int | None, limit: int) -> list[int]:
        return [block.height for block in read_pages(get_page, lambda page: page.blocks, first, limit)]

    assert gather(None, 7) == [0, 1, 2, 3, 4, 5, 6]
    assert gather(8, 20) == [8, 9]
