"""Inference by a client: classifies samples that it is asked about, pixels or features as they lie in a file.

They go the way of the client's own samples: fitted to genesis' input, through the site's own transform, normalised,
then through its method's inference. Nothing of the client changes except that its model is in eval mode afterwards, as
after any measurement; training sets the mode it needs, and draws from seeds of its own.
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

CHUNK = 128  # samples in one forward pass, between two looks at whether the answer is still wanted


def answer(
    client: Client,
    input_format: InputFormat,
    x_NCHW: Samples,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    predict: Callable[[Tensor], Prediction] | None = None,
    transform: Transform = lambda x: x,
) -> dict[str, Array]:
    """Of N samples, `labels` int64[N] and `probabilities` float32[N, C], the softmax of the classifier's logits, which
    a method whose prototypes answer need not follow.

    Of a multilabel task `labels` are int64[N, L], 0 or 1 each, and probabilities each label's own; of a regression
    there are `values` float64[N, T] alone, in the targets' units.

    Where prototypes answer, also `distances` float32[N] to the nearest, and where the prototypes are a pool `authors`
    int64[N], the place in the applied block of whose that was, -1 for a sample of this client's own. Of a table `low`
    and `high` float32[F] are the range of what the client trains on. `predict` takes the place of the client's own
    inference. Raises DataError for samples that are none of this input's, MlError for a model that gives no numbers,
    and Stopped where `should_stop` says so between two chunks.
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
    """What is said of each chunk of samples. Raises as `answer`, but for numbers."""
    validate_samples(x_NCHW, input_format.shape, takes_empty=input_format.takes_empty)
    input_format = client.complete_input(input_format)
    predict = client.predict if predict is None else predict
    for start in range(0, len(x_NCHW), CHUNK):
        if should_stop():
            raise Stopped(f"the answer was not wanted any more after {start} of {len(x_NCHW)} samples")
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large shows in the answer
            fitted = input_format.normalise(transform(fit(x_NCHW[start : start + CHUNK], input_format.shape)))
        yield predict(client.engine.lay_out_samples(torch.tensor(fitted).to(client.device)))


def describe(client: Client, predictions: Iterable[Prediction]) -> dict[str, Array]:
    """All predictions as one answer. Raises MlError for a model that gives no numbers."""
    parts: dict[str, list[Tensor]] = {}
    for prediction in predictions:
        for name, tensor in _describe(prediction, client.spec.task).items():
            parts.setdefault(name, []).append(tensor.cpu())
    trained = client.trained_range
    ranges = {} if trained is None else {"low": trained.low, "high": trained.high}
    return {name: torch.cat(tensors).numpy() for name, tensors in parts.items()} | ranges


def _describe(prediction: Prediction, task: Task) -> dict[str, Tensor]:
    """A prediction as the tensors of an answer. Raises MlError."""
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
