"""Inference by a client: classifies samples that a caller sends, pixels or features as they are in a file.

They are processed as the client's own samples are: fitted to genesis' input, passed through the site's own transform,
normalised, then classified by the method's inference. The client does not change, except that its model is in eval mode
afterwards, as after any measurement. Training sets the mode it needs, and draws from seeds of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ml.clients.client import Client
from ml.data.base import InputFormat, Samples
from ml.data.fit_input import fit
from ml.data.inference_files import validate_samples
from ml.data.own_transform import Transform
from ml.errors import MlError, Stopped
from ml.payload import Array
from ml.specs.task import Task
from ml.tasks import MULTILABEL, REGRESSION
from ml.training.metrics import Prediction

CHUNK = 128  # samples in one forward pass; `should_stop` is called before each


def answer(
    client: Client,
    input_format: InputFormat,
    x_NCHW: Samples,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    predict: Callable[[Tensor], Prediction] | None = None,
    transform: Transform = lambda x: x,
) -> dict[str, Array]:
    """Answers for N samples: `labels` int64[N] and `probabilities` float32[N, C], the softmax of the classifier's
    logits. Labels need not follow these if the method answers by prototypes.

    In a multilabel task `labels` are int64[N, L], 0 or 1 each, and each label has its own probability. In a regression
    there are only `values` float64[N, T], in the targets' units.

    If prototypes answer, there are also `distances` float32[N] to the nearest one. If they are a pool, `authors`
    int64[N] is the place, in the applied block, of the author of the nearest one, or -1 for a sample of this client's
    own. For a table, `low` and `high` float32[F] are the range of the client's training samples. `predict` replaces the
    client's own inference. Raises DataError for samples that do not fit the input, MlError for a model whose answers
    are not finite, and Stopped if `should_stop` returns True between two chunks.
    """
    return describe(client, predict_each(client, input_format, x_NCHW, should_stop, predict, transform))


def predict_each(
    client: Client,
    input_format: InputFormat,
    x_NCHW: Samples,
    should_stop: Callable[[], bool],
    predict: Callable[[Tensor], Prediction] | None,
    transform: Transform,
) -> Iterator[Prediction]:
    """Yields the predictions for each chunk of samples. Raises as `answer`, except for answers that are not finite."""
    validate_samples(x_NCHW, input_format.shape, takes_empty=input_format.takes_empty)
    input_format = client.complete_input(input_format)
    predict = client.predict if predict is None else predict
    for start in range(0, len(x_NCHW), CHUNK):
        if should_stop():
            raise Stopped(f"the answer was not wanted any more after {start} of {len(x_NCHW)} samples")
        with np.errstate(over="ignore", invalid="ignore"):  # too large values are refused in the answer
            fitted = input_format.normalise(transform(fit(x_NCHW[start : start + CHUNK], input_format.shape)))
        yield predict(client.engine.lay_out_samples(torch.tensor(fitted).to(client.device)))


def describe(client: Client, predictions: Iterable[Prediction]) -> dict[str, Array]:
    """Joins all predictions into one answer. Raises MlError for a model whose answers are not finite."""
    parts: dict[str, list[Tensor]] = {}
    for prediction in predictions:
        for name, tensor in _describe(prediction, client.spec.task).items():
            parts.setdefault(name, []).append(tensor.cpu())
    trained = client.trained_range
    ranges = {} if trained is None else {"low": trained.low, "high": trained.high}
    return {name: torch.cat(tensors).numpy() for name, tensors in parts.items()} | ranges


def _describe(prediction: Prediction, task: Task) -> dict[str, Tensor]:
    """Returns a prediction as the tensors of an answer. Raises MlError."""
    if task.kind == REGRESSION:
        described = {"values": torch.from_numpy(task.scale.unscale(prediction.logits.double().cpu().numpy()))}
    else:
        logits = prediction.logits.float()
        probabilities = logits.sigmoid() if task.kind == MULTILABEL else logits.softmax(1)
        described = {"labels": prediction.labels.long(), "probabilities": probabilities}
    if prediction.distances is not None:
        described["distances"] = prediction.distances.float()
    if prediction.authors is not None:
        described["authors"] = prediction.authors.long()
    for name, tensor in described.items():
        if not bool(tensor.isfinite().all()):
            raise MlError(f"the model gives {name} that are no numbers for these samples; expected finite ones")
    return described
