"""`fednode privacy`: what a site has told so far, and what more rounds would tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.accountant import Release, Told, compute_epsilon
from node.cli.app import run as main
from node.config.node_config import load_config
from node.training.privacy_ledger import PrivacyLedger

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("net") / "cluster"
    asked = ("--method", "dfpl", "--set", "dp_noise=2", "--set", "dp_delta=1e-6", "--rounds", "10")
    assert main(["testnet", "-n", "2", "-o", str(directory), *asked]) == 0
    return directory


@pytest.mark.outer
def test_a_site_sees_what_it_has_told_and_how_far_a_budget_goes(network: Path, capsys: Captured) -> None:
    config_file = network / "node0.yaml"
    capsys.readouterr()
    assert main(["privacy", "--config", str(config_file), "--rounds", "5", "--json", "--budget", "6"]) == 0
    shown = json.loads(capsys.readouterr().out)
    release = Release(shown["steps"], shown["rate"], 2.0, 5.0)
    assert (shown["steps"], shown["noise"], shown["prototype_noise"], shown["delta"]) == (20, 2.0, 5.0, 1e-6)
    assert shown["told"] == {"phases": 0, "epsilon": 0.0, "guessable": 0}
    assert shown["ahead"] == [{"rounds": 5, "epsilon": compute_epsilon(Told.of([release] * 5), 1e-6)}]
    left = shown["rounds_left"]
    assert (
        compute_epsilon(Told.of([release] * left), 1e-6) <= 6 < compute_epsilon(Told.of([release] * (left + 1)), 1e-6)
    )

    data_dir = load_config(config_file).node.data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    PrivacyLedger.open(data_dir / "privacy.json", 1e-6, None).add(release, 1)
    assert main(["privacy", "--config", str(config_file), "--budget", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a round: 20 steps, each with any of ")
    assert lines[1] == "noise 2 by a gradient of 1 at most; in prototypes 5 by an embedding of 1 at most"
    assert (
        lines[2]
        == f"told so far, in 1 local phases: epsilon {compute_epsilon(Told.of([release]), 1e-6):.2f}, delta 1e-06"
    )
    assert lines[-1] == f"epsilon stays within 6 for {left - 1} rounds more"


def test_a_site_sees_what_noise_of_an_earlier_release_can_be_guessed(tmp_path: Path, capsys: Captured) -> None:
    asked = ("--method", "fedavg", "--set", "dp_update_noise=4", "--rounds", "10")
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "net"), *asked]) == 0
    config_file = tmp_path / "net" / "node0.yaml"
    data_dir = load_config(config_file).node.data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    told = Told.of([Release.of_update(4.0)] * 2)
    (data_dir / "privacy.json").write_text(json.dumps({"format": 1, **told.to_json()}))
    capsys.readouterr()
    ask = ["privacy", "--config", str(config_file), "--rounds", "1", "--budget", "1"]
    assert main(ask) == 0
    shown = capsys.readouterr().out
    assert "told so far, in 2 local phases: epsilon infinite, delta 1e-05" in shown
    assert "epsilon has no bound: the noise of 2 of 2 local phases can be guessed" in shown
    assert "epsilon stays within 1 for 0 rounds more" in shown
    assert main([*ask, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["told"], record["set_aside"]) == ({"phases": 2, "epsilon": None, "guessable": 2}, False)

    text = config_file.read_text()
    config_file.write_text(text.replace("\ntraining:\n", "\ntraining:\n  privacy_set_aside: guessable_noise\n"))
    assert main(ask) == 0
    shown = capsys.readouterr().out
    assert f"told so far, in 2 local phases: epsilon {compute_epsilon(told, 1e-5):.2f}, delta 1e-05" in shown
    assert "set aside: the noise of 2 of 2 local phases can be guessed" in shown


def test_a_run_that_hides_nothing_has_no_epsilon(tmp_path: Path, capsys: Captured) -> None:
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "net")]) == 0
    capsys.readouterr()
    assert main(["privacy", "--config", str(tmp_path / "net" / "node0.yaml")]) == 1
    said = capsys.readouterr().err
    assert (
        "expected a run that hides samples, by dp_noise, or sites, by dp_update_noise, or a site that does so" in said
    )
    assert "(got mpfedcl without)" in said


def test_of_a_run_that_hides_sites_updates_are_counted(tmp_path: Path, capsys: Captured) -> None:
    asked = ("--method", "fedavg", "--set", "dp_update_noise=4", "--set", "dp_update_clip=0.5", "--rounds", "10")
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "net"), *asked]) == 0
    capsys.readouterr()
    assert main(["privacy", "--config", str(tmp_path / "net" / "node0.yaml"), "--rounds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a round: one update of the model, of ")
    assert lines[1] == "noise 4 by a length of 0.5 at most"
    assert lines[-1].split() == ["2", f"{compute_epsilon(Told.of([Release.of_update(4.0)] * 2), 1e-5):.2f}"]


@pytest.mark.outer
def test_a_site_with_noise_of_its_own_sees_what_it_tells(tmp_path: Path, capsys: Captured) -> None:
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "net"), "--method", "dfpl", "--rounds", "10"]) == 0
    config_file = tmp_path / "net" / "node0.yaml"
    text = config_file.read_text()
    own = "\ntraining:\n  privacy: {dp_noise: 2.0, dp_clip: 0.5}\n"
    config_file.write_text(text.replace("\ntraining:\n", own))
    capsys.readouterr()
    assert main(["privacy", "--config", str(config_file), "--rounds", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["noise"], shown["prototype_noise"], shown["is_own"]) == (2.0, 5.0, True)
    release = Release(shown["steps"], shown["rate"], 2.0, 5.0)
    assert shown["ahead"] == [{"rounds": 3, "epsilon": compute_epsilon(Told.of([release] * 3), 1e-5)}]
    assert main(["privacy", "--config", str(config_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "by this site's own noise, which is more than the run asks for"
    assert lines[2] == "noise 2 by a gradient of 0.5 at most; in prototypes 5 by an embedding of 1 at most"
    config_file.write_text(text.replace("\ntraining:\n", "\ntraining:\n  privacy: {dp_update_noise: 1.0}\n"))
    assert main(["start", "--check", "--config", str(config_file)]) == 78
    assert "training.privacy.dp_update_noise: expected none: dfpl cannot hide that" in capsys.readouterr().err
    assert main(["start", "--config", str(config_file)]) == 78
    assert "training.privacy.dp_update_noise: expected none: dfpl cannot hide that" in capsys.readouterr().err


def test_what_was_told_in_a_run_with_noise_is_shown_where_the_first_run_has_none(
    tmp_path: Path, capsys: Captured
) -> None:
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "net"), "--method", "fedavg"]) == 0
    config_file = tmp_path / "net" / "node0.yaml"
    data_dir = load_config(config_file).node.data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    of_statistics = Release(0, 0.0, 5.0, 5.0)
    PrivacyLedger.open(data_dir / "privacy.json", 1e-5, None).add(of_statistics, 1)
    capsys.readouterr()
    assert main(["privacy", "--config", str(config_file)]) == 0
    told = "told so far, in 1 local phases: epsilon 0.73, delta 1e-05"
    assert capsys.readouterr().out.splitlines() == [
        "the first run of the chain hides nothing: what was told was told in others",
        told,
    ]
    assert main(["privacy", "--config", str(config_file), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["steps"], record["ahead"], record["told"]["phases"]) == (None, [], 1)


def test_a_run_of_statistics_has_one_release(tmp_path: Path, capsys: Captured) -> None:
    hiding = ("--set", "dp_noise=5", "--set", "input.normalize=agreed")
    asked = ("--method", "local", "--model", "linear", "--rounds", "1", *hiding)
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "net"), *asked]) == 0
    capsys.readouterr()
    assert main(["privacy", "--config", str(tmp_path / "net" / "node0.yaml"), "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a round of statistics: noise 5 by what a sample has in all its numbers at most"
    assert lines[-1].split() == ["1", "0.73"]
