"""The measures that a client tells all others of the model in an aggregate: by its own test samples and the classifier,
as in a run of `ml.specs.methods.evaluation`. The client itself stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ml.errors import AggregationError
from ml.methods.evaluation import Evaluation
from ml.models.base import load_parameters
from ml.payload import Arrays
from ml.specs import get_kind
from ml.specs.methods.evaluation import EvaluationHyperparameters, EvaluationSpec

if TYPE_CHECKING:
    from ml.clients.measured import MeasuredClient


@torch.no_grad()
def tell_of(client: MeasuredClient, aggregate: Arrays, min_samples: int) -> Arrays:
    """The payload; it tells nothing of fewer than `min_samples`. Raises AggregationError where the model in the
    aggregate is not the client's."""
    spec = EvaluationSpec(client.method.spec.task, EvaluationHyperparameters())
    now, before = client.state_arrays(), client.arrays_before
    try:
        load_parameters(client.state.model, get_kind(aggregate, "model") or {})
        return Evaluation(spec).measure(client.state, min_samples)
    except ValueError as error:
        raise AggregationError(f"the model of the round: {error}") from error
    finally:
        client.load_state_arrays(now, before)
