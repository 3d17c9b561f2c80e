"""A simulation that was cut short goes on inside, to the very numbers of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.simulation.results import RoundResult
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.simulation.saved import StateFile, decode_tree, encode_tree
from ml.specs import METHODS
from support.data.normed import describe_normed

ROUNDS = 4


class CutShort(Exception):
    """Stands for whatever ends a process."""


def make_config(method: str, **settings: Any) -> SimulationConfig:
    work: dict[str, Any] = {"name": method, "local_iterations": 2}
    if method == "fededs":
        quick = {"local_epochs": 1, "warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 2}
        work = {"name": method, **quick}
    own = {"model": describe_normed()} if method == "fedbn" else {}
    return SimulationConfig(method=work, **{"clients": 4, "rounds": ROUNDS, "shots": 8, **own, **settings})


def cut_short(config: SimulationConfig, file: StateFile, at: int = 3) -> None:
    """Runs until round `at` is done, of which nothing is kept."""

    def on_round(row: RoundResult) -> None:
        if row.round == at:
            raise CutShort

    with pytest.raises(CutShort):
        simulate(config, on_round=on_round, saved=file)


def assert_same(one: SimulationResult, other: SimulationResult) -> None:
    assert one.aggregate_digests == other.aggregate_digests
    assert one.to_json() == other.to_json()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_to_the_same_bits(tmp_path: Path, method: str) -> None:
    config = make_config(method)
    unbroken = simulate(config)
    cut_short(config, file := StateFile(tmp_path / "state", method, 0))
    began: list[int] = []
    assert_same(simulate(config, saved=file, on_round=lambda row: began.append(row.round)), unbroken)
    assert began == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize(
    "settings",
    [
        {"attack": {"name": "label_flip", "liars": 1}},
        {"max_loss_ratio": 1.0},
        {"input": {"shape": [1, 8, 8], "normalize": "agreed", "resize": None}},
        {"batched": "on"},
    ],
    ids=["attacked", "guarded", "agreed", "batched"],
)
def test_whatever_a_run_has_besides_its_method_goes_along(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = make_config("uapdfl" if "max_loss_ratio" in settings else "dfpl", **settings)
    unbroken = simulate(config)
    cut_short(config, file := StateFile(tmp_path / "state", "it", 0))
    assert_same(simulate(config, saved=file), unbroken)


def test_it_really_goes_on_and_does_not_begin_anew(tmp_path: Path) -> None:
    config = make_config("local")
    cut_short(config, file := StateFile(tmp_path / "state", "it", 0))
    tree = file.load()
    assert tree is not None
    assert [row["round"] for row in tree["rounds"]] == [1, 2]
    file.save({**tree, "seconds": 1000.0})
    assert simulate(config, saved=file).seconds > 1000


def test_nothing_is_saved_before_it_is_due(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state", "it", 3600)
    simulate(make_config("local"), saved=file)
    assert not file.path.exists()
    file.remove()


@pytest.mark.parametrize("harm", ["another run", "half of it", "another byte", "nothing"])
def test_a_file_that_is_not_this_runs_is_as_none(tmp_path: Path, harm: str) -> None:
    config = make_config("dfpl")
    path = tmp_path / "state"
    cut_short(config, StateFile(path, "another" if harm == "another run" else "it", 0))
    data = bytearray(path.read_bytes())
    if harm == "half of it":
        data = data[: len(data) // 2]
    elif harm == "another byte":
        data[-1] ^= 1
    elif harm == "nothing":
        data.clear()
    path.write_bytes(data)
    file = StateFile(path, "it", 3600)
    assert file.load() is None
    assert_same(simulate(config, saved=file), simulate(config))


def test_a_disk_that_takes_nothing_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    file = StateFile(tmp_path / "file" / "state", "it", 0)
    assert_same(simulate(make_config("local"), saved=file), simulate(make_config("local")))


def test_a_tree_comes_back_as_it_was() -> None:
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3).T, "a": np.array(7), "array": np.zeros(0, np.uint8)}
    tree = {"arrays": arrays, "bytes": b"\x00\xff", "nan": float("nan")}
    tree["list"] = [None, True, 0.1 + 0.2, "text"]
    back = decode_tree(encode_tree(tree))
    assert list(back["arrays"]) == ["b", "a", "array"]
    for name, array in arrays.items():
        assert (back["arrays"][name].dtype, back["arrays"][name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back["arrays"][name], array)
    assert (back["bytes"], back["list"], str(back["nan"])) == (b"\x00\xff", tree["list"], "nan")
