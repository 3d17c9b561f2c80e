"""Runs for tests: what the next is to be, and trainers that make a client of their own for each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from chain.changes.runs import StartRun
from chain.run import Run
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes, get_default_input
from ml.payload import decode_arrays, encode_arrays
from ml.plugins import ANY_PLUGIN
from node.training.trainer import RunTask, Trained, TrainerInfo
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

NODES = ("node0", "node1", "node2", "node3")
MODEL = {"name": "mlp", "hidden": [16]}
DIGITS = {"format": "digits"}
SCHEMA = {"aggregate": {"model": "the same"}}  # so that one run may continue the other


def start_run(before: Run, *, model_bytes: bytes | None = None, **terms: Any) -> StartRun:
    """Makes the change to the next run after `before`, with other terms: it starts from a model of its own, or
    continues."""
    named = {name: value for name, value in (before.to_terms() | terms).items() if name != "initial_model"}
    initial = None if model_bytes is None else hashlib.sha256(model_bytes).digest()
    return StartRun(before.number + 1, named, initial)


def make_initial(model: Mapping[str, Any], run: Run, seed: int = 2) -> bytes:
    """Makes an initial model for the data of a run."""
    return encode_arrays(make_initial_aggregate(model, run.input["shape"], len(run.classes), seed))


class RunTrainer(InlineTrainer):
    """A trainer that makes client `index` of as many on digits as there are members, for each run. It keeps what it
    receives."""

    def __init__(
        self, index: int, num_clients: int, *, partition: str = "dirichlet:5", data: Mapping[str, Any] = DIGITS
    ) -> None:
        self._index = index
        self._num_clients = num_clients
        self._partition = partition
        self._data = data
        self.tasks: list[RunTask] = []
        self.trained: list[tuple[int, int]] = []  # runs and rounds

    async def start(self, task: RunTask) -> TrainerInfo:
        self.tasks.append(task)
        initial, run = task.initial_model, task.run
        data = initial if isinstance(initial, bytes) else initial.read_bytes()
        federation = Federation(
            method=run.method,
            model=run.model,
            classes=run.classes,
            input=run.input,
            rounds=run.rounds,
            num_members=self._num_clients,
            plugins=ANY_PLUGIN,
        )
        clients = make_clients(
            federation,
            data=self._data,
            partition=self._partition,
            run_seed=run.number,
            initial=decode_arrays(data, len(data)),
        )
        super().__init__(clients[self._index])
        return await super().start(task)

    async def train(self, round_number: int, beacon: bytes, /, **options: Any) -> Trained:
        self.trained.append((self._run, round_number))
        return await super().train(round_number, beacon, **options)


def learn(
    path: Path,
    method: Mapping[str, Any],
    story: Callable[[Cluster, list[RunTrainer]], Coroutine[Any, Any, None]],
    *,
    data: Mapping[str, Any] = DIGITS,
    **settings: Any,
) -> None:
    """Runs `story` with four members that train real clients on digits."""
    trainers = [RunTrainer(index, len(NODES), data=data) for index in range(len(NODES))]
    input_, classes = get_default_input(DIGITS, MODEL), get_classes(DIGITS)
    genesis = {"method": method, "model": MODEL, "classes": list(classes), "input": input_, "schema": SCHEMA}
    initial = make_initial(MODEL, _Shape(input_["shape"], classes), seed=1)  # type: ignore[arg-type]

    async def run() -> None:
        async with cluster(path, len(NODES), trainers=trainers, initial_model=initial, **(genesis | settings)) as net:
            await story(net, trainers)

    run_virtual(run())


class _Shape:
    def __init__(self, shape: Any, classes: Any) -> None:
        self.input, self.classes = {"shape": shape}, classes
