"""A node's own measures with intervals: made once for a round, and not more often than every few seconds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ml.measures.evaluation import evaluate
from ml.payload import encode_arrays
from node.admin import own_measures
from node.admin.own_measures import LEAST_AGE_S, OwnMeasures
from node.errors import NodeUnreachable, NotFound
from node.training.trainer import OwnAnswers

CLASSES = ("well", "ill")


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Answering:
    """A worker that may be training."""

    is_training = True
    answers = OwnAnswers(1, 0, None)

    async def list_answers(self) -> OwnAnswers:
        if self.is_training:
            await asyncio.Event().wait()
        return self.answers


def make_answers(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(40) % 2
    ill = np.clip(0.3 + 0.3 * y + rng.normal(0, 0.2, 40), 0.01, 0.99)
    said = np.stack([1 - ill, ill], 1)
    return {"y": y, "labels": said.argmax(1), "said": said}


async def test_intervals_are_those_of_an_evaluation_of_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_measures, "MOST_RESAMPLES", 30)
    monkeypatch.setattr(own_measures, "LEAST_RESAMPLES", 10)
    monkeypatch.setattr(own_measures, "WAIT_S", 0.01)
    run = SimpleNamespace(
        number=1,
        get_round=lambda height: height,
        to_terms=lambda: {"input": {"shape": [1, 1, 1]}, "classes": CLASSES},
    )
    calendar = SimpleNamespace(get_run=lambda number: run, get_height=lambda place: place.round)
    trainer, clock = Answering(), Clock()
    chain = SimpleNamespace(runs=SimpleNamespace(calendar=calendar))
    own = OwnMeasures(cast(Any, chain), cast(Any, trainer), cast(Any, clock))
    with pytest.raises(NodeUnreachable, match="no intervals yet: the worker is training"):
        await own.show()
    trainer.is_training = False
    with pytest.raises(NotFound, match="no intervals yet: they are made once"):
        await own.show()
    answers = make_answers(1)
    trainer.answers = OwnAnswers(1, 7, encode_arrays(answers))
    told = await own.show()
    measures, intervals = evaluate(answers["y"], answers["labels"], answers["said"], CLASSES, 30)
    assert (told["height"], told["run"], told["round"]) == (7, 1, 7)
    assert told["measures"]["summary"] == measures.summarise()
    assert told["measures"]["intervals"].keys() == measures.summarise().keys()
    auc = intervals["auc"]
    assert told["measures"]["intervals"]["auc"] == {"low": auc.low, "high": auc.high}
    assert {"auc", "sensitivity", "specificity"} <= told["measures"]["classes"][0]["intervals"].keys()
    trainer.answers = OwnAnswers(1, 8, encode_arrays(make_answers(2)))
    clock.now_s += LEAST_AGE_S - 1
    assert await own.show() is told
    clock.now_s += 1
    trainer.is_training = True
    assert await own.show() is told
    trainer.is_training = False
    assert (await own.show())["round"] == 8
