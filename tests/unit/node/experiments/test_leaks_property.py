"""Properties: scores by hand, classes that must be told, noise that must tell nothing, and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, use_threads
from node.cli import main
from node.errors import ConfigError
from node.experiments.leaks.played import play
from node.experiments.leaks.property import (
    compute_rank_correlation,
    judge,
    list_attacks,
    make_counts,
    run_property_bench,
    score_change,
    score_units,
)

COUNTS = np.array([0, 30, 0, 10, 0, 30, 0, 10, 0, 30])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with use_threads(1):
        yield


def make_config(method: str = "fedavg", rounds: int = 3) -> SimulationConfig:
    return SimulationConfig(method={"name": method}, partition="iid", clients=2, rounds=rounds)


# ---- the scores


def test_ranks_agree_turn_around_and_share_their_mean_where_equal() -> None:
    def rank(scores: list[float], counts: list[int]) -> float:
        return compute_rank_correlation(np.array(scores), np.array(counts))

    assert rank([0.1, 7.0, 2.0], [1, 9, 5]) == pytest.approx(1.0)
    assert rank([0.1, 7.0, 2.0], [9, 1, 5]) == pytest.approx(-1.0)
    assert rank([-math.inf, 2.0, 1.0], [0, 2, 1]) == pytest.approx(1.0)
    assert rank([1.0, 2.0, 3.0], [0, 0, 1]) == pytest.approx(math.sqrt(3) / 2)  # ranks 1.5, 1.5, 3
    assert rank([1.0, 1.0], [0, 1]) == 0.0


def test_a_class_is_there_where_its_score_is_above_the_mean() -> None:
    found = judge(np.array([4.0, 0.0, 3.0, 1.0]), np.array([5, 0, 3, 2]))  # the mean is 2
    assert found == {"present": 0.75, "rank": pytest.approx(1.0), "rank_of_present": pytest.approx(1.0)}
    assert judge(np.array([-math.inf, -9.0]), np.array([0, 4]))["present"] == 1.0


def test_the_change_of_a_row_is_that_of_its_weights_and_its_bias() -> None:
    parent = {"a.weight": np.zeros((3, 4)), "b.weight": np.ones((2, 3)), "b.bias": np.zeros(2)}
    sent = {"a.weight": np.ones((3, 4)), "b.weight": np.array([[1, 2, 1], [1, 1, 1]]), "b.bias": np.array([0.5, -1])}
    assert score_change(parent, sent, 2).tolist() == [1.5, -1.0]
    with pytest.raises(ConfigError, match="a row of weights for each class"):
        score_change(parent, sent, 7)


def test_units_add_up_as_logarithms_and_none_is_infinite() -> None:
    units = [np.array([0.5, 0.5, 0.0], np.float32), np.array([1.0, 0.25, 0.0], np.float32)]
    scores = score_units(units)
    assert scores[:2].tolist() == pytest.approx([math.log(0.5), math.log(0.125)])
    assert math.isfinite(scores[2])


def test_half_of_the_classes_are_absent_and_the_others_grow_by_a_factor() -> None:
    assert make_counts(6, 32).tolist() == [0, 0, 0, 2, 8, 32]
    assert make_counts(5, 50).tolist() == [0, 0, 2, 10, 50]


# ---- what must be found, and what must not


def test_prototypes_name_a_sites_classes() -> None:
    for scores in list_attacks(play(make_config("dfpl", rounds=1), COUNTS)).values():
        assert (np.isfinite(scores) == (COUNTS > 0)).all()
        assert judge(scores, COUNTS)["present"] == 1.0


@pytest.mark.parametrize(
    ("method", "attack"),
    [("fedavg", "fedavg: model"), ("uapdfl", "uapdfl: model"), ("uapdfl", "uapdfl: unit representations")],
)
def test_models_and_unit_representations_tell_a_sites_classes(method: str, attack: str) -> None:
    found = judge(list_attacks(play(make_config(method), COUNTS))[attack], COUNTS)
    assert found["present"] >= 0.9
    assert found["rank"] > 0.7


def test_noise_tells_nothing() -> None:
    drawn = numpy_rng("noise").standard_normal((400, 10))
    found = [judge(scores, COUNTS) for scores in drawn]
    assert np.mean([one["present"] for one in found]) == pytest.approx(0.5, abs=0.05)
    assert np.mean([one["rank"] for one in found]) == pytest.approx(0.0, abs=0.1)


# ---- the bench and the command


def test_the_same_seed_gives_the_same_figures() -> None:
    first, again = (run_property_bench(make_config(rounds=1), most=10, repeats=1, report=lambda _: None) for _ in "ab")
    assert first["attacks"] == again["attacks"]
    assert list(first["attacks"]) == [
        "dfpl, own model: prototypes",
        "dfpl, the site's model: prototypes",
        "mpfedcl: prototypes",
        "mpfedcl: model",
        "fedavg: model",
        "uapdfl: model",
        "uapdfl: unit representations",
    ]
    assert first["job"]["sizes"] == [0, 0, 0, 0, 0, 2, 3, 4, 7, 10]


def test_the_command_prints_a_table_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["experiment", "attack", "property", "--most", "10", "--rounds", "1", "--repeats", "1"]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:37].strip() for line in lines[-2:]] == ["uapdfl: model", "uapdfl: unit representations"]
    assert lines[-7].split()[4:8] == ["100%", "(100%", "to", "100%)"]
    assert main([*asked, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["attacks"]["fedavg: model"].keys() == {"present", "rank", "rank_of_present"}


def test_the_command_refuses_what_cannot_be_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "attack", "property", "--most", "170"]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "expected at least 215 samples" in captured.err.splitlines()[-1]
