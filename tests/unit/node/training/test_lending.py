"""A site's own model on its disk: which one it is, until when it stays, and why it is not lent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.calendar import Place
from ml.errors import DataError
from node.config.genesis_file import load_genesis
from node.config.node_config import NodeConfig, load_config
from node.errors import NotFound
from node.training.account import Account, RunAccount
from node.training.checkpoint import CHECKPOINTS, Checkpoint, Checkpoints, Phase, forget_old_runs, get_run_dir
from node.training.kept_rounds import get_kept_path
from node.training.lending import explain_not_lent, read_own, take_own_model
from node.training.privacy_ledger import PRIVACY_FILE
from node.training.trainer import RunTask
from node.training.worker_config import make_worker_config
from support.federation.fake_worker import FakeClient
from support.federation.real_nodes import make_federation


def write_run(directory: Path, run: int, rounds: int, *, keeps: bool = False) -> Path:
    run_dir = get_run_dir(directory, run)
    checkpoints = Checkpoints(run_dir, keep_as=(lambda number: get_kept_path(run_dir, number)) if keeps else None)
    for number in range(1, rounds + 1):
        checkpoints.save(Checkpoint(number, Phase.APPLIED, {"model/w": np.array([float(number)])}))
    checkpoints.close()
    return run_dir


def test_it_is_the_newest_or_one_that_is_kept(tmp_path: Path) -> None:
    newest, kept = write_run(tmp_path, 1, 3), write_run(tmp_path, 2, 3, keeps=True)
    assert read_own(newest, 3).arrays["model/w"].tolist() == [3.0]
    assert read_own(kept, 2).arrays["model/w"].tolist() == [2.0]
    with pytest.raises(NotFound, match=r"own model after round 2 is not kept here \(training.keep_models\)"):
        read_own(newest, 2)
    with pytest.raises(NotFound):
        read_own(tmp_path / "run-7", 1)


def test_what_a_run_lends_of_stays_while_that_run_is_the_newest(tmp_path: Path) -> None:
    old, other, newest = (write_run(tmp_path, number, 1) for number in (1, 2, 4))
    forget_old_runs(newest, old)
    assert (old.exists(), other.exists()) == (True, False)
    forget_old_runs(newest)
    assert not old.exists()


class Taking(FakeClient):
    """Keeps what it is told, and takes nothing where it is not to."""

    taken: list[tuple[Any, bool]]

    def take_own(self, trained: Any, /, *, lends: bool) -> None:
        self.taken.append((trained["model/w"].tolist(), lends))
        if lends:
            raise DataError("not this one")


def test_a_client_that_cannot_lend_goes_on_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = write_run(tmp_path, 1, 2)
    client: Any = Taking({"model/w": np.zeros(1)})
    client.taken = []
    take_own_model(client, run_dir, 2, lends=False)
    take_own_model(client, run_dir, 2, lends=True)
    take_own_model(client, run_dir, 1, lends=False)
    assert client.taken == [([2.0], False), ([2.0], True)]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "This site lends no model: not this one"
    assert said[1].startswith("This site answers by no model of its own: this site's own model after round 1 is not")


def make_config(path: Path) -> NodeConfig:
    directory = make_federation(path, num_nodes=2, rounds=3, method="fedavg")
    return load_config(directory / "node0.yaml")


def with_noise(config: NodeConfig) -> NodeConfig:
    privacy = config.training.privacy.model_copy(update={"dp_noise": 1.0})
    return config.model_copy(update={"training": config.training.model_copy(update={"privacy": privacy})})


def test_a_site_that_hides_its_samples_or_did_so_does_not_lend(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    place = Place(1, 2)
    assert "is not kept here" in str(explain_not_lent(config, place))
    write_run(config.node.data_dir / CHECKPOINTS, 1, 2)
    assert explain_not_lent(config, place) is None
    assert "by noise of its own (training.privacy)" in str(explain_not_lent(with_noise(config), place))
    account = config.node.data_dir / PRIVACY_FILE
    account.write_bytes(Account(runs={1: RunAccount(((1, 2),))}).encode())
    assert "has hidden its samples by noise in run 1" in str(explain_not_lent(config, place))
    assert "is not kept here" in str(explain_not_lent(config, Place(2, 2)))
    account.write_bytes(b"{")
    assert "damaged" in str(explain_not_lent(config, place))


def test_a_worker_is_told_to_lend_only_where_nothing_is_hidden(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    genesis = load_genesis(tmp_path / "genesis.yaml").genesis
    task = RunTask(genesis.run, genesis.rules.limits, 2, b"", own=Place(1, 3), lends=True)
    made = make_worker_config(config, task)
    assert (made.own_dir, made.own_round, made.lends) == (get_run_dir(config.node.data_dir / CHECKPOINTS, 1), 3, True)
    assert not make_worker_config(with_noise(config), task).lends
    assert not make_worker_config(config, replace(task, lends=False)).lends
    plain = make_worker_config(config, RunTask(genesis.run, genesis.rules.limits, 2, b""))
    assert (plain.own_dir, plain.own_round, plain.lends) == (None, None, False)
