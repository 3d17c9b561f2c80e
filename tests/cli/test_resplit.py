"""`fednode data resplit`, and what commands say of a site's own split."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from node.cli import main
from node.config.yaml_source import dump_yaml, read_yaml
from node.training.own_split import SEED_FILE, SPLIT_FILE

Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    code = main(list(map(str, arguments)))
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def config(capsys: Captured, tmp_path: Path) -> Path:
    """The configuration of a site with a table of its own, which has never been started."""
    r = random.Random(3)
    rows = [f"p{i // 4},{r.gauss(i // 4 % 2, 1):.4f},{r.gauss(0, 1):.4f},{'bm'[i // 4 % 2]}" for i in range(200)]
    table = tmp_path / "a.csv"
    table.write_text("\n".join(["patient,a,b,label", *rows]) + "\n")
    (tmp_path / "plain.csv").write_text("\n".join(["a,b,label", *(row.split(",", 1)[1] for row in rows)]) + "\n")
    made = ("-n", 1, "-o", tmp_path / "net", "--data", f"csv:{tmp_path / 'plain.csv'}", "--partition", "iid")
    assert run(capsys, "testnet", *made, "--base-port", 0)[0] == 0
    path = tmp_path / "net" / "node0.yaml"
    told = read_yaml(path).value
    path.write_text(dump_yaml({**told, "data": {"format": "csv", "path": "../a.csv", "group": "patient"}}))
    return path


def train(config: Path) -> Path:
    """What a release without splits has left of a run."""
    data_dir = config.parent / "data" / "node0"
    (data_dir / "checkpoints/run-1").mkdir(parents=True)
    (data_dir / "checkpoints/run-1/applied.safetensors").write_bytes(b"a model")
    return data_dir


def test_a_node_that_has_trained_is_split_anew_when_it_is_asked_for(capsys: Captured, config: Path) -> None:
    data_dir = train(config)
    code, _, err = run(capsys, "start", "--check", "-c", config)
    assert code == 78
    assert "data.group: this site has trained by the split of an earlier release" in err
    assert "fednode data resplit" in err
    code, _, err = run(capsys, "data", "resplit", "-c", config)  # where nobody can be asked
    assert (code, "were trained on before: say --yes" in err) == (1, True)
    assert not (data_dir / SPLIT_FILE).exists()
    code, out, err = run(capsys, "data", "resplit", "-c", config, "--yes", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["train"], told["test"]) == (160, 40)
    assert 0 < len(told["trained_on"]) < 40
    assert told["trained_on"][0].startswith(str(config.parent.parent / "a.csv") + ": line ")
    assert (data_dir / SEED_FILE).exists()
    code, out, err = run(capsys, "start", "--check", "-c", config)
    assert code == 0, err
    assert "160 train / 40 test samples" in out
    again = json.loads(run(capsys, "data", "resplit", "-c", config, "--yes", "--json")[1])
    assert len(again["trained_on"]) == len(set(again["trained_on"])) <= 40


def test_what_was_trained_on_is_listed(capsys: Captured, config: Path) -> None:
    train(config)
    code, out, err = run(capsys, "data", "resplit", "-c", config, "--yes")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "160 train, 40 test"
    assert lines[1].endswith("of the 40 were trained on before")
    assert lines[-1].endswith("more; --json has them all")


def test_before_the_first_start_nothing_was_trained_on(capsys: Captured, config: Path) -> None:
    code, out, err = run(capsys, "data", "resplit", "-c", config)
    assert code == 0, err
    assert out == "160 train, 40 test\n0 of the 40 were trained on before\n"


def test_where_the_secret_is_gone_a_new_split_says_that_it_cannot_tell(capsys: Captured, config: Path) -> None:
    data_dir = train(config)
    assert run(capsys, "data", "resplit", "-c", config, "--yes")[0] == 0
    (data_dir / SEED_FILE).unlink()
    code, _, err = run(capsys, "start", "--check", "-c", config)
    assert (code, "split.seed: no such file" in err) == (78, True)
    code, out, err = run(capsys, "data", "resplit", "-c", config, "--yes")
    assert code == 0
    assert "split.seed: no such file" in err
    assert "which of the 40 were trained on before cannot be told" in out


def test_parts_of_a_data_set_are_not_split_anew(capsys: Captured, tmp_path: Path) -> None:
    assert run(capsys, "testnet", "-n", 1, "-o", tmp_path / "net", "--base-port", 0)[0] == 0
    code, _, err = run(capsys, "data", "resplit", "-c", tmp_path / "net" / "node0.yaml")
    assert (code, "data.partition: expected a site's own data" in err) == (78, True)


def test_doctor_and_inspect_go_by_the_split_that_is_kept(capsys: Captured, config: Path) -> None:
    assert run(capsys, "data", "resplit", "-c", config)[0] == 0
    digests = [json.loads(run(capsys, "data", "inspect", "-c", config, "--json")[1])["splits"] for _ in range(2)]
    assert digests[0] == digests[1]
    assert run(capsys, "data", "resplit", "-c", config)[0] == 0
    other = json.loads(run(capsys, "data", "inspect", "-c", config, "--json")[1])["splits"]
    assert [part["sha256"] for part in other] != [part["sha256"] for part in digests[0]]
    (config.parent / "data/node0" / SPLIT_FILE).write_text("{")
    checks = json.loads(run(capsys, "doctor", "-c", config, "--json")[1])["checks"]
    [found] = [check["found"] for check in checks if check["check"] == "data" and check["verdict"] == "fail"]
    assert "who is held out is damaged" in found
    code, _, err = run(capsys, "data", "inspect", "-c", config)
    assert (code, "who is held out is damaged" in err) == (1, True)


def test_a_table_is_looked_at_by_its_groups_before_there_is_a_genesis(capsys: Captured, config: Path) -> None:
    table = f"csv:{config.parent.parent / 'a.csv'}"
    code, out, err = run(capsys, "data", "inspect", table, "--set", "data.group=patient")
    assert code == 0, err
    assert "2 features" in out
    told = json.loads(run(capsys, "data", "inspect", table, "--set", "data.group=patient", "--json")[1])
    assert [part["samples"] for part in told["splits"]] == [160, 40]
    assert [column["name"] for column in told["proposed_input"]["columns"]] == ["a", "b"]


def test_a_share_that_is_asked_for_is_said(capsys: Captured, config: Path) -> None:
    table = config.parent.parent / "plain.csv"
    out = run(capsys, "data", "inspect", f"csv:{table}", "--set", "data.held_out=0.3")[1]
    assert "there is no test split: 30% of each class is held out" in out
    assert "60 rows of" in out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.split=a", "data.test=b.csv"), "data.split: expected none with data.test"),
        (("data.group=a", "data.id=b"), "data.id: expected none with data.group"),
        (("data.held_out=1",), "data.held_out"),
        (("data.group=age",), "data.group: .*a.csv has no column 'age'"),
    ],
)
def test_settings_of_a_split_that_cannot_be_are_one_line(
    capsys: Captured, config: Path, settings: tuple[str, ...], message: str
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    code, _, err = run(capsys, "start", "--check", "-c", config, *options)
    assert code == 78
    assert message.replace(".*", "") in err or all(part in err for part in message.split(".*"))


def test_a_site_that_asks_for_val_gets_it_and_is_told_how_many(capsys: Captured, config: Path) -> None:
    config.write_text(config.read_text().replace("data:\n", "data:\n  val: 0.2\n", 1))
    code, out, err = run(capsys, "data", "resplit", "-c", config)
    assert code == 0, err
    assert re.match(r"\d+ train, \d+ test, \d+ val\n", out)
    kept = json.loads((config.parent / "data/node0" / SPLIT_FILE).read_text())
    assert kept["val"]
    out = run(capsys, "data", "inspect", "-c", config)[1]
    assert re.search(r"\d+ rows of \w+ are val: not trained on, and rounds are compared by them", out)
    checks = json.loads(run(capsys, "doctor", "-c", config, "--json")[1])["checks"]
    assert any(re.search(r" train / \d+ test / \d+ val rows", check["found"]) for check in checks)
