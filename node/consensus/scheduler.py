"""Training scheduler: sets what the worker trains for at each height, and with how many local iterations.

A height that this node has contributed to in an earlier life is trained for with the same number of iterations as
then, should the worker's model not hold that training. Of a set that was shared there nothing is left to do.
"""

from __future__ import annotations

from ml.specs import MethodSpec
from node.consensus.current import CurrentRound
from node.consensus.machine import RoundMachine
from node.consensus.record import Records
from node.consensus.signer import SignedBefore
from node.training.learner import Learner, Target
from node.training.local_work import LocalWork


class TrainingScheduler:
    """One node's. `num_iterations` is E of the round in hand."""

    def __init__(
        self, current: CurrentRound, spec: MethodSpec, learner: Learner, local_work: LocalWork, records: Records
    ) -> None:
        self.num_iterations = spec.get_local_work(current.tip.height + 1)
        self._current = current
        self._spec = spec
        self._learner = learner
        self._local_work = local_work
        self._records = records

    def measure(self) -> None:
        """The round in hand ends: what it has taken counts in the choice for the next."""
        if (record := self._records.current) is not None:
            self._local_work.add_round(record.train, record.beta_s, self._learner.progress, self.num_iterations)

    def begin(self, machine: RoundMachine, before: SignedBefore) -> None:
        """Has the worker train for this height, unless it has been trained for in an earlier life."""
        has_contributed = before.started.contribution is not None
        is_over = has_contributed and machine.height <= self._spec.sharing_heights  # nothing is left but what is signed
        self._set_target(
            machine,
            before.num_iterations or self._local_work.choose_iterations(),
            trains=machine.contributes and not is_over,
            has_contributed=has_contributed,
        )

    def resume(self, machine: RoundMachine) -> None:
        """Has the worker train for this height after all."""
        self._set_target(machine, self._local_work.choose_iterations(), trains=True)

    def end(self) -> None:
        """The set rounds are over: the worker takes in the last block, and trains no more."""
        self._learner.set_target(Target(self._current.tip.block, trains=False))

    def _set_target(
        self, machine: RoundMachine, chosen: int | None, *, trains: bool, has_contributed: bool = False
    ) -> None:
        self.num_iterations = chosen or self._spec.get_local_work(machine.height)
        self._learner.set_target(
            Target(self._current.tip.block, trains=trains, has_contributed=has_contributed, num_iterations=chosen)
        )

    def __repr__(self) -> str:
        return f"<TrainingScheduler on {self._current.tip.height}: {self.num_iterations} iterations>"
