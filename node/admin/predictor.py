"""Predictions of a running node, for samples that its operator sends: the admin service's `Predict`.

The worker answers when no round needs it; a prediction neither stops nor overtakes rounds. This module names what the
answer refers to by number: classes, and members by the block whose aggregate holds their prototypes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from chain.block import Block, Id
from chain.calendar import Place
from chain.run import Run
from chain.signing import encode_id
from chain.state import State
from ml.data.base import InputFormat
from ml.data.sample_notes import TrainedRange, describe_unusual, name_features
from ml.measures.alone import ALONE, FEDERATION, MIXED, TrainedAlone
from ml.payload import Arrays, decode_arrays
from ml.specs.masked.aggregate import has_shown, read_shown
from node.admin.answers import describe_answers
from node.admin.samples import NAME, count_models, decode_samples, get_max_samples, get_top
from node.admin.stored_chain import StoredChain
from node.errors import InvalidRequest, NodeError, NodeUnreachable
from node.ledger.measures_view import show_alone
from node.ledger.names import get_name
from node.offload import Offload, run_sized
from node.pb import admin_pb2 as pb
from node.runs.chosen_round import ChosenRound
from node.training.learner import Learner
from node.training.trainer import AnswerRefused, Predicted, Trainer, WorkerDied, WorkerFailed

WAIT_S = 30.0  # by default
MAX_WAIT_S = 3600.0
MAX_PRIOR = 100.0  # at this kappa, every answer is the most frequent class
MAX_PREDICTIONS = 8  # at a time: each keeps its samples in memory until the worker takes them


class NoModel(NodeError):
    """Raised when this node has no model to predict with, and will not have one."""


class NotReady(NodeUnreachable):
    """Raised while the worker is starting. Ask again."""


class NotInTime(NodeUnreachable):
    """Raised when the worker did not start on the samples, or did not finish them, in time."""


class TooManyPredictions(NodeError):
    """Raised when too many predictions wait already. Ask again."""


class Predictor:
    """Asks the trainer of one node for predictions; its `learner` knows what the trainer is doing. `arithmetic` decodes
    samples and answers. `answer_by` is the model that answers by default: the federation's, the one trained alone, or
    both mixed."""

    def __init__(
        self,
        chain: StoredChain,
        me: Id,
        trainer: Trainer,
        learner: Learner,
        arithmetic: Offload,
        answer_by: str = FEDERATION,
    ) -> None:
        self._chain = chain
        self._me = me
        self._trainer = trainer
        self._learner = learner
        self._arithmetic = arithmetic
        self._answer_by = answer_by
        self._count = 0

    async def predict(
        self,
        samples: bytes,
        top: int = 0,
        wait_s: float | None = None,
        alone: bool = False,
        round: str = "",  # noqa: A002 (as the request has it)
        prior: float | None = None,
        calibrated: bool = False,
        answer_by: str = "",
    ) -> pb.PredictReply:
        """Returns the predictions. Raises InvalidRequest, NoModel, NotReady, NotInTime and TooManyPredictions."""
        wait_s = WAIT_S if wait_s is None else wait_s
        if not 0 < wait_s <= MAX_WAIT_S:  # also false for NaN
            raise InvalidRequest(f"wait_s: expected more than 0 and at most {MAX_WAIT_S:g} seconds, got {wait_s:g}")
        if prior is not None and not 0 <= prior <= MAX_PRIOR:
            raise InvalidRequest(f"prior: expected a number from 0 to {MAX_PRIOR:g}, got {prior:g}")
        if answer_by and answer_by not in (FEDERATION, ALONE, MIXED):
            raise InvalidRequest(f"answer_by: expected federation, alone or mixed, got {answer_by[:40]!r}")
        self._check_worker()
        if self._count >= MAX_PREDICTIONS:
            raise TooManyPredictions(f"expected at most {MAX_PREDICTIONS} predictions at a time; ask again")
        self._count += 1
        try:
            asked = _Asked(samples, top, wait_s, alone, round, prior, calibrated, answer_by)
            return await self._predict(asked)
        finally:
            self._count -= 1

    async def _predict(self, asked: _Asked) -> pb.PredictReply:
        run = self._get_run(self._learner.run_number)
        wanted = InputFormat.from_mapping(run.input)
        most = get_max_samples(wanted.shape, len(run.classes), asked.top, count_models(asked.alone))
        expected = (wanted.shape, most, wanted.takes_empty)
        await run_sized(self._arithmetic, len(asked.samples), decode_samples, asked.samples, *expected)
        chosen = self._chain.choose_round(asked.round, run)
        predicted = await self._ask_worker(asked, chosen)
        by = _choose(predicted, asked.answer_by, self._answer_by)
        run = self._get_run(predicted.run)
        height = self._chain.runs.calendar.get_height(Place(predicted.run, predicted.applied_round))
        block, judge = await self._chain.get_block(height or 0), await self._chain.get_judge(height or 0)
        owners = await self._find_owners(run, block)
        top = get_top(asked.top, len(run.classes))
        # off the event loop: it takes milliseconds even for few bytes
        reply = await self._arithmetic.run(_describe, predicted, by, owners, judge, run, top, asked)
        reply.is_best = chosen.is_best and predicted.applied_round == chosen.number
        return reply

    async def _find_owners(self, run: Run, block: Block) -> _Owners:
        if not run.is_masked:
            return _Owners(block.height, tuple(contribution.author for contribution in block.contributions))
        data = await self._chain.find_blob(block.header.aggregate) if has_shown(run.schema) else None
        shown = [] if data is None else read_shown(decode_arrays(data, len(data)))
        return _Owners(block.height, tuple(shown), may_lack=True)

    def _get_run(self, number: int | None) -> Run:
        calendar = self._chain.runs.calendar
        return calendar.get_run(number or 0) or calendar.newest.run

    def _check_worker(self) -> None:
        if self._chain.get_state().index_of(self._me) is None:
            raise NoModel("expected a member of the federation, which trains a model; this node only observes")
        if self._learner.failure is not None:
            raise NoModel(f"this node has no worker any more: {self._learner.failure}")
        if self._learner.info is None:
            raise NotReady("the worker is not ready yet; ask again")

    async def _ask_worker(self, asked: _Asked, chosen: ChosenRound) -> Predicted:
        alone = asked.alone or (asked.answer_by or self._answer_by) != FEDERATION
        ask = partial(self._trainer.predict, asked.samples, alone=alone, kappa=asked.prior, calibrated=asked.calibrated)
        try:
            async with asyncio.timeout(asked.wait_s):
                if chosen.number is None or chosen.is_asked:
                    return await ask(kept=chosen.number)
                with suppress(AnswerRefused):  # for example, the best round is the default, but is not kept here
                    return await ask(kept=chosen.number)
                return await ask()
        except TimeoutError:
            raise NotInTime(f"not answered within {asked.wait_s:g} s: {self._describe_work()}") from None
        except AnswerRefused as error:
            raise InvalidRequest(f"samples: {error}") from error
        except WorkerDied as error:
            raise NotReady(f"{error}; it is started anew: ask again") from error
        except WorkerFailed as error:
            raise NoModel(f"this node has no worker any more: {error}") from error

    def _describe_work(self) -> str:
        work = self._learner.work
        if work is None:
            return "the worker is busy with other predictions, or is being started"
        progress = self._learner.progress
        steps = "" if progress is None else f" ({progress.step} of {progress.steps} steps)"
        return f"{work}{steps}, and a prediction waits for its end"


class _Asked(NamedTuple):
    """The fields of a valid request, and the time that it may take."""

    samples: bytes
    top: int
    wait_s: float
    alone: bool
    round: str
    prior: float | None
    calibrated: bool
    answer_by: str


@dataclass(frozen=True, slots=True)
class _Owners:
    """The members whose prototypes are in the aggregate of a block, in the order of their places in it: the block's
    authors, or in a run of masked sums the members of the sum. With `may_lack` that list may be incomplete, as the
    aggregate may not be here."""

    height: int
    ids: tuple[Id, ...]
    may_lack: bool = False


def _choose(predicted: Predicted, asked: str, usual: str) -> str:
    """Returns the model whose answers are sent: the one asked for, or the usual one, or the federation's while there is
    no other. Raises InvalidRequest where the one asked for is not there."""
    if (by := asked or usual) == FEDERATION or predicted.mixed is not None:
        return by
    if not asked:
        return FEDERATION
    told = predicted.trained_alone
    lack = "this node trains no model alone (training.compare_local)" if told is None else told.failure
    raise InvalidRequest(f"answer_by {by}: {lack or 'no round of training alone is done yet'}")


def _describe(
    predicted: Predicted, by: str, owners: _Owners, judge: State, run: Run, top: int, asked: _Asked
) -> pb.PredictReply:
    reply = pb.PredictReply(applied_round=predicted.applied_round, run=predicted.run, answer_by=by)
    answers = {FEDERATION: predicted.answer, ALONE: predicted.alone, MIXED: predicted.mixed}
    told = {name: decode_arrays(data, len(data)) for name, data in answers.items() if data is not None}
    reply.predictions.extend(_describe_answer(told[by], owners, judge, run, top))
    for one, notes in zip(reply.predictions, _note_unusual(told[FEDERATION], run, asked.samples), strict=False):
        one.notes.extend(notes)
    if "temperature" in told[by]:
        reply.temperature = float(told[by]["temperature"][0])
    if MIXED in told:
        reply.weight = float(told[MIXED]["weight"][0])
    if predicted.trained_alone is not None:
        reply.trained_alone.CopyFrom(_show_progress(predicted.trained_alone))
    for name, beside in ((ALONE, reply.alone), (MIXED, reply.mixed)):
        if asked.alone and name in told:
            beside.extend(_describe_answer(told[name], owners, judge, run, top))
    return reply


def _show_progress(alone: TrainedAlone) -> pb.TrainedAlone:
    """Shows how far training alone is. Its measures are left out, as they are about other samples than those asked
    about."""
    return show_alone(replace(alone, measures=None, verdict=None, mixed=None, weight=None))


def _note_unusual(told: Arrays, run: Run, samples: bytes) -> Iterator[Sequence[str]]:
    """Yields the notes about each row of a table that lies outside of what the node trains on; none for images."""
    if "low" not in told:
        return
    x, table = decode_arrays(samples, len(samples))[NAME], InputFormat.from_mapping(run.input).table
    names = name_features(table, x.shape[1])
    is_number = [True] * len(names) if table is None else table.get_numbers(len(names)).tolist()
    yield from describe_unusual(x, TrainedRange(told["low"], told["high"]), names, is_number)


def _describe_answer(told: Arrays, owners: _Owners, judge: State, run: Run, top: int) -> Iterator[pb.Prediction]:
    def name_nearest(said: pb.Prediction, author: int) -> None:
        _name_nearest(said, author, owners, judge)

    return describe_answers(told, run.classes, run.task, top, name_nearest)


def _name_nearest(said: pb.Prediction, author: int, owners: _Owners, judge: State) -> None:
    count = len(owners.ids)
    if not 0 <= author < count:
        if owners.may_lack:
            return
        raise NodeError(f"block {owners.height}: expected an author from 0 to {count - 1}, got {author}")
    key = owners.ids[author]
    said.nearest, said.nearest_name = encode_id(key), get_name(judge, key)
