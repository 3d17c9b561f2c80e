"""`fednode metrics --members` and `fednode rounds show`: what members say of their own models, side by side."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from chain.calendar import Place
from chain.published import sign_published
from chain.store.sqlite import SqliteStore
from ml.measures.verdict import Verdict
from node.cli import main
from support.data.chains import make_keys
from support.federation.ledgers import make_ledgers

Captured = pytest.CaptureFixture[str]
ROUNDS = 3
COMPARED = Verdict("auc", 0.9, 0.85, 60, 0.01, 0.09)
TOLD = {(0, 1): 0.5, (1, 1): 0.6, (1, 3): 0.75}  # accuracy by member and round


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("members")
    genesis, keys = make_ledgers(path, ROUNDS), make_keys(4)
    with SqliteStore.open(path / "node0", genesis) as store:
        for height in range(1, ROUNDS + 1):
            store.put_published(
                height,
                [
                    sign_published(
                        keys[who],
                        genesis.chain_id,
                        Place(1, height),
                        num_samples=60,
                        values={"accuracy": accuracy, "loss": 0.25} | COMPARED.to_values(),
                    )
                    for (who, number), accuracy in TOLD.items()
                    if number == height
                ],
            )
        of_another_round = sign_published(keys[2], genesis.chain_id, Place(1, 9), num_samples=1, values={"auc": 1.0})
        store.put_published(2, [of_another_round])  # as where a change has taken the height
    return path / "node0"


def ask(capsys: Captured, data_dir: Path, *words: str) -> tuple[int, str, str]:
    code = main([*words, "--data-dir", str(data_dir)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_members_stand_side_by_side(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = ask(capsys, data_dir, "metrics", "--members")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["ROUND", "NODE0", "NODE1"], ["1", "0.5000", "0.6000"], ["3", "-", "0.7500"]],
    )


def test_another_measure_for_a_spreadsheet_and_for_programs(capsys: Captured, data_dir: Path) -> None:
    _, out, _ = ask(capsys, data_dir, "metrics", "--members", "--series", "loss", "--csv")
    assert [[*row[:2], *row[3:]] for row in csv.reader(io.StringIO(out))] == [
        ["run", "round", "node0", "node1"],
        ["1", "1", "0.25", "0.25"],
        ["1", "3", "", "0.25"],
    ]
    _, out, _ = ask(capsys, data_dir, "metrics", "--members", "--json", "--from", "2")
    shown = json.loads(out)
    assert (shown["measure"], shown["members"]) == ("accuracy", ["node1"])
    assert [(row["round"], row["members"]) for row in shown["rounds"]] == [(3, {"node1": 0.75})]


def test_no_words_and_no_measure(capsys: Captured, data_dir: Path) -> None:
    code, out, _ = ask(capsys, data_dir, "metrics", "--members", "--from", "2", "--to", "2")
    assert (code, out.strip()) == (0, "No member has published measures of these rounds (training.publish_metrics).")
    code, _, err = ask(capsys, data_dir, "metrics", "--members", "--series", "seconds.wall")
    assert code == 2
    assert "expected one of accuracy, alone_auc" in err
    assert ask(capsys, data_dir, "metrics", "--members", "--max-points", "10")[0] == 2


def test_a_round_shows_each_members_word(capsys: Captured, data_dir: Path) -> None:
    _, out, _ = ask(capsys, data_dir, "rounds", "show", "1")
    assert "What members say of their own models, on their own test samples:" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["MEMBER", "SAMPLES", "ACCURACY", "LOSS"] in rows
    assert ["node1", "60", "0.6000", "0.2500"] in rows
    assert f"\nnode1: {COMPARED.sentence}\n" in out
    _, out, _ = ask(capsys, data_dir, "rounds", "show", "1", "--json")
    published = json.loads(out)["published"]
    assert [(one["name"], one["verdict"]["sentence"]) for one in published] == [
        ("node0", COMPARED.sentence),
        ("node1", COMPARED.sentence),
    ]
    _, out, _ = ask(capsys, data_dir, "rounds", "show", "2")
    assert "What members say" not in out
