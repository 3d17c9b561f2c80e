"""The changes of what is trained: runs that start, grow and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from chain.agreed_input import explain_uninherited
from chain.block import ZERO, Digest
from chain.changes.base import Consent, Kind, Place
from chain.errors import GenesisError, InvalidChange
from chain.run import OPTIONAL_TERMS, TERMS, Run
from chain.schema import Section, read_digest
from chain.state import State

CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class StartRun(Kind):
    """Starts the next run: from the aggregate in force, or from a model whose digest is named."""

    number: int
    terms: Mapping[str, Any]  # of `Run`, except the initial model
    initial: Digest | None  # None: continue
    name: ClassVar[str] = "start_run"
    keys: ClassVar[tuple[str, ...]] = ("run", "initial")
    consent: ClassVar[Consent] = Consent.TRAINING

    @classmethod
    def read(cls, top: Section) -> Self:
        named = [name for name in TERMS if name != "initial_model"]
        section = top.section("run", ("number", *named))
        initial = None if top.text("initial") == CONTINUE else read_digest("initial", top.text("initial"))
        if initial == ZERO:
            raise GenesisError("initial", "expected the digest of a model, got zeros")
        terms = {name: section.value(name) for name in named if section.has(name) or name not in OPTIONAL_TERMS}
        started = cls(section.integer("number"), terms, initial)
        agreed = started._make_run(1, ZERO).to_terms()
        return cls(started.number, {name: agreed[name] for name in named if name in agreed}, initial)

    def _make_run(self, first_height: int, initial_model: Digest) -> Run:
        terms = {**self.terms, "initial_model": initial_model.hex()}
        return Run.from_terms(Section("run", terms, TERMS), number=self.number, first_height=first_height)

    def to_terms(self) -> dict[str, Any]:
        initial = CONTINUE if self.initial is None else self.initial.hex()
        return {"run": {"number": self.number, **self.terms}, "initial": initial}

    def apply(self, state: State, place: Place) -> State:
        if self.number != state.run.number + 1:
            raise InvalidChange.differs("number of the run", state.run.number + 1, self.number)
        run = self._make_run(place.height + 1, place.aggregate if self.initial is None else self.initial)
        if run.first_protocol > state.protocol:
            raise InvalidChange(
                f"run: needs protocol {run.first_protocol}, to which an upgrade leads; in force is {state.protocol}"
            )
        made = place.height - state.run.first_height
        why = explain_uninherited(state.run.input, run.input, continues=self.initial is None, num_rounds=made)
        if why is not None:
            raise InvalidChange(f"input: {why}")
        if self.initial is None:
            if place.aggregate == ZERO:
                raise InvalidChange("initial: there is no aggregate to continue from; name a model")
            if not _are_nested(state.run.schema.get("aggregate"), run.schema.get("aggregate")):
                raise InvalidChange("initial: the aggregate in force is not one this run can continue from")
        return replace(state, run=run)


@dataclass(frozen=True, slots=True)
class SetRounds(Kind):
    """Sets another number of rounds for the run in force."""

    run: int
    old: int
    new: int
    name: ClassVar[str] = "set_rounds"
    keys: ClassVar[tuple[str, ...]] = ("run", "rounds")

    @classmethod
    def read(cls, top: Section) -> Self:
        old, new = _read_pair(top, "rounds")
        return cls(top.integer("run"), old, new)

    def to_terms(self) -> dict[str, Any]:
        return {"run": self.run, "rounds": [self.old, self.new]}

    def apply(self, state: State, place: Place) -> State:
        _check_run(state, self.run)
        if state.run.rounds != self.old:
            raise InvalidChange.differs("rounds in force", self.old, state.run.rounds)
        made = state.run.count_rounds(place.height - state.run.first_height)
        if self.new != 0 and self.new < made:
            raise InvalidChange.differs("rounds", f"0 or at least the {made} made", self.new)
        if self.new == self.old and not state.run.stopped:
            raise InvalidChange(f"rounds: there are {self.old} already")
        return replace(state, run=replace(state.run, rounds=self.new, stopped=0))


@dataclass(frozen=True, slots=True)
class EndRun(Kind):
    """Ends the run in force; the federation is idle until the next."""

    run: int
    name: ClassVar[str] = "end_run"
    keys: ClassVar[tuple[str, ...]] = ("run",)

    @classmethod
    def read(cls, top: Section) -> Self:
        return cls(top.integer("run"))

    def to_terms(self) -> dict[str, Any]:
        return {"run": self.run}

    def apply(self, state: State, place: Place) -> State:
        _check_run(state, self.run)
        return replace(state, run=replace(state.run, is_ended=True))


def _check_run(state: State, number: int) -> None:
    if number != state.run.number:
        raise InvalidChange.differs("number of the run", state.run.number, number)
    if state.run.is_ended:
        raise InvalidChange(f"run {number} has been ended")


def _are_nested(before: Any, after: Any) -> bool:
    """Says whether one aggregate has all arrays of the other: a run may train more of a model, or less."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or not before or not after:
        return False
    fewer, more = (before, after) if len(before) <= len(after) else (after, before)
    return all(name in more and more[name] == array for name, array in fewer.items())


def _read_pair(top: Section, name: str) -> tuple[int, int]:
    values = top.items(name)
    if len(values) != 2:
        raise GenesisError(name, f"expected the old and the new value, got {len(values)}")
    pair = Section(name, {"old": values[0], "new": values[1]}, ("old", "new"))
    return pair.integer("old"), pair.integer("new")
