"""The benchmark of methods: phases of equal work, what is reported of them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from bench.application import main
from bench.methods import PARTS, ROWS, run_methods_bench
from ml.errors import MlError, SpecError
from ml.simulation.run import SimulationConfig

pytestmark = pytest.mark.outer

SPREAD = {"median", "min", "max"}


def bench(rows: Mapping[str, Mapping[str, Any]] = ROWS, *, repeats: int = 1, **settings: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"method": {"local_iterations": 2}, "clients": 2, "shots": 5, "partition": "iid"}
    config = SimulationConfig(**usual | settings)
    return run_methods_bench(config, repeats=repeats, report=lambda _: None, rows=rows)


def test_every_row_is_timed_against_the_baseline_and_taken_apart() -> None:
    figures = bench(repeats=2)
    assert figures["machine"].keys() >= {"cpu", "cores", "torch", "threads", "device"}
    assert figures["job"]["samples"] == [50, 50]
    assert list(figures["methods"]) == list(ROWS)
    for found in figures["methods"].values():
        assert found["steps"] == 2 * 2
        for spread in (found["phase_s"], found["ratio"]):
            assert spread.keys() == SPREAD
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        assert tuple(found["parts_s"]) == PARTS
        assert all(seconds > 0 for seconds in found["parts_s"].values())


def test_the_parts_of_one_phase_are_all_of_it() -> None:
    found = bench({"full": {"name": "mpfedcl"}})["methods"]["full"]
    assert sum(found["parts_s"].values()) == pytest.approx(found["phase_s"]["median"])


def test_each_phase_of_a_row_is_the_same_work_after_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import methods as bench_methods

    ends: list[bytes] = []
    heights: set[int] = set()
    time_phase = bench_methods._time_phase

    def note(row: Any) -> Any:
        heights.add(row.clients[0].method.get_prototypes(row.clients[0].state) is not None)
        phase = time_phase(row)
        ends.append(row.clients[0].state.model.get_parameter("fc1.weight").detach().numpy().tobytes())
        return phase

    monkeypatch.setattr(bench_methods, "BASELINE", {"name": "dfpl"})
    monkeypatch.setattr(bench_methods, "_time_phase", note)
    bench({"dfpl": {"name": "dfpl"}}, repeats=2)
    assert len(ends) == 1 + 2 * 2
    assert len(set(ends)) == 1
    assert heights == {True}


def test_a_setting_goes_to_the_methods_that_have_it() -> None:
    shared = {"local_iterations": 1, "num_prototypes": 3, "tau": 0.5}
    rows = {name: ROWS[name] for name in ("fedavg", "moon", "mpfedcl")}
    methods = {name: found["method"] for name, found in bench(rows, method=shared)["methods"].items()}
    assert [method["local_iterations"] for method in methods.values()] == [1, 1, 1]
    assert (methods["moon"]["tau"], methods["mpfedcl"]["tau"], methods["mpfedcl"]["num_prototypes"]) == (0.5, 0.5, 3)


def test_what_cannot_be_measured_is_refused_and_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(SpecError, match=r"method.lrr: unknown key: did you mean 'lr'"):
        bench(method={"lrr": 1}, threads=before + 1)
    with pytest.raises(MlError, match="device: expected"):
        bench(device="gpu")
    assert torch.get_num_threads() == before


# ---- the command line


def test_bench_methods_prints_one_json_object_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--clients", "2", "--partition", "iid", "--repeats", "1", "--set", "local_iterations=1"]
    arguments = ["methods", *sizes, "--set", "model.hidden=[4]"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert (figures["job"]["model"], figures["job"]["settings"]) == (
        {"name": "mlp", "hidden": [4]},
        {"local_iterations": 1},
    )
    assert captured.err.splitlines() == [f"measuring {name} …" for name in ROWS]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["machine", "torch", "job", "phase"]
    assert [line[:22].strip() for line in lines[4:]] == list(ROWS)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--set lrr=1", 78, "--set lrr: "),
        ("--model mlpp", 78, "--model: "),
        ("--size 0", 78, "--size: expected 1 to 1024 pixels (got 0)"),
        ("--partition dirichlet:x", 78, "dirichlet"),
        ("--device gpu", 1, "device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
    ],
)
def test_bench_methods_refuses_what_cannot_be_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    assert main(["methods", *arguments.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
