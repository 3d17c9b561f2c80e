"""`fednode data inspect` and `doctor` on tables as they lie at a site, before and after there is a genesis."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.cli import main
from node.config.genesis_file import load_genesis

Captured = pytest.CaptureFixture[str]
HEADER = "id,dataset,age,sex,chol,ca,seen,num"
ROWS = [
    f"{1000 + i},Basel,{28 + i * 7 % 50},{'fm'[i % 3 % 2]},{0 if i % 4 == 0 else 180 + i * 13 % 90},"
    f"{'?' if i % 3 else i % 2},2024-01-{i % 28 + 1:02},{'yes' if i % 2 else 'no'}"
    for i in range(60)
]


def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.csv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n")
    return path


def test_a_raw_table_is_shown_before_anybody_has_named_its_labels(capsys: Captured, raw: Path) -> None:
    code, out, err = run(capsys, "data", "inspect", raw)
    assert (code, err) == (0, "")
    assert re.search(r"COLUMN +TYPE +MISSING +MIN +MAX +MEAN +DEVIATION +VALUES\nid +number +0 +1000 +1059", out)
    assert re.search(r"\nca +number +40 \(67%\) +0 +1 ", out)
    assert re.search(r"\nsex +category +0 +f 40, m 20\n", out)
    assert re.search(r"\nseen +date +0 +2024-01-01 to 2024-01-28\n", out)
    assert "hardly features: id (another value in each row), dataset (one value), seen (dates)\n" in out
    assert "which column has the labels? --label COLUMN, or a column called label\n" in out


def test_a_raw_table_comes_with_what_genesis_new_may_be_told(capsys: Captured, raw: Path) -> None:
    code, out, err = run(capsys, "data", "inspect", raw, "--label", "num")
    assert (code, err) == (0, "")
    columns = "[{name: age}, {name: sex, values: [f, m]}, {name: chol}, {name: ca}]"
    assert f"  --set 'input.columns={columns}'\n  --set input.missing=mean\n  --set 'input.empty=[\"?\"]'\n" in out
    assert "row              5 features, float32 from 0 to 26" in out
    for text in (
        "warning: empty cells: 'ca' 40 of 60\n",
        "warning: '?' among the values of 'ca': an empty cell? input.empty in genesis may list it\n",
        "warning: 'chol': 15 times 0, far from the others: not known? Leave such cells empty, or name it as `empty` ",
        "warning: 'id': another value in each row: is it a feature?\n",
        "warning: 'dataset': one value: is it a feature?\n",
    ):
        assert text in out
    answer = json.loads(run(capsys, "data", "inspect", raw, "--label", "num", "--json")[1])
    assert answer["proposed_input"]["empty"] == ["?"]
    assert [own["name"] for own in answer["columns"]] == HEADER.split(",")
    assert answer["columns"][5]["missing"] == 40
    assert answer["classes"] == ["no", "yes"]


def test_what_is_told_is_what_a_genesis_takes(capsys: Captured, raw: Path, tmp_path: Path) -> None:
    out = run(capsys, "data", "inspect", raw, "--label", "num")[1]
    settings = shlex.split(" ".join(line for line in out.splitlines() if line.startswith("  --set ")))
    data = ("--data", f"csv:{raw}", "--set", "data.columns.label=num", "--partition", "iid", "--base-port", 0)
    code, out, err = run(capsys, "testnet", "-n", 2, "-o", tmp_path / "net", *data, *settings)
    assert code == 0, err
    table = load_genesis(tmp_path / "net/genesis.yaml").genesis.run.input
    assert [column["name"] for column in table["columns"]] == ["age", "sex", "chol", "ca"]
    assert (table["missing"], tuple(table["empty"])) == ("mean", ("?",))


def test_the_same_table_is_shown_alike_whatever_its_file(capsys: Captured, raw: Path, tmp_path: Path) -> None:
    shown = json.loads(run(capsys, "data", "inspect", raw, "--json")[1])
    names, cells = HEADER.split(","), [row.split(",") for row in ROWS]
    columns: dict[str, Any] = {name: [row[c] for row in cells] for c, name in enumerate(names)}
    for name in ("id", "age", "chol"):
        columns[name] = [int(cell) for cell in columns[name]]
    pq.write_table(pa.table(columns), tmp_path / "raw.parquet")
    of_parquet = json.loads(run(capsys, "data", "inspect", tmp_path / "raw.parquet", "--json")[1])
    (tmp_path / "raw.tsv").write_bytes("\r\n".join(["\t".join([*names]), *map("\t".join, cells)]).encode("utf-16"))
    of_tabs = json.loads(run(capsys, "data", "inspect", tmp_path / "raw.tsv", "--json")[1])
    assert of_parquet["columns"] == of_tabs["columns"] == shown["columns"]


def test_a_table_without_a_header_is_read_by_the_names_given(capsys: Captured, raw: Path, tmp_path: Path) -> None:
    path = tmp_path / "raw.data"
    path.write_text("\n".join(row.replace(",Basel", ",0.5") for row in ROWS) + "\n")
    code, out, err = run(capsys, "data", "inspect", path)
    assert (code, out) == (1, "")
    assert "raw.data: line 1: expected the names of columns, got 1000, 0.5, 28, f, 0, …: is the header missing?" in err
    code, out, _ = run(capsys, "data", "inspect", path, "--set", f"data.columns.names=[{HEADER}]", "--label", "num")
    assert code == 0
    assert re.search(r"\nage +number ", out)


def test_signs_that_were_taken_for_granted_are_said_and_can_be_set(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        "alter;Größe;label\n".encode("latin-1") + b"".join(b"%d;1,%02d;x\n" % (20 + i, i) for i in range(30))
    )
    out = run(capsys, "data", "inspect", path)[1]
    assert "warning: a.csv: not in UTF-8, and read as cp1252; data.csv.encoding says what it is in\n" in out
    assert "note: a.csv: a comma is taken for the decimal sign; data.csv.decimal says what it is\n" in out
    settings = [part for one in ("encoding=latin-1", "decimal=','") for part in ("--set", f"data.csv.{one}")]
    out = run(capsys, "data", "inspect", path, *settings)[1]
    assert "a.csv" not in out[out.index("input.columns") :]


def test_doctor_tells_what_is_missing_and_odd(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    rows = [
        f"{i},{28 + i * 7 % 50},{'' if i % 2 else i % 9},{'' if i % 10 == 0 else i % 7},{'ab'[i % 2]}"
        for i in range(60)
    ]
    table.write_text("\n".join(["id,age,ca,thal,label", *rows]) + "\n")
    columns = "input.columns=[{name: id}, {name: age}, {name: ca}, {name: thal}]"
    made = ("-n", 1, "-o", tmp_path / "net", "--data", f"csv:{table}", "--partition", "iid", "--base-port", 0)
    settings = ("--set", columns, "--set", "input.missing=zero")
    assert run(capsys, "testnet", *made, *settings)[0] == 0
    checks = json.loads(run(capsys, "doctor", "-c", tmp_path / "net/node0.yaml", "--json")[1])["checks"]
    found = [(check["verdict"], check["found"]) for check in checks if check["check"] == "data"]
    assert ("warn", "empty cells: 'ca' 30 of 60, 'thal' 6 of 60") in found
    assert ("warn", "'id': another value in each row: is it a feature?") in found
    out = run(capsys, "data", "inspect", "--config", tmp_path / "net/node0.yaml")[1]
    assert re.search(r"\nca +number +30 \(50%\) ", out)


def test_marks_among_words_are_no_category_until_somebody_says_so(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "age,sex,label\n" + "".join(f"{i % 9},{('f', 'm', 'NULL', '?')[i % 4]},{'xy'[i % 2]}\n" for i in range(32))
    )
    made = ("testnet", "-n", 2, "-o", tmp_path / "net", "--data", f"csv:{path}", "--set", "input.columns=auto")
    code, _, err = run(capsys, *made)
    assert (code, "'sex' has '?', 'NULL'. Where that means an empty cell" in err) == (78, True)
