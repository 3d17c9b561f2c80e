"""The model that an evaluation measures: the aggregate of a round, as a run begins from it.

If it is the aggregate in force, and that holds nothing else, the run continues from it. The model of another round, or
of a method that shares more than a model, is named by the digest of its parameters; the constants by which members
normalise samples then stand in the run's input. A member that approves such a run checks that it is the model of the
round that it names, if the blobs are still here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chain.agreed_input import AGREED_KEYS
from chain.block import ZERO
from chain.calendar import Calendar, Place
from chain.changes.base import Kind
from chain.changes.runs import StartRun
from chain.errors import ChainError
from chain.run import Run
from chain.schema import Section, describe, quote
from chain.selection import read_selection
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError, SpecError
from ml.payload import decode_arrays, encode_arrays, read_arrays
from ml.specs import MethodSpec, add_kind, get_kind
from ml.specs.methods.evaluation import EVALUATION, MIN_SAMPLES
from ml.specs.run_schema import has_whole_model
from ml.specs.statistics import STATISTICS, Constants, get_num_values
from node.errors import ChangeRefused
from node.federation.run_terms import OF_TASK
from node.runs.chosen_round import BEST, NEWEST
from node.runs.initial import combine
from node.runs.specs import RunSpecs

TERMS = ("run", "round", "min_samples", "min_count", "lend")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredModel:
    """The model of a round of `run`, as people count rounds. `blob` has its parameters, None if it is the aggregate in
    force; `input` is that of the evaluation. `has_common`: members have a whole model in common, which is measured."""

    run: Run
    place: Place
    input: Mapping[str, Any]
    blob: bytes | None = None
    has_common: bool = True

    def to_sections(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all sections of the run that measures it, with these settings of the method."""
        terms = self.run.to_terms()
        named: dict[str, Any] = {} if self.blob is None else {"of_run": self.place.run, "of_round": self.place.round}
        if settings.get("lend") and not self.has_common:
            named["only_lent"] = True
        own = {key: terms[key] for key in OF_TASK if key in terms}
        return {**own, "method": {"name": EVALUATION, **settings, **named}, "input": dict(self.input)}


def read_evaluation_terms(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the method that an operator asks for. Raises GenesisError."""
    top = Section("", terms, TERMS)
    settings: dict[str, Any] = {key: top.integer(key) for key in ("min_samples", "min_count") if top.has(key)}
    return settings | ({"lend": True} if top.flag("lend", False) else {})


def find_trained(calendar: Calendar) -> Run | None:
    """Returns the newest run that trains, None if there is none."""
    numbers = range(calendar.newest.run.number, 0, -1)
    runs = (calendar.get_run(number) for number in numbers)
    return next((run for run in runs if run is not None and run.method["name"] != EVALUATION), None)


def read_measured_model(store: SqliteStore, runs: RunSpecs, terms: Mapping[str, Any]) -> MeasuredModel:
    """Returns the model that an operator asks to measure: `round` is a number, newest or best, `run` by default the
    newest that trains. In a run without a whole model in common, only models that sites `lend` can be measured. Runs on
    the store's thread. Raises ChangeRefused."""
    try:
        top = Section("", terms, TERMS)
        number, asked, lends = top.optional_integer("run"), top.value("round", NEWEST), top.flag("lend", False)
    except ChainError as error:
        raise ChangeRefused(describe(error)) from error
    run = find_trained(runs.calendar) if number is None else runs.calendar.get_run(number)
    if run is None or run.method["name"] == EVALUATION:
        raise ChangeRefused(f"run: expected one that trains, got {'none' if number is None else number}")
    made = _count_made(run, runs.calendar, store.head_height)
    if not made:
        raise ChangeRefused(f"run {run.number} has made no round yet, whose model could be measured")
    if asked == NEWEST:
        asked = made
    elif asked == BEST:
        asked = _find_best(store, runs.calendar, run)
    if type(asked) is not int or not 1 <= asked <= made:
        raise ChangeRefused(
            f"round: expected {NEWEST}, {BEST} or a number from 1 to {made} of run {run.number}, got {quote(asked)}"
        )
    return _read(store, runs, run, asked, lends=lends)


def check_measured_model(store: SqliteStore, runs: RunSpecs, start: StartRun) -> None:
    """Raises ChangeRefused if a run measures another model than that of the round it names. A model whose blobs were
    deleted is not compared. Runs on the store's thread."""
    method = start.terms["method"]
    if method.get("name") != EVALUATION:
        return
    number, round_number = method.get("of_run"), method.get("of_round")
    if start.initial is None:
        if number is not None:
            raise ChangeRefused("method.of_run: expected none of what continues: that is the aggregate in force")
        return
    run = runs.calendar.get_run(number) if type(number) is int else None
    made = 0 if run is None else _count_made(run, runs.calendar, store.head_height)
    if run is None or type(round_number) is not int or not 1 <= round_number <= made:
        raise ChangeRefused(
            f"method: expected of_run and of_round to name a round, got {number!r} and {round_number!r}"
        )
    try:
        named = _read(store, runs, run, round_number, by_digest=True, lends=method.get("lend") is True)
    except _Gone:
        return
    if named.blob is None or hashlib.sha256(named.blob).digest() != start.initial:
        raise ChangeRefused(f"initial: not the model of run {number}, round {round_number}")
    if method.get("lend") and bool(method.get("only_lent")) is named.has_common:
        raise ChangeRefused(f"method.only_lent: expected {str(not named.has_common).lower()} of run {number}")


def check_min_samples(kind: Kind, min_samples: int) -> None:
    """Raises ChangeRefused if this site would publish measures of fewer test samples than its own settings allow."""
    method = kind.terms["method"] if isinstance(kind, StartRun) else {}
    if method.get("name") == EVALUATION and method.get("min_samples", MIN_SAMPLES) < min_samples:
        raise ChangeRefused(
            f"method.min_samples: expected at least {min_samples}, which training.publish_min_samples says here, got "
            f"{method.get('min_samples')}; fednode approve --no-train agrees and tells nothing"
        )


class _Gone(ChangeRefused):
    """The blob of a model was deleted."""


def _count_made(run: Run, calendar: Calendar, head: int) -> int:
    """Returns how many rounds have an aggregate of their own: with masked sums, those that were unmasked."""
    heights = calendar.count_rounds(run.number, head)
    return max(heights - 1, 0) // 2 if run.is_masked else heights


def _find_best(store: SqliteStore, calendar: Calendar, run: Run) -> int:
    """Returns the best round of a run. Raises ChangeRefused if it has none."""
    following = calendar.get_start(run.number + 1)
    head = store.head_height if following is None else following - 1
    if not (best := read_selection(store.get_state, store.read_blocks, head).best):
        raise ChangeRefused(f"run {run.number} has no best round: no quorum of its members has measured one")
    return best


def _read(
    store: SqliteStore, runs: RunSpecs, run: Run, number: int, *, by_digest: bool = False, lends: bool = False
) -> MeasuredModel:
    """Returns the model of a round that was made. If sites lend, and members have no whole model in common, it is the
    model that a run continuing from there would begin with. Raises ChangeRefused."""
    place = Place(run.number, number)
    height = runs.calendar.get_height(Place(run.number, 2 * number + 1 if run.is_masked else number))
    stored = None if height is None else store.get_block(height)
    round_ = runs.find_round(run.number, 1)
    if stored is None or round_ is None:
        raise ChangeRefused(f"run {run.number}: this release does not know its method")
    held = run.schema.get("aggregate", {})
    has_common = has_whole_model(round_.spec, held)
    if not has_common and not lends:
        raise ChangeRefused(
            f"run {run.number}: {run.method['name']} has no whole model in common that every site could measure; with "
            "--lend those are measured that sites lend of their own"
        )
    if lends and (why := _explain_not_lendable(round_.spec)) is not None:
        raise ChangeRefused(f"lend: expected none of run {run.number}, {why}")
    digest = stored.block.header.aggregate
    model = {f"model/{name}" for name in round_.spec.task.model_schema.arrays}
    is_alone = all(name in model or name.startswith(f"{STATISTICS}/") for name in held)
    if digest == store.head().block.header.aggregate and is_alone and not (by_digest or lends):
        return MeasuredModel(run, place, run.input)
    if digest != ZERO and not store.has_blob(digest):
        raise _Gone(f"the model of run {run.number}, round {number}, is not here any more")
    blobs = [] if digest == ZERO else [store.locate_blob(digest)]
    origins = [origin.initial_model for origin in runs.list_origins(run.number)]
    blobs += [store.locate_blob(origin) for origin in origins if store.has_blob(origin)]  # they hold frozen arrays
    if not blobs:
        raise _Gone(f"what run {run.number} began from is not here any more")
    try:
        combined = combine(run, blobs)
        parameters = get_kind(decode_arrays(combined, len(combined)), "model") or {}
        input_ = _fix_constants(run.input, get_kind(read_arrays(blobs[0]), STATISTICS))
    except (PayloadError, SpecError, OSError) as error:
        raise ChangeRefused(f"the model of run {run.number}, round {number}: {error}") from error
    return MeasuredModel(run, place, input_, encode_arrays(add_kind("model", parameters)), has_common)


def _explain_not_lendable(spec: MethodSpec) -> str | None:
    """Returns why no site may lend its own model of a run; None if a site may."""
    if spec.hyperparameters.is_masked:
        return "whose masked sums hide what the weights of single sites would tell"
    if spec.hyperparameters.is_counted:
        return "whose noise hides what weights would tell"
    return None


def _fix_constants(input_: Mapping[str, Any], statistics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the input with the agreed statistics as constants. Raises PayloadError."""
    if input_.get("normalize") is None:
        return dict(input_)
    if statistics is None:
        raise PayloadError("expected the statistics that members have agreed on, got none")
    constants = Constants.from_arrays(statistics, get_num_values(input_["shape"]))
    fixed = {key: value for key, value in input_.items() if key not in AGREED_KEYS}
    if "columns" in fixed:  # histograms are not counted again
        columns = fixed["columns"]
        fixed["columns"] = [{key: one[key] for key in one if key != "edges"} for one in columns]
    return {**fixed, "mean": list(constants.mean), "std": list(constants.std)}
