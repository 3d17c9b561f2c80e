"""A site's own noise: what holds beside a run's rule, and where the method cannot have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain.genesis import Genesis
from chain.store.interface import RESTORED
from chain.store.sqlite import SqliteStore
from ml.errors import SpecError
from ml.specs.privacy import strengthen
from node.config.genesis_members import was_put_back
from node.config.node_config import load_config
from node.config.own_noise import explain_not_hidden, get_trained_method, validate_own_noise
from node.errors import ConfigError
from node.training.trainer import RunTask, WorkerFailed
from node.training.worker_config import make_worker_config
from support.data.chains import make_genesis_mapping, make_keys
from support.data.run_schemas import with_schema

FEDAVG = {"name": "fedavg", "local_iterations": 5, "weights": "samples"}
DFPL = make_genesis_mapping([])["method"]


def make_genesis(method: dict[str, Any], **overrides: Any) -> Genesis:
    return Genesis.from_mapping(with_schema(make_genesis_mapping(make_keys(4), method=method, **overrides)))


def choose(method: dict[str, Any], own: dict[str, float], **overrides: Any) -> dict[str, Any]:
    state = make_genesis(method, **overrides).state
    return get_trained_method(own, state.run, state.rules.limits, state.n)


@pytest.mark.parametrize(
    ("rule", "own", "expected"),
    [
        ({}, {"dp_noise": 2.0}, {"dp_noise": 2.0}),
        ({"dp_noise": 1.0}, {"dp_noise": 2.0}, {"dp_noise": 2.0}),
        ({"dp_noise": 3.0}, {"dp_noise": 2.0}, {"dp_noise": 3.0}),
        ({"dp_noise": 3.0}, {"dp_noise": 2.0, "dp_clip": 4.0}, {"dp_noise": 3.0, "dp_clip": 1.0}),
        ({"dp_noise": 3.0}, {"dp_noise": 2.0, "dp_clip": 0.5}, {"dp_noise": 3.0, "dp_clip": 0.5}),
        (
            {"dp_noise": 3.0, "dp_prototype_noise": 2.0},
            {"dp_noise": 4.0},
            {"dp_noise": 4.0, "dp_prototype_noise": 2.0},
        ),
        ({"dp_noise": 3.0}, {"dp_noise": 3.0, "dp_prototype_noise": 4.0}, {"dp_noise": 3.0, "dp_prototype_noise": 5.0}),
        ({"dp_noise": 3.0}, {}, {"dp_noise": 3.0}),
        ({"dp_update_noise": 2.0}, {"dp_update_noise": 1.0, "dp_update_clip": 0.1},
         {"dp_update_noise": 2.0, "dp_update_clip": 0.1}),
        ({"dp_update_noise": 2.0}, {"dp_update_noise": 3.0, "dp_update_clip": 9.0},
         {"dp_update_noise": 3.0, "dp_update_clip": 1.0}),
    ],
)  # fmt: skip
def test_the_stronger_holds(rule: dict[str, float], own: dict[str, float], expected: dict[str, float]) -> None:
    assert strengthen({"name": "fedavg", **rule}, own) == {"name": "fedavg", **expected}


def test_without_noise_of_its_own_a_site_trains_as_the_run_says() -> None:
    assert choose(FEDAVG, {}) == make_genesis(FEDAVG).run.method


@pytest.mark.parametrize(
    ("method", "own", "said"),
    [
        (DFPL, {"dp_update_noise": 1.0}, "training.privacy.dp_update_noise: expected none: dfpl cannot hide that"),
        (
            {**FEDAVG, "name": "moon"},
            {"dp_noise": 1.0},
            "training.privacy.dp_noise: expected none: moon sends what has no noise",
        ),
        (
            {**FEDAVG, "class_weights": "own"},
            {"dp_noise": 1.0},
            "training.privacy.dp_noise: expected none: method.class_weights: expected none with dp_noise, got own",
        ),
        (
            {**FEDAVG, "dp_noise": 1.0},
            {"dp_update_noise": 1.0},
            "training.privacy.dp_update_noise: expected none with dp_noise: whose site is hidden, its samples are",
        ),
        (
            {**FEDAVG, "dp_update_noise": 1.0},
            {"dp_noise": 1.0},
            "training.privacy.dp_noise: expected none: method.dp_update_noise: expected none with dp_noise: "
            "whose site is hidden, its samples are",
        ),
    ],
)
def test_a_method_that_cannot_have_it_is_named_with_its_reason(
    method: dict[str, Any], own: dict[str, float], said: str
) -> None:
    with pytest.raises(SpecError) as refused:
        choose(method, own)
    assert str(refused.value) == said


def test_what_members_agree_on_is_hidden_where_it_is_known_what_values_lie_between() -> None:
    agreed = {"shape": [1, 8, 8], "resize": None, "normalize": "agreed"}
    assert choose(FEDAVG, {"dp_noise": 1.0}, input=agreed)["dp_noise"] == 1.0
    table = {**agreed, "shape": [3, 1, 1]}
    with pytest.raises(SpecError, match=r"training.privacy.dp_noise: expected none: input.low: expected low and high"):
        choose(FEDAVG, {"dp_noise": 1.0}, input=table)
    assert choose(FEDAVG, {"dp_noise": 1.0}, input={**table, "low": [0.0], "high": [1.0]})["dp_noise"] == 1.0


# ---- in node.yaml


def write(path: Path, privacy: str) -> Path:
    file = path / "node.yaml"
    file.write_text(
        "node: {identity_key_file: k, data_dir: d}\ngenesis_file: genesis.yaml\nnetwork: {listen: '127.0.0.1:7053'}\n"
        f"training:\n  seed: 1\n  privacy: {privacy}\n"
    )
    return file


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ("{dp_clip: 1.0}", "training.privacy.dp_clip: expected none without dp_noise (got 1)"),
        ("{dp_update_clip: 2.0}", "training.privacy.dp_update_clip: expected none without dp_update_noise (got 2)"),
        ("{dp_noise: 1.0, dp_update_noise: 1.0}", "training.privacy.dp_update_noise: expected none with dp_noise"),
        ("{dp_noise: 0.0}", "training.privacy.dp_noise: must be "),
        ("{dp_delta: 0.1}", "training.privacy.dp_delta: unknown key"),
    ],
)
def test_noise_that_makes_no_sense_is_a_problem_of_the_file(tmp_path: Path, privacy: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path, privacy))
    assert said in refused.value.describe()


def test_a_worker_trains_with_it_and_others_are_asked_for_nothing(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "{dp_noise: 2.0, dp_clip: 0.5}"))
    genesis = make_genesis(FEDAVG)
    task = RunTask(genesis.run, genesis.state.rules.limits, 4, b"")
    made = make_worker_config(config, task)
    assert made.hides_itself
    assert made.method == {**genesis.run.method, "dp_noise": 2.0, "dp_clip": 0.5}
    plain = make_worker_config(load_config(write(tmp_path, "{}")), task)
    assert not plain.hides_itself
    assert plain.method == genesis.run.method


def test_a_run_of_a_method_that_cannot_have_it_is_not_trained(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "{dp_update_noise: 2.0}"))
    genesis = make_genesis(DFPL)
    said = "training.privacy.dp_update_noise: expected none: dfpl cannot hide that"
    with pytest.raises(WorkerFailed, match=said):
        make_worker_config(config, RunTask(genesis.run, genesis.state.rules.limits, 4, b""))
    with pytest.raises(ConfigError, match=said):
        validate_own_noise(config, genesis.state)
    later = replace(genesis.state, run=replace(genesis.run, number=2))
    validate_own_noise(config, later)  # the others chose it: this node votes
    assert said in (explain_not_hidden(config, later) or "")


def test_a_node_whose_chain_may_be_in_a_later_run_starts_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    genesis, said = make_genesis(DFPL), "dfpl cannot hide that; this node votes, and trains in a run that can have it"
    config_file = write(tmp_path, "{dp_update_noise: 2.0}")
    validate_own_noise(load_config(config_file), genesis.state, is_behind=True)
    assert said in caplog.text
    caplog.clear()
    config_file.write_text(config_file.read_text().replace("genesis_file: genesis.yaml", "join_file: join.json"))
    validate_own_noise(load_config(config_file), genesis.state)
    assert said in caplog.text


@pytest.mark.parametrize(("restored", "is_behind"), [(None, False), ({"until": None}, True)])
def test_a_chain_that_was_put_back_may_be_behind(
    tmp_path: Path, restored: dict[str, Any] | None, is_behind: bool
) -> None:
    genesis, config = make_genesis(DFPL), load_config(write(tmp_path, "{}"))
    assert not was_put_back(config, genesis)  # there is none
    with SqliteStore.open(config.node.data_dir, genesis) as store:
        store.put_meta(RESTORED, restored)
    assert was_put_back(config, genesis) is is_behind
