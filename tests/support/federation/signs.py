"""Small federations, each of which shows one sign of what is wrong with a model, at the site where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.clients.build import Federation, make_client, make_initial_aggregate
from ml.measures.collapse import Sign
from ml.payload import encode_arrays
from ml.specs.run_schema import describe_payloads
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, TargetScale
from support.federation.cluster import cluster
from support.federation.inline import InlineTrainer
from support.federation.proposing import get_service
from support.federation.virtual_time import run_virtual

Rows = tuple[NDArray[np.float32], NDArray[Any]]  # x_NF and y_N, or y_NT
NODES = ("node0", "node1", "node2", "node3")
NUM_FEATURES = 8
LINEAR = {"name": "linear"}
SHARES = (0.3, 0.5, 0.6)  # shares of samples that have each label
SEED_OF_NOTHING = 500  # a seed with which no site ranks its few test samples better than by chance


@dataclass(frozen=True, slots=True)
class Site:
    """A member's own samples."""

    train: Rows
    test: Rows

    def write(self, path: Path) -> dict[str, Any]:
        """Writes an archive. Returns the `data` of the node."""
        (x_train, y_train), (x_test, y_test) = self.train, self.test
        np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        return {"format": "npz", "path": str(path)}


@dataclass(frozen=True, slots=True)
class Shown:
    """Four sites, what they train, and what each of them shows in the end: a sign, or none."""

    sites: Callable[[], Sequence[Site]]
    at: Sequence[Sign | None]
    model: Mapping[str, Any] = field(default_factory=lambda: LINEAR)
    settings: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] = ("well", "ill")
    rounds: int = 6
    task: str = CLASSIFICATION


def draw(seed: int, counts: Sequence[int], apart: float = 3.0) -> Rows:
    """Draws so many samples of each class, normally distributed; class centres lie `apart` standard deviations from 0,
    each along an axis of its own."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    x = rng.normal(size=(len(y), NUM_FEATURES))
    x[np.arange(len(y)), y] += apart
    order = rng.permutation(len(y))
    return x[order].astype(np.float32), y[order]


def make_sites(
    draw_rows: Callable[[int, Any], Rows] = draw,
    train: Any = (60, 60),
    test: Any = (40, 40),
    *,
    last: Callable[[Rows, Rows], Site] = Site,
    seed: int = 0,
) -> list[Site]:
    """Makes four sites that are alike, except that `last` changes the samples of the last one."""
    drawn = [(draw_rows(seed + 2 * i, train), draw_rows(seed + 2 * i + 1, test)) for i in range(len(NODES))]
    return [*(Site(*rows) for rows in drawn[:-1]), last(*drawn[-1])]


def draw_hard(seed: int, counts: Sequence[int]) -> Rows:
    return draw(seed, counts, 1.0)


def draw_nothing(seed: int, counts: Sequence[int]) -> Rows:
    """Draws classes that are independent of the features, as where labels came to the wrong rows."""
    return draw(seed, counts, 0.0)


def draw_black(seed: int, counts: Sequence[int]) -> Rows:
    """Draws images that were all exported black."""
    x, y = draw(seed, counts)
    return np.zeros_like(x), y


def draw_with_rare(seed: int, counts: Sequence[int]) -> Rows:
    """Draws three classes, the last of which looks like the first, which is more frequent."""
    x, y = draw(seed, counts)
    x[y == 2, 2] -= 3.0
    x[y == 2, 0] += 3.0
    return x, y


def draw_labels(seed: int, count: int) -> Rows:
    """Draws three labels that are independent of the features."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, NUM_FEATURES)).astype(np.float32), (rng.random((count, 3)) < SHARES).astype(np.int64)


def draw_targets(seed: int, count: int) -> Rows:
    """Draws a target that is independent of the features."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, NUM_FEATURES)).astype(np.float32), rng.normal(50.0, 10.0, (count, 1))


def draw_unscaled(seed: int, count: int) -> Rows:
    """Draws a target that follows from the features, one of which is twice as large as the others: the mean squared
    error has a curvature of 8 along it, so that steps with a learning rate above 2 / 8 diverge."""
    rng = np.random.default_rng(seed)
    x = np.linalg.qr(rng.normal(size=(count, NUM_FEATURES)))[0] * count**0.5
    x[:, 0] *= 2
    return x.astype(np.float32), x @ np.arange(1.0, 1.0 + NUM_FEATURES)[:, None] + rng.normal(size=(count, 1))


def swap(rows: Rows, share: float = 1.0) -> Rows:
    """Swaps the first two classes in this share of the rows."""
    x, y = rows
    return x, np.where(np.random.default_rng(5).random(len(y)) < share, 1 - y, y)


def drop_rare(rows: Rows) -> Rows:
    x, y = rows
    return x[y < 2], y[y < 2]


def make_with_prevalence() -> list[Site]:
    """Makes sites of which the last sees almost only ill patients."""
    rare = Site(draw(6, (8, 92), 1.5), draw(7, (8, 92), 1.5))
    return make_sites(lambda seed, counts: draw(seed, counts, 1.5), last=lambda train, test: rare)


AT_LAST: tuple[None, None, None] = (None, None, None)
THREE = ("well", "ill", "rare")
FEDERATIONS: dict[str, Shown] = {
    "none": Shown(make_sites, (None,) * 4),
    "one_class": Shown(lambda: make_sites(draw_black), (Sign.ONE_CLASS,) * 4),
    "majority": Shown(
        lambda: make_sites(draw_nothing, (240, 160), (120, 80), seed=SEED_OF_NOTHING),
        (Sign.MAJORITY,) * 4,
        settings={"class_weights": "own"},
    ),
    "prior": Shown(
        lambda: make_sites(draw_labels, 60, 120),
        (Sign.PRIOR,) * 4,
        settings={"lr": 0.2},
        classes=("fever", "rash", "cough"),
        rounds=10,
        task=MULTILABEL,
    ),
    "mean": Shown(
        lambda: make_sites(draw_targets, 60, 120),
        (Sign.MEAN,) * 4,
        settings={"lr": 0.05},
        classes=("days",),
        rounds=10,
        task=REGRESSION,
    ),
    "worse": Shown(
        lambda: make_sites(draw_unscaled, 120, 80),
        (Sign.WORSE,) * 4,
        settings={"lr": 0.26, "local_epochs": 20, "batch_size": 120},
        classes=("days",),
        rounds=3,
        task=REGRESSION,
    ),
    "not_yet": Shown(lambda: make_sites(draw_hard), (Sign.NOT_YET,) * 4, settings={"lr": 0.001}, rounds=4),
    "overfitting": Shown(
        lambda: make_sites(draw_hard, (12, 12)),
        (Sign.OVERFITTING,) * 4,
        model={"name": "mlp", "hidden": [64]},
        settings={"local_epochs": 10, "lr": 0.3},
        rounds=10,
    ),
    "averaging": Shown(
        lambda: make_sites(last=lambda train, test: Site(swap(train), swap(test))),
        (*AT_LAST, Sign.AVERAGING),
        settings={"local_epochs": 10},
    ),
    "missing": Shown(
        lambda: make_sites(draw, (60, 60, 60), (30, 30, 30), last=lambda train, test: Site(drop_rare(train), test)),
        (*AT_LAST, Sign.MISSING),
        classes=THREE,
    ),
    "unfound": Shown(
        lambda: make_sites(draw_with_rare, (80, 60, 16), (40, 30, 12)), (Sign.UNFOUND,) * 4, classes=THREE, rounds=8
    ),
    "miscalibrated": Shown(
        lambda: make_sites(last=lambda train, test: Site(train, swap(test, 0.25))),
        (*AT_LAST, Sign.MISCALIBRATED),
        settings={"lr": 0.5, "local_epochs": 10, "weight_decay": 0.02},
    ),
    "behind": Shown(make_with_prevalence, (*AT_LAST, Sign.BEHIND)),
    "few": Shown(
        lambda: make_sites(last=lambda train, test: Site(train, (test[0][:8], test[1][:8]))), (*AT_LAST, Sign.FEW)
    ),
}


@dataclass(frozen=True, slots=True)
class Told:
    """The state of a site's node in the end: the record of the newest round, and the signs that last."""

    record: Mapping[str, Any]
    lasting: Mapping[str, str]


def federate(path: Path, shown: Shown) -> list[Told]:
    """Runs all rounds of a federation in memory. Returns what each site's node shows."""
    sites = shown.sites()
    data = [site.write(path / f"{name}.npz") for name, site in zip(NODES, sites, strict=True)]
    method = {"name": "fedavg", "lr": 0.1, "batch_size": 16, "local_epochs": 3, **shown.settings}
    terms: dict[str, Any] = {"model": shown.model, "input": {"shape": [NUM_FEATURES, 1, 1]}, "task": shown.task}
    if shown.task == REGRESSION:
        terms["target"] = TargetScale.measure(np.concatenate([site.train[1] for site in sites])).to_mapping()
    told = Federation(method=method, classes=shown.classes, rounds=shown.rounds, num_members=len(NODES), **terms)
    initial = make_initial_aggregate(shown.model, terms["input"]["shape"], len(shown.classes), 1)
    clients = [make_client(told, data=one, seed=i, initial=initial) for i, one in enumerate(data)]
    spec = clients[0].spec

    async def run() -> list[Told]:
        async with cluster(
            path / "nodes",
            len(NODES),
            rounds=shown.rounds,
            trainers=[InlineTrainer(one) for one in clients],
            initial_model=encode_arrays(initial),
            method=spec.to_mapping(),
            classes=list(shown.classes),
            schema=describe_payloads(spec),
            **terms,
        ) as net:
            found = [net[name].get_context().store for name in NODES]
            await net.wait_for(lambda: all(store.get_round(shown.rounds) for store in found), "all records")
            return [
                Told(store.get_round(shown.rounds) or {}, dict(get_service(net, name).records.learning.lasting))
                for name, store in zip(NODES, found, strict=True)
            ]

    return run_virtual(run())
