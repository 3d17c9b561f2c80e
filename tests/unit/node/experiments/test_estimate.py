"""Estimates: steps as they are then made, hours by what is known, and what is not known said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.data import open_once
from ml.simulation.run import simulate
from node.cli.app import run as run_command
from node.experiments.estimate import Estimate, estimate
from node.experiments.piece import make_config
from node.experiments.plan import Experiment
from node.experiments.results import read_result, write_result
from node.host.machine import get_machine
from support.data.experiments import make_document, make_experiment

TEXT = """\
name: little
base: {clients: 3, rounds: 4, shots: 10, method: {local_epochs: 2, batch_size: 16}}
sweep:
  method: [local, {name: dfpl, drop_last: true}]
  partition: ["classes:3,1", "dirichlet:0.3"]
  seed: [1, 2]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return make_experiment(tmp_path, TEXT)


def make_estimates(experiment: Experiment, directory: Path) -> list[Estimate]:
    runs = list(experiment.runs.values())
    found = [result for run in runs if (result := read_result(directory, run)) is not None]
    with open_once():
        return estimate(runs, found, ("cpu",), directory, lambda text: None)


def test_steps_are_those_that_the_runs_then_make(experiment: Experiment, tmp_path: Path) -> None:
    from ml.clients.client import Client

    made = dict.fromkeys(("local", "dfpl"), 0)
    trained = Client.train

    def count(self: Client, height: int, beacon: bytes, **options: object) -> object:
        result = trained(self, height, beacon, **options)  # type: ignore[arg-type]
        made[self.spec.name] += int(result.metrics["steps"])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "train", count)
        for run in experiment.runs.values():
            simulate(make_config(run, tmp_path))
    found = {own.label.rpartition(", ")[2]: own for own in make_estimates(experiment, tmp_path)}
    assert {name: own.steps for name, own in found.items()} == made
    assert {(own.runs, own.heights, own.measured) for own in found.values()} == {(4, 16, frozenset())}
    assert all((own.seconds["cpu"] or 0) > 0 for own in found.values())


def test_clients_that_sit_a_round_out_make_no_steps(tmp_path: Path) -> None:
    text = "name: x\nbase: {clients: 4, rounds: 3, shots: 5, participation: 0.5, method: {local_iterations: 7}}\n"
    experiment = make_experiment(tmp_path, f"{text}sweep: {{method: [fedavg]}}\n")
    (own,) = make_estimates(experiment, tmp_path)
    assert own.steps == 3 * 2 * 7


def test_steps_of_an_encryptor_are_counted_as_those_of_the_model(tmp_path: Path) -> None:
    method = "{name: fededs, local_epochs: 5, warmup_epochs: 2, encryptor_epochs: 20, batch_size: 32}"
    text = f"name: x\nbase: {{clients: 2, rounds: 3, shots: 5}}\nsweep: {{method: [{method}]}}\n"
    experiment = make_experiment(tmp_path, text)
    (run,) = experiment.runs.values()
    (own,) = make_estimates(experiment, tmp_path)
    sizes = [client.num_train for client in simulate(make_config(run, tmp_path)).clients]
    batches = sum(-(-size // 32) for size in sizes)
    assert own.steps == (2 + 20 + 5 + 3 + 1) * batches  # the warm-up, the encryptor, and Eq. (5)


def test_only_the_device_that_finished_runs_were_made_on_goes_by_them(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("node.experiments.estimate.name_device", {"cpu": "cpu", "cuda": "NVIDIA H100"}.get)
    monkeypatch.setattr("node.experiments.gpus.count_gpus", lambda: 1)
    machine = {**get_machine(), "device": "NVIDIA H100"}
    (tmp_path / "little.yaml").write_text(TEXT.replace("local, ", ""))
    first = next(run for run in experiment.runs.values() if run.config["method"]["name"] == "dfpl")
    write_result(tmp_path / "out", first, make_document([0.5] * 4, seconds=40.0, machine=machine))
    assert (
        run_command(["experiment", "plan", str(tmp_path / "little.yaml"), "-o", str(tmp_path / "out"), "--json"]) == 0
    )
    (kind,) = json.loads(capsys.readouterr().out)["kinds"]
    assert kind["from"] == "timed steps, finished runs"
    assert kind["hours"]["cuda"] == 3 * 40.0 / 3600
    assert 0 < kind["hours"]["cpu"] != kind["hours"]["cuda"]


def test_finished_runs_tell_how_long_others_of_their_kind_take(experiment: Experiment, tmp_path: Path) -> None:
    machine = {**get_machine(), "device": "cpu"}
    first = next(run for run in experiment.runs.values() if run.config["method"]["name"] == "dfpl")
    write_result(tmp_path, first, make_document([0.5] * 4, seconds=40.0, machine=machine))
    local, dfpl = make_estimates(experiment, tmp_path)
    assert (dfpl.measured, dfpl.seconds["cpu"]) == (frozenset({"cpu"}), 16 * 10.0)
    assert not local.measured
    elsewhere = tmp_path / "elsewhere"
    write_result(elsewhere, first, make_document([0.5] * 4, seconds=40.0))  # made on an abacus
    assert not any(own.measured for own in make_estimates(experiment, elsewhere))


def test_data_that_are_not_there_are_named_and_cost_no_other_kind_its_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.replace("sweep:\n", "sweep:\n  data: [digits, {format: npz, path: nowhere.npz}]\n")
    (tmp_path / "little.yaml").write_text(text)
    arguments = ["experiment", "plan", str(tmp_path / "little.yaml"), "-o", str(tmp_path / "out")]
    assert run_command([*arguments, "-j", "2"]) == 0
    shown = capsys.readouterr()
    assert "nowhere.npz: no such file or directory" in shown.err
    lines = shown.out.splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["digits,", "mlp,", "local"],
        ["digits,", "mlp,", "dfpl"],
        ["nowhere.npz,", "mlp,", "local"],
        ["nowhere.npz,", "mlp,", "dfpl"],
    ]
    assert lines[-1] == "16 of 16 runs are left"
    assert not (tmp_path / "out").exists()

    assert run_command([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["runs"], whole["left"], whole["hours"]["cpu"]) == (16, 16, None)
    assert [kind["from"] for kind in whole["kinds"]] == ["timed steps", "timed steps", None, None]
