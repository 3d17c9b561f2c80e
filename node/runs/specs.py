"""Run specs: for a height its run, the round of that run, the method's spec and the rules that judge it.

Runs follow each other with other methods, models and settings, and a change of the rules moves a run's limits. So no
part of a node keeps a spec for longer than a height: it asks for it here, where one is made for the same terms.

If the method belongs to a newer release, or a plugin of the model is missing, there is no spec: this node does not
judge the round, and follows the others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Self

from chain.block import Digest
from chain.calendar import Calendar, Place, Span
from chain.layout import MAX_HEIGHT
from chain.rules import Rules
from chain.run import Run
from chain.store.sqlite import SqliteStore
from ml.errors import SpecError
from ml.specs import MethodSpec
from ml.specs.architectures import initial_schema
from ml.specs.closing import ClosingEvaluationSpec, ClosingSpec
from ml.specs.run_schema import has_whole_model
from node.config.genesis_file import make_spec

_CACHED = 16  # specs

_Terms = tuple[int, int, int, int, float]


@dataclass(frozen=True, slots=True)
class RunRound:
    """A height that is a round: `number` is the number of the round within its run, by which the spec is called."""

    height: int
    run: Run
    number: int
    spec: MethodSpec
    rules: Rules

    @classmethod
    def at(cls, height: int, run: Run, spec: MethodSpec, rules: Rules) -> Self:
        """Returns the round of `run` at a height, by the spec of the run's method, or by the spec of a closing
        height."""
        aggregate = run.schema.get("aggregate", {})
        if run.is_evaluating(height) and has_whole_model(spec, aggregate):
            spec = ClosingEvaluationSpec.of(spec)
        elif run.is_closing(height):
            spec = ClosingSpec.of(spec, aggregate)
        return cls(height, run, run.get_round(height), spec, rules)

    @property
    def place(self) -> Place:
        return Place(self.run.number, self.number)

    @property
    def collect_s(self) -> float:
        """The time in seconds for which this node waits for contributions of this round and the blobs that they commit
        to."""
        return self.spec.get_collect_s(self.number, self.rules.waits.collect_s)


class RunSpecs:
    """The specs of one chain. Any thread may call it."""

    def __init__(self, calendar: Calendar) -> None:
        self.calendar = calendar
        self._specs: OrderedDict[_Terms, MethodSpec | SpecError] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def load(cls, store: SqliteStore) -> Self:
        """Returns the specs of the chain in a store. Raises StoreCorrupted."""
        return cls(Calendar(store.read_states(0, MAX_HEIGHT)))

    # ---- by height

    def find(self, height: int) -> RunRound | None:
        """Returns the round that made the block at a height, or may make it. None if that block is a change or can only
        be one, or if this release does not know the method."""
        span = self.calendar.get_span(height)
        if self.calendar.get_place(height) is None:
            return None
        try:
            spec = self._get_spec(span)
        except SpecError:
            return None
        return RunRound.at(height, span.run, spec, span.rules)

    def get_number(self, height: int) -> int:
        """Returns the number of the round at a height, as people count rounds; the height itself if that is no
        round."""
        round_ = self.find(height)
        return height if round_ is None else round_.number

    def find_newest(self, head: int) -> MethodSpec | None:
        """Returns the spec of the run in force above `head`, None if this release does not know it."""
        try:
            return self._get_spec(self.calendar.get_span(head + 1))
        except SpecError:
            return None

    def explain_unknown(self, height: int) -> str | None:
        """Returns why this release cannot judge the round at a height; None if it can, or there is no round."""
        if self.calendar.get_place(height) is None:
            return None
        try:
            self._get_spec(self.calendar.get_span(height))
        except SpecError as error:
            return str(error)
        return None

    # ---- by round

    def find_round(self, run: int, number: int) -> RunRound | None:
        """Returns a round of a run by their numbers, None as `find` does."""
        height = self.calendar.get_height(Place(run, number))
        return None if height is None else self.find(height)

    def list_lost_heights(self, round_: RunRound) -> list[int]:
        """Returns the heights just below a round's that were planned for that round, until change blocks took them; the
        highest first."""
        lost: list[int] = []
        for height in range(round_.height - 1, 0, -1):
            span = self.calendar.get_span(height)
            was_same = (span.run.number, span.run.get_round(height)) == (round_.run.number, round_.number)
            if not (self.calendar.is_change(height) and was_same):
                break
            lost.append(height)
        return lost

    def find_shared(self, round_: RunRound) -> RunRound | None:
        """Returns the earlier round of the run whose blobs the local phase for this round reads; None if it reads
        none."""
        number = round_.spec.get_shared_height(round_.number)
        return None if number is None else self.find_round(round_.run.number, number)

    def is_needed(self, round_: RunRound, head: int, *, behind: int = 0) -> bool:
        """Says whether a local phase for a height above `head` may still read the blobs of this round, here or in a
        node that is `behind` by so many heights. The blobs of a run are never read after it has ended, or another has
        begun."""
        run = self.calendar.get_span(head + 1).run
        if run.number != round_.run.number or run.is_ended:
            return False
        last, height = round_.spec.needed_until(round_.number), max(round_.height, head - behind)
        return last is None or self.calendar.get_span(height + 1).run.get_round(height) < last

    def is_kept(self, round_: RunRound) -> bool:
        """Says whether the terms of its run keep the blobs of this round for ever, which they do only for rounds that
        share sets."""
        return round_.spec.keeps_shared and round_.number <= round_.spec.sharing_heights

    # ---- initial models

    def list_origins(self, number: int) -> list[Run]:
        """Returns the run of this number and those before it, newest first, back to the first whose initial model is
        certainly whole. The aggregate that a run continues from may hold only a part of a model, or prototypes."""
        origins: list[Run] = []
        while (run := self.calendar.get_run(number)) is not None:
            origins.append(run)
            before = self.calendar.get_run(number - 1)
            if before is None or self._aggregates_whole_models(before):
                break
            number -= 1
        return origins

    @property
    def initial_models(self) -> frozenset[Digest]:
        """The digests of the models that the run in force, the run before it and the first run began from."""
        newest = self.calendar.newest.run.number
        runs = [*self.list_origins(newest), *self.list_origins(newest - 1), *self.list_origins(1)]
        return frozenset(run.initial_model for run in runs)

    def _aggregates_whole_models(self, run: Run) -> bool:
        try:
            wanted = initial_schema(run.model, run.input["shape"], len(run.classes)).arrays
        except SpecError:
            return False
        return wanted.keys() <= {name.removeprefix("model/") for name in run.schema.get("aggregate", ())}

    def _get_spec(self, span: Span) -> MethodSpec:
        """Returns the spec of a span's run. Raises SpecError."""
        run, limits = span.run, span.rules.limits
        terms = run.number, run.rounds, span.num_members, limits.max_weight, limits.max_abs
        with self._lock:
            known = self._specs.get(terms)
            if known is None:
                try:
                    known = make_spec(run, span.rules, span.num_members)
                except SpecError as error:
                    known = error
                self._specs[terms] = known
                if len(self._specs) > _CACHED:
                    self._specs.popitem(last=False)
            else:
                self._specs.move_to_end(terms)
        if isinstance(known, SpecError):
            raise known
        return known

    def __repr__(self) -> str:
        return f"RunSpecs({self.calendar!r}, specs={len(self._specs)})"
