"""Nodes of a simulation after its last round, which answer as running ones do."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ml.clients.answering import Answering
from ml.data.base import InputFormat
from ml.data.own_transform import Transform, load_transform
from ml.errors import MlError
from ml.measures.kinds import AnyMeasures
from ml.models.normalised import Normalised
from ml.payload import decode_arrays
from ml.specs import METHODS
from node.admin.answers import describe_answers
from node.admin.json_view import to_json
from node.errors import NodeError
from node.ledger.measures_view import show_measures
from node.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from ml.clients.client import Client
    from node.experiments.simulation import Outcome


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNode:
    """A node of a simulation: its client, without the samples, and the terms of the run. `measures` are of its own test
    samples, None where it has none, or answers that are no numbers."""

    client: Client
    input: InputFormat
    transform: Transform
    terms: str
    classes: tuple[str, ...]
    rounds: int
    measures: dict[str, Any] | None

    @classmethod
    def list(cls, outcome: Outcome) -> list[TrainedNode]:
        """Lists all nodes of a simulation, in their order."""
        config = outcome.config
        assert config.input is not None  # noqa: S101 - set when the configuration was made
        terms = {"input": config.input, "classes": outcome.classes, "task": config.task, "target": config.target}
        terms["labels"] = config.labels
        text, input_ = json.dumps(terms), InputFormat.from_mapping(config.input)
        transform = load_transform(config.data)
        return [
            cls(
                client=client,
                input=input_,
                transform=transform,
                terms=text,
                classes=outcome.classes,
                rounds=config.rounds,
                measures=_show(client.measure(), outcome.classes),
            )
            for client in outcome.clients
        ]

    def leave_samples(self) -> None:
        """Drops the samples, which a method of fednode's own does not need to predict. It keeps the number of samples
        of each class, which a prior needs."""
        data = self.client.state.data
        if self.client.method.spec.name in METHODS:
            train = replace(data.train, x=data.train.x[:0].clone())
            nothing = replace(train, y=data.train.y[:0].clone())
            self.client.state.data = replace(data, train=train, matched=nothing, everyone=nothing)

    def make_model(self) -> Normalised:
        """Returns a copy of its model, on the CPU."""
        constants = self.client.complete_input(self.input)
        model = copy.deepcopy(self.client.state.model).cpu()
        return Normalised(model, constants.mean, constants.std, fills=constants.fills_empty).eval()

    def list_runs(self, number: int) -> Sequence[pb.RunView]:
        """Returns the run, as a node's admin service shows it."""
        return [pb.RunView(number=number, terms=self.terms)]

    def predict(
        self, samples: bytes, top: int, wait_s: float, *, alone: bool = False, prior: float | None = None
    ) -> pb.PredictReply:
        """Answers as the admin service's Predict does. Raises NodeError."""
        x = decode_arrays(samples, len(samples))["x"]
        try:
            answers = Answering(self.client, self.input, self.transform).answer(x, kappa=prior).own
        except MlError as error:
            raise NodeError(str(error)) from error
        task = self.client.spec.task.kind
        said = describe_answers(answers, self.classes, task, top, lambda said, author: None)
        return pb.PredictReply(applied_round=self.rounds, predictions=said)


def _show(measures: AnyMeasures | None, classes: tuple[str, ...]) -> dict[str, Any] | None:
    return None if measures is None else to_json(show_measures(replace(measures, classes=classes)))
