"""The worker of a run that selects its best round: it has val samples, and keeps the models of rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chain.select import Select
from node.config.genesis_file import load_genesis
from node.config.node_config import load_config
from node.training.trainer import RunTask
from node.training.worker_config import make_worker_config
from support.federation.real_nodes import make_federation


def test_a_tenth_is_val_and_rounds_are_kept_where_a_run_selects(tmp_path: Path) -> None:
    directory = make_federation(tmp_path, num_nodes=2, rounds=3, method="fedavg")
    config, genesis = load_config(directory / "node0.yaml"), load_genesis(directory / "genesis.yaml").genesis
    plain = make_worker_config(config, RunTask(genesis.run, genesis.rules.limits, 2, b""))
    assert (plain.data.get("val"), plain.keeps_rounds) == (None, False)
    selecting = replace(genesis.run, select=Select())
    made = make_worker_config(config, RunTask(selecting, genesis.rules.limits, 2, b""))
    assert (made.data["val"], made.keeps_rounds) == (0.1, True)
    training = config.training.model_copy(update={"keep_models": "newest 5"})
    kept = make_worker_config(
        config.model_copy(update={"training": training}), RunTask(genesis.run, genesis.rules.limits, 2, b"")
    )
    assert kept.keeps_rounds
