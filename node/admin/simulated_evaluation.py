"""The evaluation at the end of a simulation, shown in the same form as that of a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ml.specs.methods.evaluation import MIN_COUNT, MIN_SAMPLES
from node.admin.json_view import to_json
from node.ledger.evaluations import show_told
from node.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from ml.simulation.run import SimulationResult


def make_record(result: SimulationResult, classes: Sequence[str]) -> dict[str, Any]:
    """Returns the object that `fednode simulate --json` prints."""
    shown = show_evaluation(result, classes)
    return result.to_json() | ({} if shown is None else {"evaluation": to_json(shown)})


def show_evaluation(result: SimulationResult, classes: Sequence[str]) -> pb.EvaluationView | None:
    """Shows the measures that each client reports about the best round's model; None for a run without an
    evaluation."""
    if result.evaluation is None:
        return None
    number, config = result.evaluation.round, result.config
    shown = pb.EvaluationView(
        run=1,
        of_run=1,
        of_round=number,
        model=result.aggregate_digests[number - 1].hex(),
        min_samples=MIN_SAMPLES,
        min_count=MIN_COUNT,
        task=config.task,
        classes=classes,
    )
    for i, told in enumerate(result.evaluation.told):
        site = shown.sites.add(name=f"client {i}", held=True)
        if int(told["samples"]):
            site.measures.CopyFrom(show_told(told, config.task, classes))
    return shown
