"""The benchmark of simulations: both ways do the same work, what is reported of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from bench.application import main
from bench.simulate import run_simulate_bench
from ml.errors import DataError
from ml.simulation.run import SimulationConfig

pytestmark = pytest.mark.outer

SPREAD = {"median", "min", "max"}


def bench_simulate(**settings: Any) -> dict[str, Any]:
    work = {"name": "fedavg", "local_iterations": 2}
    config: dict[str, Any] = {"method": work, "clients": 3, "rounds": 2, "shots": 10, "partition": "iid"} | settings
    return run_simulate_bench(SimulationConfig(**config), repeats=2, report=lambda _: None)


@pytest.mark.slow
def test_both_ways_are_timed_and_compared() -> None:
    figures = bench_simulate(device="cpu")
    assert list(figures["devices"]) == ["cpu"]
    found = figures["devices"]["cpu"]
    assert found["steps"] == 3 * 2
    assert 0 <= found["largest_difference"] < 1e-5
    for times in (found["phase_s"], found["round_s"]):
        assert times.keys() == {"apart", "together"}
        assert all(spread.keys() == SPREAD for spread in times.values())


def test_all_devices_are_the_cpu_and_a_gpu_where_there_is_one() -> None:
    expected = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    assert list(bench_simulate(device="all")["devices"]) == expected


def test_clients_that_cannot_be_batched_are_not_timed() -> None:
    with pytest.raises(DataError, match=r"batched: model resnet18_cifar: expected one without batch norm"):
        bench_simulate(device="cpu", model={"name": "resnet18_cifar"})


def test_bench_simulate_prints_one_json_object_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--clients", "2", "--rounds", "2", "--repeats", "1", "--device", "cpu"]
    arguments = ["simulate", *sizes, "--set", "local_iterations=1"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["clients"] == 2
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("machine")
    assert any("times as fast" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--model resnet18_cifar --clients 2", 78, "batched: model resnet18_cifar: expected one without batch norm"),
        ("--set lrr=1", 78, "lrr"),
        ("--device gpu", 1, "device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
    ],
)
def test_bench_simulate_refuses_what_cannot_be_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    assert main(["simulate", *arguments.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
