"""The arms of one fold of a table, on the same rows: members together, each alone, and all rows pooled, as `fednode
genesis new` would have them; and scikit-learn's logistic regression and boosting, alone and pooled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, log_loss, mean_absolute_error, r2_score, roc_auc_score

from bench.defaults.tables import LABEL, SPLIT, Table
from ml.clients.client import Client
from ml.methods.base import Samples
from ml.simulation.run import Selector, SimulationConfig, simulate
from ml.tasks import REGRESSION
from ml.training.mixture import find_weight, mix
from node.config.genesis_draft import GenesisSpec, draft_genesis
from node.config.recommended import choose_guards

NUM_BINS = 10  # of the calibration error
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """A federation's choices, as options of `genesis new`. `pooled` is one site that has all rows; `mixed` answers are
    those of the model and of one trained alone, by val samples."""

    method: str = "auto"
    model: str = "auto"
    settings: tuple[str, ...] = ()
    pooled: bool = False
    mixed: bool = False
    tasks: tuple[str, ...] = ("classification", "regression")


CLASSES = ("classification",)
ARMS: Mapping[str, Arm] = {
    "together": Arm(),
    "alone": Arm("local"),
    "mixed": Arm(settings=("data.val=0.1",), mixed=True),
    "pooled": Arm(pooled=True),
    "linear": Arm("fedavg", "linear", ("optimizer=sgd", "lr=0.1", "weight_decay=0.1", "local_iterations=5")),
    "fedprox": Arm("fedprox"),
    "fedavgm": Arm(settings=("method.outer.optimizer=momentum",)),
    "nesterov": Arm(settings=("method.outer.optimizer=nesterov",)),
    "half nesterov": Arm(
        settings=("method.outer.optimizer=nesterov", "optimizer=adamw", "lr=0.0005", "weight_decay=0.01")
    ),
    "fedadam": Arm(settings=("method.outer.optimizer=adam",)),
    "fedyogi": Arm(settings=("method.outer.optimizer=yogi",)),
    "scaffold": Arm("scaffold"),
    "fedper": Arm("fedper"),
    "fedrep": Arm("fedrep"),
    "ditto": Arm("ditto"),
    "fedala": Arm("fedala"),
    "feddbe": Arm("feddbe"),
    "uapdfl": Arm("uapdfl", tasks=CLASSES),
    "dfpl": Arm("dfpl", tasks=CLASSES),
    "mpfedcl": Arm("mpfedcl", tasks=CLASSES),
}
RIVALS = {
    "logistic": (LogisticRegression, Ridge),
    "boosting": (HistGradientBoostingClassifier, HistGradientBoostingRegressor),
}


def play(
    table: Table,
    fold: Mapping[str, pd.DataFrame],
    arm: Arm,
    directory: Path,
    rounds: int,
    *,
    selector: Selector | None = None,
) -> list[Client]:
    """The clients of all sites after the last round, in the order of the sites. A `selector` follows the rounds."""
    sites = {"all": pd.concat(fold.values())} if arm.pooled else fold
    paths = []
    for i, rows in enumerate(sites.values()):
        paths.append(str(directory / f"{i}.csv"))
        rows.to_csv(paths[-1], index=False)
    settings = (
        f"data.columns.label={LABEL}",
        f"data.split={SPLIT}",
        "input.missing=mean+flag",
        "input.unknown=other",
        f"input.columns={json.dumps(table.columns)}",
        *arm.settings,
    )
    spec = GenesisSpec(
        method=arm.method,
        model=arm.model,
        sites=() if arm.pooled else tuple(paths),
        data=f"csv:{paths[0]}",
        settings=settings,
        normalize="agreed",
        rounds=rounds + 1,  # in the first members agree on the mean and the deviation
        task=table.task,
    )
    asked, data = draft_genesis(spec)
    genesis = asked.value
    method = genesis["method"] | choose_guards(genesis["method"], len(sites))
    config = SimulationConfig(
        method=method,
        model=genesis["model"],
        input=genesis["input"],
        data=data,
        partition="iid" if arm.pooled else "domains",
        clients=len(sites),
        rounds=spec.rounds,
        task=table.task,
        target=genesis.get("target"),
    )
    ended: list[Client] = []
    simulate(config, on_end=ended.extend, selector=selector)
    return ended


def cut_test_rows(pooled: Client, owners: Sequence[Client]) -> list[Samples]:
    """The test rows of each site, which lie in their order in those of the one that has all, and are scaled as it has
    learned them."""
    rows = pooled.state.data.matched
    sizes = [len(owner.state.data.matched) for owner in owners]
    parts = [Samples(x, y) for x, y in zip(torch.split(rows.x, sizes), torch.split(rows.y, sizes), strict=True)]
    assert all(torch.equal(part.y, owner.state.data.matched.y) for part, owner in zip(parts, owners, strict=True))
    return parts


def judge(client: Client, samples: Samples | None = None) -> dict[str, float]:
    """What the model of a client is worth on its own test rows, or others that are scaled as it has learned them."""
    samples, task = client.state.data.matched if samples is None else samples, client.spec.task
    with torch.no_grad():
        said = client.predict(samples.x).logits.double().numpy()
    return score(samples.y.numpy(), said if task.kind == REGRESSION else _softmax(said))


def judge_mixed(together: Client, alone: Client) -> dict[str, float]:
    """What two models of a site are worth on its test rows, mixed as `ml.training.mixture` has it."""
    data, kind = together.state.data, together.spec.task.kind

    @torch.no_grad()
    def ask(client: Client, part: str) -> torch.Tensor:
        """What a model says of its own client's samples, which are scaled as it has learned them."""
        samples = getattr(client.state.data, part)
        return client.predict(samples.x).logits.double()

    val_y = data.train.y[:0] if data.val is None else data.val.y
    said_val = [torch.empty(0), torch.empty(0)] if data.val is None else [ask(one, "val") for one in (together, alone)]
    weight = find_weight(said_val[0], said_val[1], val_y, kind)
    said = mix(ask(together, "matched"), ask(alone, "matched"), weight, kind).numpy()
    return score(data.matched.y.numpy(), said if kind == REGRESSION else _softmax(said))


def judge_rival(name: str, train: Sequence[Client], owner: Client) -> dict[str, float]:
    """The same of scikit-learn's, trained on the rows of some clients; nothing where they have one class alone."""
    x, y = (np.concatenate(parts) for parts in zip(*(_take(client.state.data.train) for client in train), strict=True))
    x_test, y_test = _take(owner.state.data.matched)
    is_regression = owner.spec.task.kind == REGRESSION
    make = RIVALS[name][is_regression]
    options: dict[str, Any] = {"max_iter": 1000} if make is LogisticRegression else {}
    if is_regression:
        return score(y_test, make(**options).fit(x, y.ravel()).predict(x_test).reshape(y_test.shape))
    if len(np.unique(y)) < 2:
        return {}
    fitted = make(**options).fit(x, y)
    said = np.zeros((len(x_test), owner.state.data.num_classes))
    said[:, fitted.classes_] = fitted.predict_proba(x_test)
    return score(y_test, said)


def _take(samples: Any) -> tuple[Array, Array]:
    return samples.x.flatten(1).numpy(), samples.y.numpy()


def _softmax(logits: Array) -> Array:
    raised: Array = np.exp(logits - logits.max(1, keepdims=True))
    shares: Array = raised / raised.sum(1, keepdims=True)
    return shares


def score(y: Array, said: Array) -> dict[str, float]:
    """AUC, balanced accuracy, loss and calibration error of probabilities [N, C], R2 and mean absolute error of numbers
    [N, T]; what one class alone leaves undefined is left out."""
    if said.ndim < 2 or y.ndim > 1:
        return {"r2": r2_score(y, said), "mae": mean_absolute_error(y, said)}
    there, labels = np.unique(y), said.argmax(1)
    kept = np.clip(said, 1e-7, 1)
    found = {
        "loss": log_loss(y, kept / kept.sum(1, keepdims=True), labels=range(said.shape[1])),
        "calibration": _measure_calibration(labels == y, said.max(1)),
    }
    if len(there) < 2:
        return found
    binary = said.shape[1] == 2
    aucs = [roc_auc_score(y == c, said[:, c]) for c in ([1] if binary else there)]
    return {"auc": float(np.mean(aucs)), "balanced": balanced_accuracy_score(y, labels), **found}


def _measure_calibration(is_right: Array, sure: Array) -> float:
    """The expected calibration error over ten bins of equal width (Guo et al. 2017)."""
    bins = np.minimum((sure * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = [abs(is_right[bins == k].mean() - sure[bins == k].mean()) * (bins == k).mean() for k in np.unique(bins)]
    return float(np.sum(gaps))
