"""The local work of a run, reckoned from its settings and how many samples each client has: epochs, and mini-batch
steps, by height.

FedEDS also warms the model up and trains the encryptor before round 1; their epochs count as any others do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

from ml.errors import SpecError
from ml.simulation.participation import draw_present
from ml.specs import MethodSpec
from ml.specs.methods.fededs import FedEdsHyperparameters
from ml.training.metrics import compute_mean
from node.experiments.plan import read_method
from node.experiments.results import Result


@dataclass(frozen=True, slots=True)
class LocalWork:
    """The local work of a client at one height: passes over its samples and mini-batch steps, of the model and of an
    encryptor."""

    epochs: float
    steps: int
    encryptor_epochs: int = 0
    encryptor_steps: int = 0


NOTHING = LocalWork(0, 0)


def list_local_work(result: Result) -> Sequence[Sequence[LocalWork]]:
    """Lists the local work of each client by height, those before round 1 first; clients that sat a height out have
    none. Empty for a method that is not known here."""
    try:
        spec = _read_spec(json.dumps(result.config["method"]), result.config["rounds"])
    except SpecError:
        return ()
    sizes = [client.num_train for client in result.clients]
    num_heights = len(result.sharing) + len(result.rounds)
    return [count_all_work(spec, height, sizes, result.config) for height in range(1, num_heights + 1)]


def compute_epochs(result: Result) -> tuple[float, ...]:
    """Computes the epochs that a client has trained by the end of each round, from the run's beginning on, mean over
    clients; empty for a method that is not known here."""
    heights = list_local_work(result)
    ends = accumulate(compute_mean(work.epochs + work.encryptor_epochs for work in height) for height in heights)
    return tuple(ends)[len(result.sharing) :]


def count_all_work(
    spec: MethodSpec, height: int, sizes: Sequence[int], config: Mapping[str, Any]
) -> Sequence[LocalWork]:
    """Counts the work of each client at a height, from their numbers of training samples and the run's
    configuration."""
    present = draw_present(config.get("participation", 1.0), len(sizes), config["seed"], height)
    return [count_work(spec, height, size) if i in present else NOTHING for i, size in enumerate(sizes)]


def count_work(spec: MethodSpec, height: int, num_train: int) -> LocalWork:
    """Counts the work of a client with so many training samples."""
    hyper, work = spec.hyperparameters, spec.get_local_work(height)
    batch = min(hyper.batch_size, num_train)
    if not hyper.counts_epochs:
        return LocalWork(work * batch / num_train, work)
    all_steps = -(-num_train // batch)
    steps = work * (num_train // batch if hyper.drop_last else all_steps)
    if height <= spec.sharing_heights and isinstance(hyper, FedEdsHyperparameters):
        return LocalWork(work, steps, hyper.encryptor_epochs, hyper.encryptor_epochs * all_steps)
    return LocalWork(work, steps)


@lru_cache(maxsize=1024)
def _read_spec(method: str, rounds: int) -> MethodSpec:
    return read_method(json.loads(method), rounds)
