"""Evaluations for which sites lend their own models, in a federation of scripted trainers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from chain.changes.runs import StartRun
from chain.run import Run
from ml.payload import Array, decode_arrays, encode_arrays, make_empty_arrays
from ml.specs import get_spec
from ml.specs.methods.lending import LENDING, LENT, LendingSpec, split_rows
from ml.tasks import CLASSIFICATION
from node.consensus.governance.lending import Lending
from node.federation.builders import ChangeContext, ChangeRequest, build_change
from node.federation.measured_model import check_measured_model, find_trained, read_measured_model
from node.runs.specs import RunSpecs
from node.training.trainer import RunTask, Trained, TrainerInfo
from support.federation.cluster import Cluster, ScriptedTrainer
from support.federation.masked import make_model
from support.federation.proposing import approve, get_service, propose, wait_for_state

Change = Callable[[dict[str, Array]], dict[str, Array]]


class Lender(ScriptedTrainer):
    """A trainer that lends a model made from its seed when asked to, `changed` if it lies, and evaluates each model to
    its first number."""

    def __init__(self, seed: int, changed: Change | None = None) -> None:
        super().__init__(seed)
        self.changed = changed
        self.task: RunTask | None = None
        self.measured: list[Mapping[str, Array]] = []

    async def start(self, task: RunTask) -> TrainerInfo:
        self.task = task
        return await super().start(task)

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        assert self.task is not None
        spec = get_lending_spec(self.task.run)
        if spec is None:
            return trained
        if height == LENDING:
            lent = make_empty_arrays(spec.lent_schema) if not self.task.lends else make_lent(self.seed)
            if self.changed is not None:
                lent = self.changed(lent)
            return Trained(1, {LENT: encode_arrays(lent)}, trained.metrics)
        shared = options["shared"]
        held = shared.decode_blobs()
        self.measured = [held[offer.digests[LENT]] for offer in spec.list_lenders(shared.offers)]
        rows = [make_row(spec, 1.0)] * spec.num_common
        rows += [make_row(spec, float(lent["fc1.bias"][0, 0])) for lent in self.measured]
        return Trained(1, {"evaluation": encode_arrays(spec.stack(rows))}, trained.metrics)


def make_lent(seed: int) -> dict[str, Array]:
    """Makes the model that the trainer with this seed lends."""
    return {name: array[None] for name, array in make_model(seed, 0).items()}


def make_row(spec: LendingSpec, figure: float) -> dict[str, Array]:
    """Makes a row of 60 samples, with an accuracy that the figure determines."""
    row = spec.tell_nothing()
    row["samples"] = np.array(60, np.int64)
    row["figures"][0, 0] = round(abs(figure) % 1 * 1_000_000)
    return row


def get_lending_spec(run: Run) -> LendingSpec | None:
    if run.method["name"] != "evaluation":
        return None
    spec = get_spec(run.method, run.model, len(run.classes), run.input["shape"], rounds=run.rounds, kind=CLASSIFICATION)
    return spec if isinstance(spec, LendingSpec) else None


def draft_lending(net: Cluster, **terms: Any) -> tuple[StartRun, bytes]:
    """Drafts the change that the first node would sign."""
    store, tip = net["node0"].store, get_service(net, "node0").tip
    assert store is not None
    runs, terms = RunSpecs.load(store), {"lend": True, **terms}
    ground = ChangeContext(
        tip, net.id("node0"), trained=find_trained(runs.calendar), model=read_measured_model(store, runs, terms)
    )
    built = build_change(ChangeRequest("evaluation", terms), ground)
    assert isinstance(built.change.kind, StartRun)
    assert built.blob is not None
    return built.change.kind, built.blob


async def begin_lending(net: Cluster, lenders: Collection[str], **terms: Any) -> StartRun:
    """Starts an evaluation that three of four approve, and for which these members lend."""
    start, blob = draft_lending(net, **terms)
    store = net["node0"].store
    assert store is not None
    store.put_blob(blob)
    for node in net.nodes.values():
        if node.store is not None:
            check_measured_model(node.store, RunSpecs.load(node.store), start)
    change_id = await propose(net, "node0", start)
    for name in lenders:
        await note_lending(net, name, change_id)
    await approve(net, change_id, "node1", "node2")
    running = [name for name, node in net.nodes.items() if node.service is not None]
    await wait_for_state(net, "the evaluation", lambda state: state.run.number == start.number, *running)
    return start


async def note_lending(net: Cluster, name: str, change_id: bytes) -> None:
    store = net[name].store
    assert store is not None
    Lending(store).note(change_id, lends=True)


def read_rows(data: bytes) -> list[dict[str, Array]]:
    return split_rows(decode_arrays(data, len(data)))
