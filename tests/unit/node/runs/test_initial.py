"""Tests of the model that a run begins from, where it goes on from an aggregate of whole models, of parts, of none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.calendar import Calendar
from chain.run import Run
from ml.errors import PayloadError
from ml.payload import decode_arrays, encode_arrays
from ml.specs import get_spec
from ml.specs.run_schema import describe_payloads
from node.runs.initial import combine, holds_whole_model, read_initial
from node.runs.specs import RunSpecs

MLP = {"name": "mlp", "hidden": [3]}
SHAPES = {"fc1.weight": (3, 4), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}


def make_run(number: int, method: str = "dfpl", model: Mapping[str, Any] = MLP, first_height: int = 1) -> Run:
    spec = get_spec({"name": method}, model, 2, (1, 2, 2), num_members=4)
    return Run(
        number=number,
        first_height=first_height,
        method=spec.to_mapping(),
        model=model,
        classes=("a", "b"),
        input={"shape": [1, 2, 2], "resize": None, "mean": [0.0], "std": [1.0]},
        rounds=1,
        initial_model=bytes([number]) * 32,
        schema=describe_payloads(spec),
    )


def write(path: Path, value: float, names: tuple[str, ...] = tuple(SHAPES), kind: str = "model") -> Path:
    arrays = {f"{kind}/{name}": np.full(SHAPES.get(name, (2, 3)), value, np.float32) for name in names}
    path.write_bytes(encode_arrays(arrays))
    return path


def read(data: bytes) -> dict[str, float]:
    return {name: float(array.flat[0]) for name, array in decode_arrays(data, len(data)).items()}


def test_a_whole_model_is_taken_as_it_is(tmp_path: Path) -> None:
    whole, older = write(tmp_path / "a", 2.0), write(tmp_path / "b", 1.0)
    assert holds_whole_model(make_run(2), whole)
    assert read_initial(make_run(2), [whole, older]) == whole.read_bytes()


def test_of_an_aggregate_without_a_model_the_run_before_lends_its_own(tmp_path: Path) -> None:
    prototypes = write(tmp_path / "a", 2.0, ("sums",), "prototypes")
    assert not holds_whole_model(make_run(2), prototypes)
    found = read(read_initial(make_run(2), [prototypes, write(tmp_path / "b", 1.0)]))
    assert found == {f"model/{name}": 1.0 for name in SHAPES}


def test_each_array_is_the_newest_that_there_is(tmp_path: Path) -> None:
    newest = write(tmp_path / "a", 3.0, ("fc1.weight",))
    middle, first = write(tmp_path / "b", 2.0, ("fc1.weight", "fc1.bias")), write(tmp_path / "c", 1.0)
    found = read(combine(make_run(3), [newest, middle, first]))
    assert [found[f"model/{name}"] for name in SHAPES] == [3.0, 2.0, 1.0, 1.0]


def test_what_does_not_fit_the_model_of_the_run_is_left_out(tmp_path: Path) -> None:
    other = make_run(2, model={"name": "mlp", "hidden": [5]})
    assert set(read(combine(other, [write(tmp_path / "a", 1.0)]))) == {"model/fc2.bias"}
    assert not holds_whole_model(other, tmp_path / "a")


def test_bytes_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"nothing")
    assert not holds_whole_model(make_run(2), path)
    with pytest.raises(PayloadError):
        combine(make_run(2), [path])


@pytest.mark.parametrize(
    ("methods", "wanted"),
    [
        (["fedavg", "fedavg", "fedavg"], [3]),  # what fedavg aggregates is whole
        (["dfpl", "dfpl", "dfpl"], [3, 2, 1]),
        (["dfpl", "fedavg", "dfpl"], [3]),
        (["fedavg", "dfpl", "fedavg"], [3, 2]),
        (["fedper", "fedper"], [2, 1]),
    ],
)
def test_runs_are_looked_through_back_to_a_whole_model(methods: list[str], wanted: list[int]) -> None:
    runs = [make_run(i, method) for i, method in enumerate(methods, 1)]
    specs = RunSpecs(_Runs(runs))
    assert [run.number for run in specs.list_origins(len(runs))] == wanted


class _Runs(Calendar):
    """A calendar of these runs, on whatever heights."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = {run.number: run for run in runs}

    def get_run(self, number: int) -> Run | None:
        return self._runs.get(number)
