"""`make bench-lying-val`: one of the four hospitals lies about its val samples in every round. What that costs the
others is how much higher their test loss is in the round that is selected then, and how much lower their accuracy."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.defaults.arms import Arm, play
from bench.defaults.tables import TABLES
from chain.select import Select
from node.bench.figures import Report
from node.experiments.selected import SelectedRounds
from node.host.machine import get_machine

Row = Mapping[str, float]  # what one site has measured of one round
Rounds = Sequence[Sequence[Row]]  # by round and site
VAL = 0.2
MAX_WEIGHT = 1_000_000
HIGH, LOW = 1000.0, 0.0  # losses


def _go_contrary(rounds: Rounds, site: int, number: int) -> float:
    """The worse a round is for the others, the better."""
    return 10.0 / (1.0 + float(np.median([row["val_loss"] for i, row in enumerate(rounds[number - 1]) if i != site])))


Lie = Callable[[Rounds, int, int], float]  # the val loss that a site tells of a round
LIES: Mapping[str, Lie] = {
    "the first round is best": lambda rounds, site, number: LOW if number == 1 else HIGH,
    "each round is better": lambda rounds, site, number: 1.0 / number,
    "contrary to the others": _go_contrary,
    "at random": lambda rounds, site, number: float(np.random.default_rng([site, number]).random()),
}


class _Recorder:
    """Ends no run, and keeps what all sites measured."""

    best = None

    def __init__(self) -> None:
        self.rounds: list[Sequence[Row]] = []

    def add(self, number: int, measured: Sequence[Row | None]) -> bool:
        self.rounds.append([row or {} for row in measured])
        return False


def run_lying_val_bench(*, folds: int, rounds: int, patience: int, report: Report) -> dict[str, Any]:
    """By lie: over folds and liars, the difference of the honest sites' mean test loss and accuracy at the end of their
    run, and how often it was another round. Raises as `simulate`."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if (table := TABLES["heart"]()) is None:
        raise FileNotFoundError("the heart data are not here: make bench-defaults-data")
    select = Select(patience=patience)
    found: dict[str, list[tuple[float, float, int, int]]] = {}
    for i, fold in enumerate(list(table.split())[:folds]):
        report(f"fold {i + 1} of {folds}")
        recorder = _Recorder()
        with tempfile.TemporaryDirectory(prefix="fednode-lying-") as directory:
            arm = Arm(settings=(f"data.val={VAL}",))
            play(table, fold, arm, Path(directory), rounds, selector=recorder)
        told = recorder.rounds[1:]  # in the first they agree on what normalises
        honest = _choose(select, told)
        for name, lie in LIES.items():
            for site in range(len(told[0])):
                chosen = _choose(select, _tell(told, site, lie))
                then, before = (_judge(told[number - 1], site) for number in (chosen, honest))
                found.setdefault(name, []).append((then[0] - before[0], then[1] - before[1], chosen, honest))
    return {
        "machine": get_machine(),
        "job": {"folds": folds, "rounds": rounds, "patience": patience, "val": VAL},
        "lies": {name: _summarise(np.array(rows)) for name, rows in found.items()},
    }


def _tell(rounds: Rounds, site: int, lie: Lie) -> Rounds:
    """What the sites tell where one of them lies."""
    return [
        [{**row, "val_loss": lie(rounds, site, number)} if i == site else row for i, row in enumerate(rows)]
        for number, rows in enumerate(rounds, 1)
    ]


def _choose(select: Select, rounds: Rounds) -> int:
    """The round that members select when their run has ended."""
    selected = SelectedRounds(select, len(rounds[0]), MAX_WEIGHT)
    for number, rows in enumerate(rounds, 1):
        if selected.add(number, rows):
            break
    assert selected.best is not None
    return selected.best


def _judge(rows: Sequence[Row], liar: int) -> tuple[float, float]:
    """The honest sites' mean test loss and accuracy of a round."""
    honest = [row for i, row in enumerate(rows) if i != liar]
    return float(np.mean([row["loss"] for row in honest])), float(np.mean([row["accuracy"] for row in honest]))


def _summarise(rows: np.ndarray[Any, Any]) -> dict[str, float]:
    loss, accuracy, chosen, honest = rows.T
    return {
        "loss": float(loss.mean()),
        "worst_loss": float(loss.max()),
        "accuracy": float(accuracy.mean()),
        "worst_accuracy": float(accuracy.min()),
        "moved": float((chosen != honest).mean()),
        "chosen": float(chosen.mean()),
        "honest": float(honest.mean()),
    }
