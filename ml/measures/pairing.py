"""Pairs of answers after equal work: of the federation's model after a round, and of the model trained alone for as
many.

Training alone lags behind, so the federation's answers are kept for it, as many as there is room for.
"""

from __future__ import annotations

import numpy as np

from ml.measures.kinds import Answers
from ml.measures.verdict import Verdict, compare

MAX_BYTES = 32_000_000  # of waiting answers; newer ones find no room


class Pairing:
    """One site's pairs of answers, of the federation's model and of the model trained alone, after the same number of
    rounds. The verdict on a pair is computed on demand, and only once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._waiting: dict[int, Answers] = {}  # the federation's, by round
        self._alone: tuple[int, Answers] | None = None
        self._pair: tuple[int, Answers, Answers] | None = None  # not compared yet
        self._verdict: Verdict | None = None
        self._newest = 0  # the federation's newest round

    def add_together(self, round_number: int, answers: Answers) -> None:
        """Adds the answers of the federation's model after a round; replaces them where the round is applied again."""
        self._newest = round_number
        done = 0 if self._alone is None else self._alone[0]
        self._waiting.pop(round_number, None)
        if round_number < done:
            return
        if sum(map(_count_bytes, self._waiting.values())) + _count_bytes(answers) <= MAX_BYTES:
            self._waiting[round_number] = answers
        self._match()

    def add_alone(self, rounds: int, answers: Answers) -> None:
        """Adds the answers of the model trained alone after the work of so many rounds."""
        self._alone = (rounds, answers)
        self._waiting = {at: each for at, each in self._waiting.items() if at >= rounds}
        self._match()

    def _match(self) -> None:
        if self._alone is None:
            return
        rounds, alone = self._alone
        together = self._waiting.pop(rounds, None)
        if together is not None and np.array_equal(together.y, alone.y):  # not where the site's data have changed
            self._pair = (rounds, together, alone)

    def get_verdict(self) -> Verdict | None:
        """Returns the verdict on the newest pair; None as long as there is none."""
        if self._pair is not None:
            rounds, together, alone = self._pair
            self._verdict, self._pair = compare(self._kind, together, alone, rounds=rounds), None
        return None if self._verdict is None else self._verdict.of_newest(self._newest)


def _count_bytes(answers: Answers) -> int:
    return int(answers.y.nbytes + answers.labels.nbytes + answers.said.nbytes)
