"""Training alone: the model that a client would have without the others, after the same amount of work.

It begins from the same initial model and trains by plain cross-entropy on the client's own samples, as many steps as
the client's rounds had, at their learning rates. It uses the run's outer optimiser, where there is one. A step is done
whenever there is time, so this model may lag behind the client. Code that runs between two steps is not affected by it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ml.clients.client import Client, Phase
from ml.errors import MlError
from ml.measures.alone import TrainedAlone
from ml.measures.evaluation import compute_losses
from ml.measures.kinds import Answers, AnyMeasures, measure_answers
from ml.measures.pairing import Pairing
from ml.methods import make_method
from ml.models.base import Model, copy_model
from ml.payload import Array, Arrays
from ml.specs.methods.local import LocalSpec
from ml.specs.outer import OuterHyperparameters
from ml.training.loop import Progress, summarise_losses
from ml.training.mixture import find_weight, mix_answers


class _Said(NamedTuple):
    """Holds a model's answers to the test samples, and its logits of the val samples, float64[N, C], None without val
    samples."""

    test: Answers
    val_logits: Tensor | None


class _Mixture(NamedTuple):
    """Holds the measures of both models' answers mixed, and the `weight` of the federation's model in the mixture."""

    measures: AnyMeasures
    weight: float


class TrainingAlone:
    """Trains a second model for one client, from the state that the client has when this object is made."""

    def __init__(self, client: Client) -> None:
        self._beside = client
        hyper = client.spec.hyperparameters.without_privacy()  # this model never leaves the site
        self._has_outer = isinstance(hyper, OuterHyperparameters) and hyper.outer is not None
        spec = LocalSpec(client.spec.task, hyper)
        model = _leave_added_out(copy_model(client.state.model), spec)
        self._client = Client(make_method(spec), model, client.state.data, seed=client.seed, engine=client.engine)
        self._owed: deque[tuple[int, int]] = deque()  # rounds and iterations still to be trained
        self._steps: Generator[None] | None = None  # those of the round that is being trained
        self._num_done = 0  # steps done of that round
        self._rounds = self._last_owed = 0
        self._seconds = 0.0
        self._measures: AnyMeasures | None = None
        self._failure: str | None = None
        self._pairing = Pairing(client.spec.task.kind)
        self._together: _Said | None = None
        self._said: _Said | None = None
        self._mixture: _Mixture | None = None  # the mixture of both models' answers, made on first use
        self._random: Tensor | None = None  # the state of torch's generator after the last step

    def __repr__(self) -> str:
        return f"<TrainingAlone: {self._rounds} rounds done, {len(self._owed)} owed>"

    # ---- training

    def owe(self, round_number: int, num_iterations: int) -> None:
        """Adds the client's round to the rounds that this model still has to train. Rounds that were missed in between
        are added with the method's own number of iterations. A round that was added before is not added again."""
        for missed in range(self._last_owed + 1, round_number):
            if self._beside.to_method_height(missed) is not None:
                self._owed.append((missed, self._client.spec.get_local_work(missed)))
        if round_number > self._last_owed:
            if self._beside.to_method_height(round_number) is not None:
                self._owed.append((round_number, num_iterations))
            self._last_owed = round_number

    def note_together(self, round_number: int) -> None:
        """Stores the client's answers after it applied a round and was measured on its val samples. They are compared
        with this model's answers after as much work, and mixed with its latest answers."""
        self._together, self._mixture = _listen(self._beside), None
        if self._together is not None:
            self._pairing.add_together(round_number, self._together.test)

    def step(self) -> bool:
        """Does the next step. Returns False if there is none to do."""
        if self._failure is not None or (self._steps is None and not self._owed) or not self._beside.has_samples:
            return False
        start_s = time.process_time()
        if self._steps is None:
            self._steps, self._num_done = self._train(*self._owed[0]), 0
        try:
            with torch.random.fork_rng(devices=[]):
                if self._random is not None:
                    torch.default_generator.set_state(self._random)
                next(self._steps, None)
                self._random = torch.default_generator.get_state()
        except MlError as error:
            self._failure = str(error)
        self._seconds += time.process_time() - start_s
        return True

    def _train(self, round_number: int, num_iterations: int) -> Generator[None]:
        """Trains one local phase, yielding after each step. Raises MlError."""
        client = self._client
        self._look_again()
        torch.default_generator.manual_seed(client.seed + round_number)
        phase = client.begin(self._beside.to_method_height(round_number) or round_number, b"", num_iterations)
        losses: list[Tensor] = []
        for batch in client.get_batches(phase):
            client.state.model.train()
            with client.engine.autocast(client.device, client.state.model):
                loss = client.method.compute_loss(client.state.model, batch, phase.prepared.context)
            phase.sgd.step(loss)
            losses.append(loss.detach())
            self._num_done = len(losses)
            yield
        self._end(phase, losses)

    def _look_again(self) -> None:
        """Takes over the client's samples and loss, which the client's first round may have changed."""
        self._client.state.data = self._beside.state.data
        self._client.state.model.criterion = self._beside.state.model.criterion

    def _end(self, phase: Phase, losses: list[Tensor]) -> None:
        summary = summarise_losses(losses, phase.sgd.lr)
        self._client.end(phase, Progress(summary, len(losses), 0.0))
        if self._has_outer:
            self._client.apply(phase.round.height, None)
        self._rounds, self._steps = self._owed.popleft()[0], None
        self._measure()

    def _measure(self) -> None:
        """Measures this model after a whole round."""
        self._measures = self._client.measure()
        self._client.measure_val()
        self._said, self._mixture = _listen(self._client), None
        if self._said is not None:
            self._pairing.add_alone(self._rounds, self._said.test)

    # ---- results and state

    def get_client(self) -> Client:
        """Returns a client that answers with this model as it is now, and normalises input as the federation's client
        does."""
        if self._steps is None:
            self._look_again()
        return self._client

    def describe(self) -> TrainedAlone:
        if self._measures is None and self._rounds and self._steps is None and self._beside.has_samples:
            self._look_again()  # this model was restored before there were samples
            self._measure()
        owed = sum(self._count_steps(iterations) for _, iterations in self._owed) - (
            self._num_done if self._steps else 0
        )
        verdict, mixture = self._pairing.get_verdict(), self._get_mixture()
        mixed, weight = (None, None) if mixture is None else mixture
        return TrainedAlone(self._rounds, owed, self._seconds, self._measures, self._failure, verdict, mixed, weight)

    def _get_mixture(self) -> _Mixture | None:
        """Returns the mixture of both models' answers; None until both models have trained a round, and if the site's
        data changed in between."""
        together, alone = self._together, self._said
        if self._mixture is not None or together is None or alone is None:
            return self._mixture
        if np.array_equal(together.test.y, alone.test.y):
            self._mixture = self._mix(together, alone)
        return self._mixture

    def _mix(self, together: _Said, alone: _Said) -> _Mixture | None:
        """Mixes both models' answers. Returns None if a model's logits of the val samples are not finite."""
        task, val, weight = self._client.spec.task, self._beside.state.data.val, 0.5
        if val is not None and together.val_logits is not None and alone.val_logits is not None:
            if not bool(together.val_logits.isfinite().all() and alone.val_logits.isfinite().all()):
                return None
            weight = find_weight(together.val_logits, alone.val_logits, val.y.cpu(), task.kind)
        answers = mix_answers(together.test, alone.test, weight, task.kind)
        loss = compute_losses(answers.y, answers.said, task.kind, task.scale).mean()
        return _Mixture(measure_answers(task.kind, *answers, float(loss)), weight)

    def _count_steps(self, iterations: int) -> int:
        hyper, num = self._client.spec.hyperparameters, self._client.num_train
        if not hyper.counts_epochs:
            return iterations
        size = min(hyper.batch_size, num)
        return iterations * (num // size if hyper.drop_last else -(-num // size))

    @property
    def rounds(self) -> int:
        """The number of rounds that are trained to their end. `state_arrays` is the state after them, unless another
        step has been done since."""
        return self._rounds

    @property
    def is_between_rounds(self) -> bool:
        return self._steps is None

    def state_arrays(self) -> dict[str, Array]:
        return self._client.state_arrays()

    def load_state_arrays(self, rounds: int, arrays: Arrays) -> None:
        """Restores the state after so many rounds. Raises ValueError for the state of another model."""
        self._client.load_state_arrays(arrays)
        self._rounds = self._last_owed = rounds
        self._measure()


def _leave_added_out(model: Model, spec: LocalSpec) -> Model:
    """Freezes the parameters that the run's method has added to the model, which this model's loss does not use."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.freeze(model.frozen_names | (trained - spec.task.parameter_schema.arrays.keys()))
    return model


def _listen(client: Client) -> _Said | None:
    """Returns a client's answers as it is now, with its latest logits of its val samples; None if there are no answers,
    or they are not finite."""
    answers, judged = client.get_answers(), client.judged_val
    val_logits = torch.cat(list(judged.logits)).double().cpu() if judged is not None and judged.logits else None
    return None if answers is None else _Said(answers, val_logits)
