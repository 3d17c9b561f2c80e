"""Predictions and evaluations from the page, about the samples in a file.

Each answers as a command does, `fednode predict` or `fednode evaluate`, for a file that the visitor has dropped on the
page. The file is neither kept nor sent to another member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request

from ml.data.inference_files import InferenceFile
from ml.measures.alone import FEDERATION
from node.admin.asking import Answered, Terms, Told, match_answers
from node.admin.json_view import to_json
from node.admin.judging import Details, judge, read_cuts
from node.admin.node_answers import NodeAnswers
from node.admin.predictor import TooManyPredictions
from node.admin.samples import count_models, encode_batch, get_max_samples, get_top, make_batches
from node.admin.tokens import Role
from node.errors import InvalidRequest, NodeError
from node.pb import admin_pb2 as pb
from node.web.endpoint import OF_ROUND, Endpoint, Parameter, read_flag, read_number
from node.web.files_dropped import DroppedFiles

MAX_DROPPED = 4  # files received at a time
MAX_TOLD = 20_000  # probabilities in an answer to show; beyond it only those of the likeliest classes
RESAMPLES = 1000
CALIBRATED = Parameter("calibrated", "boolean", "As `--calibrated` of the command.")

_STRING, _COUNT = {"type": "string"}, {"type": "integer"}
_PREDICTED = {
    "allOf": [
        pb.PredictReply,
        {
            "type": "object",
            "properties": {
                "rows": {
                    "type": ["array", "null"],
                    "description": "Where each sample stands: its place in an archive, or its line of a table.",
                    "items": _COUNT,
                },
                "expected": {
                    "type": ["array", "null"],
                    "description": "The label of each sample in the file, or its labels or values; null without.",
                },
                "columns": {"type": "array", "description": "Those of a table.", "items": _STRING},
            },
        },
    ]
}
_EVALUATED = {
    "type": "object",
    "properties": {
        "applied_round": _COUNT,
        "is_best": {"type": "boolean"},
        "measures": pb.Measures,
        "signs": {"type": "object", "additionalProperties": _STRING},
        "alone": {"anyOf": [pb.TrainedAlone, {"type": "null"}]},
        "mixed": {
            "description": "Of both models' answers mixed, by `weight` of the federation's.",
            "anyOf": [
                {"type": "object", "properties": {"weight": {"type": "number"}, "measures": pb.Measures}},
                {"type": "null"},
            ],
        },
        "temperature": {"type": ["number", "null"]},
        "answer_by": {"type": ["string", "null"], "description": "Null: `/config` tells it."},
        "points": {"type": "array", "description": "None: the page computes them of the answers."},
        "groups": {
            "type": "array",
            "description": "Of the values of the column `by`; `measures` is null of fewer than 10 samples.",
            "items": {
                "type": "object",
                "properties": {
                    "value": _STRING,
                    "num_samples": _COUNT,
                    "measures": {"anyOf": [pb.Measures, {"type": "null"}]},
                },
            },
        },
    },
}


class Asking:
    """Asks the predictor of one node; `data` says how its own files are read."""

    def __init__(self, answers: NodeAnswers, data: Mapping[str, Any]) -> None:
        self._answers = answers
        self._dropped = DroppedFiles(data)
        self._num_dropped = 0
        self._judging = asyncio.Lock()

    def list_endpoints(self) -> Sequence[Endpoint]:
        parameters = (
            Parameter("name", "string", "The file's, whose ending says what it is."),
            OF_ROUND,
            Parameter("prior", "number", "As `--prior` of `fednode predict`."),
        )

        def ask(path: str, text: str, answer: Any, record: Any, *more: Parameter) -> Endpoint:
            return Endpoint(
                path,
                text,
                answer,
                record,
                parameters=(*parameters, CALIBRATED, *more),
                method="POST",
                role=Role.PREDICT,
                body={"type": "string", "format": "binary"},
            )

        return (
            ask(
                "/predict",
                "As `fednode predict`, of the samples in one file, which is the body: npz, csv or an image.",
                self._predict,
                _PREDICTED,
                Parameter("answer_by", "string", "As `--answer-by` of `fednode predict`."),
            ),
            ask(
                "/evaluate",
                "As `fednode evaluate --json`, of the labelled samples in one file, which is the body. With a prior "
                "there is no comparison with the model trained alone.",
                self._evaluate,
                _EVALUATED,
                Parameter("by", "string", "As `--by` of `fednode evaluate`."),
                Parameter("cuts", "string", "As `--cuts` of `fednode evaluate`."),
            ),
        )

    async def _predict(self, request: Request) -> dict[str, Any]:
        answer_by = request.query_params.get("answer_by", "")
        _, answers, whole, file = await self._ask(request, MAX_TOLD, answer_by=answer_by)
        return {
            **await asyncio.to_thread(to_json, whole),
            "rows": None if file.rows is None else list(file.rows),
            "expected": None if file.labels is None else [answered.expected for answered in answers],
            "columns": list(file.columns),
        }

    async def _evaluate(self, request: Request) -> dict[str, Any]:
        by, prior = request.query_params.get("by"), read_number(request, "prior")
        details = Details(by=by, cuts=_read_cuts(request))
        terms, answers, whole, _ = await self._ask(request, by=by, is_alone=not prior, answer_by=FEDERATION)
        try:
            async with self._judging:  # limits this to one thread
                found = await asyncio.to_thread(judge, answers, terms, RESAMPLES, details)
        except NodeError as error:
            raise InvalidRequest(str(error)) from error
        told = Told.of(whole)
        return replace(found, is_best=told.is_best, weight=told.weight, temperature=told.temperature).to_record()

    async def _ask(
        self,
        request: Request,
        max_told: int | None = None,
        *,
        answer_by: str,
        by: str | None = None,
        is_alone: bool = True,
    ) -> tuple[Terms, list[Answered], pb.PredictReply, InferenceFile]:
        """Returns the answers about all samples of a dropped file, and the replies merged into one. The answers have
        the probabilities of all classes if these are at most `max_told` in all."""
        if self._num_dropped >= MAX_DROPPED:
            raise TooManyPredictions(f"expected at most {MAX_DROPPED} files at a time; ask again")
        ask = partial(
            self._answers.predictor.predict,
            alone=is_alone,
            prior=read_number(request, "prior"),
            round=request.query_params.get("round", ""),
            calibrated=read_flag(request, "calibrated"),
            answer_by=answer_by,
        )
        run = self._answers.view.chain.runs.calendar.newest.run
        self._num_dropped += 1
        try:
            file = await self._dropped.read(request, run, by)
        finally:
            self._num_dropped -= 1
        terms = Terms.read(run.to_terms())
        is_whole = max_told is None or len(file) * len(terms.classes) <= max_told
        top = get_top(len(terms.classes) if is_whole else 0, len(terms.classes))
        most = get_max_samples(terms.input.shape, len(terms.classes), top, count_models(is_alone))
        answers, whole = list[Answered](), pb.PredictReply(passed_over=file.passed_over)
        for batch in make_batches([file], terms.input.shape, most):
            reply = await ask(encode_batch(batch), top)
            answers += match_answers(terms, batch, reply)
            whole.MergeFrom(reply)
        for said, answered in zip(whole.predictions, answers, strict=True):
            said.notes[:] = answered.notes
        if len(whole.alone) < len(answers):  # that model was not there at the first request
            del whole.alone[:]
            del whole.mixed[:]
        return terms, answers, whole, file


def _read_cuts(request: Request) -> tuple[float, ...]:
    """Reads where numbers are cut. Raises InvalidRequest."""
    if not (text := request.query_params.get("cuts")):
        return ()
    try:
        return read_cuts(text)
    except NodeError as error:
        raise InvalidRequest(f"cuts: {error}") from error
