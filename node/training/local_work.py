"""Local work: the number of local iterations of a round for which genesis sets a time, by DFPL's Eq. (11) and the
node's own clock.

    E = floor((budget_s - beta) / alpha)        t_sum / R is `budget_s`

alpha is the time of one local iteration here, with its share of the rest of a local phase (drawing, preparing, making
the payloads). It is the median of the last rounds, which one slow round does not move. Of an even number of rounds it
is the faster of the two in the middle, since the first phase of a process may be fifty times slower than any other.

beta is the time of mining: from when a round's contributions are settled until the first acceptable candidate is
here. It is the mean of the last rounds, since Eq. (9) is an expectation and one search says little about it. Neither
the paper nor this counts the rest of a round (exchange, votes, evaluation).
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ml.budget import compute_plan
from ml.errors import BudgetError
from node.training.progress import Progress

log = logging.getLogger(__name__)

ALPHA_ROUNDS = 5
BETA_ROUNDS = 10
MAX_ITERATIONS = 1_000_000  # a local phase draws all its batches beforehand: some kilobyte for each


@dataclass(frozen=True, slots=True)
class Choice:
    """Holds E of a round; None is the method's own number. `problem` says why not even one iteration fits: E is 1
    then."""

    num_iterations: int | None = None
    problem: str | None = None


class LocalWork:
    """Keeps this node's measurements of its last rounds, and computes E from them.

    Before an iteration was measured E is the method's own number; mining that was never measured counts as 0 s.
    """

    def __init__(self, budget_s: float | None = None) -> None:
        self.budget_s = budget_s
        self._run: int | None = None
        self._alphas: deque[float] = deque(maxlen=ALPHA_ROUNDS)
        self._betas: deque[float] = deque(maxlen=BETA_ROUNDS)
        self._lacks_time = False  # the time that genesis sets is too short for one iteration

    def __repr__(self) -> str:
        return f"LocalWork(budget_s={self.budget_s}, alpha_s={self.alpha_s}, beta_s={self.beta_s})"

    @classmethod
    def from_records(cls, budget_s: float | None, records: Iterable[Mapping[str, Any]]) -> LocalWork:
        """Restores the measurements from a node's records of its rounds (`RoundRecord.to_mapping`), oldest first."""
        local_work = cls(budget_s)
        for record in records:
            local_work.add(record.get("train", {}).get("alpha_s"), record.get("beta_s"))
        return local_work

    def on_run(self, number: int, budget_s: float | None) -> None:
        """Notes the run in hand. Iterations of another run say nothing about its own."""
        if self._run is not None and number != self._run:
            self._alphas.clear()
        self._run, self.budget_s = number, budget_s

    @property
    def alpha_s(self) -> float | None:
        """Returns seconds per local iteration; None until one was measured."""
        return statistics.median_low(self._alphas) if self._alphas else None

    @property
    def beta_s(self) -> float | None:
        """Returns seconds of mining per round; None until it was measured."""
        return statistics.fmean(self._betas) if self._betas else None

    def add(self, alpha_s: float | None, beta_s: float | None) -> None:
        """Adds the measurements of a round; None where it has none. An iteration too short to be timed is ignored."""
        if alpha_s is not None and alpha_s > 0:
            self._alphas.append(alpha_s)
        if beta_s is not None:
            self._betas.append(beta_s)

    def add_round(
        self, train: Mapping[str, float], beta_s: float | None, progress: Progress | None, num_iterations: int
    ) -> None:
        """Adds the measurements of a round of `num_iterations`, also if it ended before this node's training did:
        `progress` is how far that had come."""
        alpha_s = train.get("alpha_s")
        if alpha_s is None and progress is not None:
            alpha_s = progress.seconds / progress.step * progress.steps / num_iterations
        self.add(alpha_s, beta_s)

    def choose_iterations(self) -> int | None:
        """Returns E of the next round, None for the method's own number. Logs once when the time is too short."""
        choice = self.choose()
        if (choice.problem is not None) != self._lacks_time:
            self._lacks_time = choice.problem is not None
            if choice.problem is not None:
                log.warning("method.budget_s: %s; a round trains one", choice.problem)
            else:
                log.info("method.budget_s: local iterations fit into it again")
        return choice.num_iterations

    def choose(self) -> Choice:
        """Computes E of the next round."""
        if self.budget_s is None or self.alpha_s is None:
            return Choice()
        try:
            plan = compute_plan(self.budget_s, 1, self.alpha_s, self.beta_s or 0.0)  # Eq. (11)
        except BudgetError as error:
            return Choice(1, str(error))
        return Choice(min(plan.local_iterations, MAX_ITERATIONS))
