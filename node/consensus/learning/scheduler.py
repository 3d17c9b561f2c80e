"""Training scheduler: sets the height that the worker trains for, and the number of local iterations.

This node may have contributed to a round already, before a restart or before a change took its height. Then the worker
trains with the same number of iterations as before, if its model does not hold that training. After sharing a set there
is nothing left to do.
"""

from __future__ import annotations

from chain.block import Id
from chain.calendar import Place
from chain.store.sqlite import SqliteStore
from node.consensus.height.current import CurrentRound
from node.consensus.height.machine import RoundMachine
from node.consensus.learning.masks import is_opening
from node.consensus.record.record import Records
from node.consensus.signing.signer import SignedBefore
from node.runs.specs import RunSpecs
from node.training.learner import Learner
from node.training.local_work import LocalWork
from node.training.target import Target


class TrainingScheduler:
    """Schedules for one node; `me` is its id. `num_iterations` is E of the round in hand. `needs_seat` says that only
    members, and those about to become members, have a worker: a process that imports torch and builds the model takes
    seconds."""

    def __init__(
        self,
        current: CurrentRound,
        runs: RunSpecs,
        learner: Learner,
        local_work: LocalWork,
        records: Records,
        store: SqliteStore,
        *,
        me: Id,
        needs_seat: bool,
    ) -> None:
        self._current = current
        self._runs = runs
        self._learner = learner
        self._local_work = local_work
        self._records = records
        self._store = store
        self._me = me
        self._needs_seat = needs_seat
        self._is_coming = False
        self.num_iterations = self._get_local_work(current.tip.height + 1)

    def _get_local_work(self, height: int) -> int:
        round_ = self._runs.find(height)
        return 0 if round_ is None else round_.spec.get_local_work(round_.number)

    def measure(self) -> None:
        """Adds the times of the round in hand, which ends, to the choice of E for the next."""
        if (record := self._records.current) is not None:
            self._local_work.add_round(record.train, record.beta_s, self._learner.progress, self.num_iterations)

    def begin(
        self, machine: RoundMachine, before: SignedBefore, *, is_renewed: bool = False, trains: bool = True
    ) -> None:
        """Sets what the worker does for this height: it trains if this node contributes and the height `trains`. If the
        node has contributed already, before a restart or a change, the worker trains only what its model lacks."""
        has_contributed = is_renewed or before.started.contribution is not None
        round_ = self._runs.find(machine.height)
        if round_ is not None:
            self._local_work.on_run(round_.run.number, round_.spec.hyperparameters.budget_s)
        if is_opening(round_):
            self._records.on_passed(machine.height - 1)
            self._learner.set_target(self._make_target(trains=False, only_starts=True))
            return
        is_sharing = round_ is not None and round_.number <= round_.spec.sharing_heights
        is_over = has_contributed and is_sharing  # only the signed contribution is left
        self._set_target(
            machine,
            before.num_iterations or self._local_work.choose_iterations(),
            trains=trains and machine.contributes and not is_over,
            has_contributed=has_contributed,
        )

    def resume(self, machine: RoundMachine) -> None:
        """Sets the worker to train for this height after all."""
        self._set_target(machine, self._local_work.choose_iterations(), trains=True)

    def end(self) -> None:
        """Sets the worker to apply the last block and train no more, since the set rounds are over."""
        self._learner.set_target(self._make_target(trains=False))

    def prepare(self) -> bool:
        """Starts the worker of a node that is about to be a member. Returns whether it is ready, as far as it can
        be."""
        if self._has_part:
            return True
        if not self._is_coming:
            self._is_coming = True
            self._learner.set_target(self._make_target(trains=False))
        return not self._holds_initial_model() or self._learner.info is not None or self._learner.failure is not None

    def _set_target(
        self, machine: RoundMachine, chosen: int | None, *, trains: bool, has_contributed: bool = False
    ) -> None:
        self.num_iterations = chosen or self._get_local_work(machine.height)
        is_known = self._runs.find(machine.height) is not None
        self._learner.set_target(
            self._make_target(trains=trains and is_known, has_contributed=has_contributed, num_iterations=chosen)
        )

    def _make_target(
        self,
        *,
        trains: bool,
        has_contributed: bool = False,
        num_iterations: int | None = None,
        only_starts: bool = False,
    ) -> Target:
        """Returns the target on the tip. The last round of its run is to be applied, unless the worker
        `only_starts`."""
        tip = self._current.tip
        run = tip.state.run
        made_height = self._runs.calendar.get_height(Place(run.number, run.get_trained(tip.height)))
        is_coming = not self._has_part and self._is_coming
        return Target(
            tip.block,
            tip.state,
            made_height or 0,
            trains=trains,
            has_contributed=has_contributed,
            num_iterations=num_iterations,
            may_start=self._has_part or (is_coming and self._holds_initial_model()),
            only_starts=only_starts or is_coming,
        )

    @property
    def _has_part(self) -> bool:
        return not self._needs_seat or self._current.tip.state.index_of(self._me) is not None

    def _holds_initial_model(self) -> bool:
        """Says whether all that the run in force begins from is here: peers send no blobs to a node that is not a
        member yet."""
        run = self._current.tip.state.run.number
        return all(self._store.has_blob(origin.initial_model) for origin in self._runs.list_origins(run))

    def __repr__(self) -> str:
        return f"<TrainingScheduler on {self._current.tip.height}: {self.num_iterations} iterations>"
