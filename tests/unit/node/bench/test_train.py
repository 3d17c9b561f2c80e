"""The benchmark of training: what it reports, and that it leaves nothing behind."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import pytest
import torch

import node.bench.train
from ml.errors import MlError
from node.bench.train import JOBS, Job, run_train_bench
from node.cli import main
from node.errors import ConfigError

pytestmark = [
    pytest.mark.outer,
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create:UserWarning",  # on a machine with one core
        "ignore:This process:DeprecationWarning",  # from Python 3.12 on: a fork of a process with threads
    ),
]

SPREAD = {"median", "min", "max"}


def bench_train(*models: str, **settings: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"steps": 2, "repeats": 1, "device": "cpu", "threads": 1, "engine": {}}
    return run_train_bench(models, report=lambda _: None, **usual | settings)


def test_every_speed_is_reported_with_its_ratio_and_its_machine() -> None:
    figures = bench_train("mlp", "cnn_mnist", repeats=2)
    assert figures["machine"].keys() >= {"cpu", "cores", "torch", "threads", "device"}
    assert list(figures["models"]) == ["mlp", "cnn_mnist"]
    for found in figures["models"].values():
        assert found["samples_per_s"].keys() == {"engine", "loader_0", "loader_2"}
        assert found["ratio"].keys() == {"loader_0", "loader_2"}
        for spread in (*found["samples_per_s"].values(), *found["ratio"].values()):
            assert spread.keys() == SPREAD
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    assert figures["models"]["mlp"]["parameters"] == 6_570
    assert figures["models"]["mlp"]["steps"] == 2


def test_the_ratio_of_one_repetition_is_that_of_its_speeds() -> None:
    found = bench_train("mlp")["models"]["mlp"]
    speeds = {name: spread["median"] for name, spread in found["samples_per_s"].items()}
    assert found["ratio"]["loader_0"]["median"] == pytest.approx(speeds["engine"] / speeds["loader_0"])
    assert found["ratio"]["loader_2"]["median"] == pytest.approx(speeds["engine"] / speeds["loader_2"])


def test_no_worker_outlives_the_benchmark_and_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    bench_train("mlp", threads=before + 1)
    assert multiprocessing.active_children() == []
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_every_job_fits_its_model() -> None:
    for job in JOBS:
        figures = bench_train(job.name, steps=1)
        assert figures["models"][job.name]["input_shape"] == list(job.input_shape)


@pytest.fixture
def small_frozen_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.bench.train, "FROZEN_JOBS", (Job("head_256", (3, 16, 16), 2),))


@pytest.mark.usefixtures("small_frozen_job")
def test_features_of_a_frozen_encoder_are_measured_against_running_it_in_each_step() -> None:
    figures = bench_train("head_256", "mlp")
    assert list(figures["models"]) == ["mlp"]
    found = figures["frozen"]["head_256"]
    assert (found["parameters"] - found["trained"], found["trained"], found["samples"]) == (11_176_512, 133_898, 1_438)
    speeds = {name: spread["median"] for name, spread in found["samples_per_s"].items()}
    assert found["ratio"]["median"] == pytest.approx(speeds["features"] / speeds["images"])
    epoch_s = {name: found["samples"] / speed for name, speed in speeds.items()}
    epochs = found["paid_after_epochs"]["median"]
    assert epochs * (epoch_s["images"] - epoch_s["features"]) == pytest.approx(found["pass_s"]["median"])


def test_engine_settings_are_measured_and_reported() -> None:
    engine = {"precision": "bf16", "channels_last": True}
    assert bench_train("cnn_mnist", steps=1, engine=engine)["engine"] == engine


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--models: expected some of mlp, cnn_mnist.* \(got 'mpl'\)"):
        bench_train("mpl")
    with pytest.raises(MlError, match="device: expected"):
        bench_train("mlp", device="gpu")


# ---- the command line


def test_bench_train_prints_one_json_object_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "train", "--models", "mlp", "--steps", "2", "--repeats", "1"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["models"].keys() == {"mlp"}
    assert captured.err == "measuring mlp on 1x8x8 …\n"
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["machine", "torch", "engine", "samples/s", "mlp"]


@pytest.mark.usefixtures("small_frozen_job")
def test_bench_train_says_when_features_have_paid_for_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "--models", "head_256", "--steps", "1", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["machine", "torch", "engine", "samples/s", "head_256"]
    assert "computing the features of 1,438 samples takes" in lines[5]
    assert "pays for itself in" in lines[5]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("train --models mlp,resnet", 78, "--models: expected some of"),
        ("train --models mlp --device gpu", 1, "device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("train --models mlp --precision fp16", 78, "--precision: expected fp32, bf16 or auto (got 'fp16')"),
    ],
)
def test_benchmarks_refuse_what_cannot_be_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    assert main(["bench", *arguments.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
