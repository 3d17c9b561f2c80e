"""A client's answers as they are asked for: at a kappa or not, calibrated by a temperature of its val samples
(`ml.training.temperature`) or not, and beside them those of the model trained alone, and of both mixed
(`ml.training.mixture`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ml.clients.alone import TrainingAlone
from ml.clients.client import Client
from ml.clients.inference import describe, predict_each
from ml.clients.priors import make_predict_at
from ml.data.base import InputFormat, Samples
from ml.data.own_transform import Transform
from ml.errors import DataError, MlError
from ml.measures.alone import ALONE, MIXED, Answered
from ml.payload import Array, Arrays, encode_arrays
from ml.tasks import REGRESSION
from ml.training.metrics import Prediction, judge
from ml.training.metrics import answer as read_logits
from ml.training.mixture import find_weight, mix
from ml.training.temperature import find_temperature

ShouldStop = Callable[[], bool]


class _Model(NamedTuple):
    """Holds a client that answers, the function that predicts, and one that returns its logits of the val samples,
    float64[N, C] on the CPU."""

    client: Client
    predict: Callable[[Tensor], Prediction]
    predict_val: Callable[[], Tensor]


class Answering:
    """Answers with one client's model, and with the model trained `alone` beside it. The logits of the val samples are
    cached until the model changes."""

    def __init__(
        self,
        client: Client,
        input_format: InputFormat,
        transform: Transform = lambda x: x,
        alone: TrainingAlone | None = None,
    ) -> None:
        self._client = client
        self._alone = alone
        self._input_format = input_format
        self._transform = transform
        self._of_val: dict[bool, tuple[bytes, Tensor]] = {}  # of the model alone, or the client's

    @property
    def _kind(self) -> str:
        return self._client.spec.task.kind

    def answer(
        self,
        x_NCHW: Samples,
        should_stop: ShouldStop = lambda: False,
        kappa: float | None = None,
        calibrated: bool = False,
    ) -> Answered:
        """Answers as `ml.clients.inference.answer`, with `kappa` adjusted to the client's own prior
        (`ml.training.prior`). With `calibrated`, probabilities are divided by a `temperature` float64[1], which the
        answer has beside them.

        The second value is a function that returns the same for the model trained `alone`, and for both `mixed` by a
        `weight` float64[1] of the client's model. It is valid until the client changes. Both raise what `answer` there
        raises. MlError is raised too for a client without a prior and for a regression that should be calibrated, and
        DataError if calibration has no val samples.
        """
        predict = self._client.predict if kappa is None else make_predict_at(self._client, kappa)
        own = self._make(self._client, predict, kappa)
        temperature = self._find_temperature(own) if calibrated else None
        said = list(self._predict(own, x_NCHW, should_stop))

        def ask_beside() -> dict[str, Arrays]:
            return self._answer_beside(own, said, x_NCHW, should_stop, calibrated)

        return Answered(_describe(self._client, said, temperature), ask_beside)

    def _answer_beside(
        self, own: _Model, own_said: Sequence[Prediction], x_NCHW: Samples, should_stop: ShouldStop, calibrated: bool
    ) -> dict[str, Arrays]:
        assert self._alone is not None  # noqa: S101
        client, kind = self._alone.get_client(), self._kind
        alone = self._make(client, client.predict, None)
        alone_said = list(self._predict(alone, x_NCHW, should_stop))
        val = self._client.state.data.val
        weight = 0.5 if val is None else find_weight(own.predict_val(), alone.predict_val(), val.y.cpu(), kind)

        def mix_both(one: Tensor, other: Tensor) -> Tensor:
            return mix(one.double().cpu(), other.double().cpu(), weight, kind)

        mixed = own._replace(predict_val=lambda: mix_both(own.predict_val(), alone.predict_val()))
        mixed_said = [
            read_logits(mix_both(one.logits, other.logits), kind)
            for one, other in zip(own_said, alone_said, strict=True)
        ]
        temperatures = [self._find_temperature(model) if calibrated else None for model in (alone, mixed)]
        told = _describe(self._client, mixed_said, temperatures[1])
        return {ALONE: _describe(client, alone_said, temperatures[0]), MIXED: told | {"weight": np.array([weight])}}

    def _predict(self, model: _Model, x_NCHW: Samples, should_stop: ShouldStop) -> Iterator[Prediction]:
        input_format = self._client.complete_input(self._input_format)
        return predict_each(model.client, input_format, x_NCHW, should_stop, model.predict, self._transform)

    def _find_temperature(self, model: _Model) -> float:
        """Finds the temperature that fits the val samples best. Raises MlError and DataError."""
        val = self._client.state.data.val
        if self._kind == REGRESSION:
            raise MlError("expected probabilities to calibrate, got a regression, which has none")
        if val is None:
            raise DataError("expected val samples at this site (data.val) to find a temperature by, got none")
        return find_temperature(model.predict_val(), val.y.cpu(), self._kind)

    def _make(self, client: Client, predict: Callable[[Tensor], Prediction], kappa: float | None) -> _Model:
        @cache  # within one request neither model changes
        def predict_val() -> Tensor:
            val, is_alone = self._client.state.data.val, client is not self._client
            assert val is not None  # noqa: S101
            stands = hashlib.sha256(f"{kappa}".encode() + encode_arrays(client.state_arrays())).digest()
            known = self._of_val.get(is_alone)
            if known is None or known[0] != stands:
                judged = judge(predict, val.x, val.y, kind=self._kind)
                known = self._of_val[is_alone] = stands, torch.cat(list(judged.logits)).double().cpu()
            return known[1]

        return _Model(client, predict, predict_val)


def _describe(client: Client, said: Iterable[Prediction], temperature: float | None) -> dict[str, Array]:
    """Returns predictions as an answer, calibrated by a temperature if one is given."""
    if temperature is None:
        return describe(client, said)
    divided = (each._replace(logits=each.logits.double() / temperature) for each in said)
    return describe(client, divided) | {"temperature": np.array([temperature])}
