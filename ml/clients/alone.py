"""Training alone: the model that a client would have without the others, for the same work.

It begins from the same initial model and trains by plain cross-entropy on the client's own samples, as many steps as
the client's rounds had, at their learning rates, and goes on by the run's outer optimiser, where there is one. A step
is done whenever there is time, so it may lag behind; what comes between two steps sees nothing of it.
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
    """A model's answers to the test samples, and its logits of the val samples, float64[N, C]; None without any."""

    test: Answers
    val_logits: Tensor | None


class _Mixture(NamedTuple):
    """The measures of both models' answers mixed, by `weight` of the federation's."""

    measures: AnyMeasures
    weight: float


class TrainingAlone:
    """Of one client, which stands as it began."""

    def __init__(self, client: Client) -> None:
        self._beside = client
        hyper = client.spec.hyperparameters.without_privacy()  # nothing of this leaves the site
        self._has_outer = isinstance(hyper, OuterHyperparameters) and hyper.outer is not None
        spec = LocalSpec(client.spec.task, hyper)
        model = _leave_added_out(copy_model(client.state.model), spec)
        self._client = Client(make_method(spec), model, client.state.data, seed=client.seed, engine=client.engine)
        self._owed: deque[tuple[int, int]] = deque()  # rounds and iterations
        self._steps: Generator[None] | None = None  # of the round under way
        self._num_done = 0  # of its steps
        self._rounds = self._last_owed = 0
        self._seconds = 0.0
        self._measures: AnyMeasures | None = None
        self._failure: str | None = None
        self._pairing = Pairing(client.spec.task.kind)
        self._together: _Said | None = None
        self._said: _Said | None = None
        self._mixture: _Mixture | None = None  # of these two, once it is asked for
        self._random: Tensor | None = None  # torch's generator as the last step has left it

    def __repr__(self) -> str:
        return f"<TrainingAlone: {self._rounds} rounds done, {len(self._owed)} owed>"

    # ---- what there is to do

    def owe(self, round_number: int, num_iterations: int) -> None:
        """The client has trained for a round: the same is to be done here. Rounds that were missed in between are owed
        with the method's own number; one that is owed already is not owed twice."""
        for missed in range(self._last_owed + 1, round_number):
            if self._beside.to_method_height(missed) is not None:
                self._owed.append((missed, self._client.spec.get_local_work(missed)))
        if round_number > self._last_owed:
            if self._beside.to_method_height(round_number) is not None:
                self._owed.append((round_number, num_iterations))
            self._last_owed = round_number

    def note_together(self, round_number: int) -> None:
        """The client has taken in a round, and measured itself on its val samples: what it says then is compared with
        what is said here after as much work, and mixed with what is said here last."""
        self._together, self._mixture = _listen(self._beside), None
        if self._together is not None:
            self._pairing.add_together(round_number, self._together.test)

    def step(self) -> bool:
        """Does the next step. False where there is none to do."""
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
        """A local phase, a step at a time. Raises MlError."""
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
        """The samples and the loss are the client's, whose first round may have changed them."""
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
        """After whole rounds."""
        self._measures = self._client.measure()
        self._client.measure_val()
        self._said, self._mixture = _listen(self._client), None
        if self._said is not None:
            self._pairing.add_alone(self._rounds, self._said.test)

    # ---- what there is to say, and to keep

    def get_client(self) -> Client:
        """A client that answers with the model as it stands, by the input that the client beside goes by."""
        if self._steps is None:
            self._look_again()
        return self._client

    def describe(self) -> TrainedAlone:
        if self._measures is None and self._rounds and self._steps is None and self._beside.has_samples:
            self._look_again()  # it was taken up before there were samples
            self._measure()
        owed = sum(self._count_steps(iterations) for _, iterations in self._owed) - (
            self._num_done if self._steps else 0
        )
        verdict, mixture = self._pairing.get_verdict(), self._get_mixture()
        mixed, weight = (None, None) if mixture is None else mixture
        return TrainedAlone(self._rounds, owed, self._seconds, self._measures, self._failure, verdict, mixed, weight)

    def _get_mixture(self) -> _Mixture | None:
        """None as long as not both models have done a round; and where the site's data have changed in between."""
        together, alone = self._together, self._said
        if self._mixture is not None or together is None or alone is None:
            return self._mixture
        if np.array_equal(together.test.y, alone.test.y):
            self._mixture = self._mix(together, alone)
        return self._mixture

    def _mix(self, together: _Said, alone: _Said) -> _Mixture | None:
        """None where the val samples are answered by no numbers."""
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
        """Those that are done whole: `state_arrays` is what they left, if no step has been done since."""
        return self._rounds

    @property
    def is_between_rounds(self) -> bool:
        return self._steps is None

    def state_arrays(self) -> dict[str, Array]:
        return self._client.state_arrays()

    def load_state_arrays(self, rounds: int, arrays: Arrays) -> None:
        """Goes on from what so many rounds have left. Raises ValueError for another model's."""
        self._client.load_state_arrays(arrays)
        self._rounds = self._last_owed = rounds
        self._measure()


def _leave_added_out(model: Model, spec: LocalSpec) -> Model:
    """The model without what the run's method has added to it, which no loss of this one goes by."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.freeze(model.frozen_names | (trained - spec.task.parameter_schema.arrays.keys()))
    return model


def _listen(client: Client) -> _Said | None:
    """Takes a client's answers as it stands, and its last ones to its val samples; None where these are no numbers."""
    answers, judged = client.get_answers(), client.judged_val
    val_logits = torch.cat(list(judged.logits)).double().cpu() if judged is not None and judged.logits else None
    return None if answers is None else _Said(answers, val_logits)
