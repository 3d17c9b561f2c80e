"""The evaluations on a chain: one model each, measured by every site on its own test samples. Each is a run of its own,
or the last height of a run that selects its best round.

What a site told is of the chain: the digest of its payload stands in its signed contribution. Its bytes are small, and
so are never let go.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from chain.block import ZERO, Contribution, Digest
from chain.calendar import Calendar, Place
from chain.run import Run
from chain.selection import read_selection
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError, SpecError
from ml.payload import Arrays, kind_code, read_arrays
from ml.specs.closing import ClosingEvaluationSpec
from ml.specs.evaluation import EVALUATION, EvaluationHyperparameters
from ml.specs.told import FIGURES, OF_CLASS, Figures, read_figures
from node.errors import NotFound
from node.ledger.names import get_name
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound, RunSpecs

Endings = MutableMapping[int, tuple[Place, Digest]]  # the round whose model a height evaluates, and its aggregate


def read_evaluations(
    store: SqliteStore, runs: RunSpecs, number: int | None = None, endings: Endings | None = None
) -> Sequence[pb.EvaluationView]:
    """All evaluations, the first one first, or that of one run, 0 being the newest. `endings` has what was found by
    reading a run's blocks, and what is found is added. Runs on the store's thread. Raises NotFound."""
    endings = {} if endings is None else endings
    evaluations = _list_rounds(store, runs)
    if number == 0:
        if not evaluations:
            raise NotFound("no model was evaluated at all sites yet: fednode propose evaluation has it done")
        evaluations = evaluations[-1:]
    elif number is not None:
        evaluations = [one for one in evaluations if one.run.number == number]
        if not evaluations:
            raise NotFound(f"run {number} is no evaluation, and its end has none")
    return [_show(store, runs, one, endings) for one in evaluations]


def _list_rounds(store: SqliteStore, runs: RunSpecs) -> list[RunRound]:
    """The rounds that evaluate, or are to: the first of each run that was made for it, and what ends others."""
    numbers = range(1, runs.calendar.newest.run.number + 1)
    firsts = (runs.find_round(number, 1) for number in numbers)
    ends = (runs.find(height) for height in runs.calendar.list_evaluating(store.head_height))
    made = [first for first in firsts if first is not None and _get_settings(first.run) is not None]
    made += [end for end in ends if end is not None and isinstance(end.spec, ClosingEvaluationSpec)]
    return sorted(made, key=lambda round_: round_.height)


def find_measured(calendar: Calendar, run: Run) -> Place:
    """The run and the round of it, as people count them, whose model an evaluation measures; 0 is the model that the
    run began from."""
    settings = _get_settings(run)
    if settings is not None and settings.of_run is not None and settings.of_round is not None:
        return Place(settings.of_run, settings.of_round)
    start, before = calendar.get_start(run.number), calendar.get_run(run.number - 1)
    if not start or before is None:
        return Place(run.number, 0)
    if _get_settings(before) is not None:  # whose aggregate has the model that it measured
        return find_measured(calendar, before)
    return Place(before.number, calendar.count_rounds(before.number, start - 1))


def _get_settings(run: Run) -> EvaluationHyperparameters | None:
    """None of a run that trains, or that nobody can judge."""
    if run.method["name"] != EVALUATION:
        return None
    try:
        return EvaluationHyperparameters.from_mapping(run.method)
    except SpecError:
        return None


def _find_ending(store: SqliteStore, runs: RunSpecs, round_: RunRound, endings: Endings) -> tuple[Place, Digest]:
    """Finds the round whose model the end of its run measures, and the aggregate that has the model."""
    if (known := endings.get(round_.height)) is not None:
        return known
    selection = read_selection(store.get_state, store.read_blocks, round_.height - 1)
    place = Place(round_.run.number, selection.get_evaluated(round_.run))
    height = runs.calendar.get_height(place)
    stored = None if height is None else store.get_block(height)
    endings[round_.height] = place, ZERO if stored is None else stored.block.header.aggregate
    return endings[round_.height]


def _show(store: SqliteStore, runs: RunSpecs, round_: RunRound, endings: Endings) -> pb.EvaluationView:
    run, height = round_.run, round_.height
    if run.is_evaluating(height):
        place, model = _find_ending(store, runs, round_, endings)
    else:
        place, model = find_measured(runs.calendar, run), run.initial_model
    settings = _get_settings(run) or EvaluationHyperparameters()
    shown = pb.EvaluationView(
        run=run.number,
        of_run=place.run,
        of_round=place.round,
        model=model.hex(),
        min_samples=settings.min_samples,
        min_count=settings.min_count,
        task=run.task,
        classes=run.classes,
    )
    stored = store.get_block(height) if height <= store.head_height else None
    if stored is None:
        return shown
    shown.height = height
    state = store.get_state(height - 1)
    for one in stored.block.contributions:
        site = shown.sites.add(id=encode_id(one.author), name=get_name(state, one.author))
        if (told := _read_told(store, one)) is not None:
            site.held = True
            if int(told["samples"]):
                site.measures.CopyFrom(show_told(told, run.task, run.classes))
    return shown


def _read_told(store: SqliteStore, one: Contribution) -> Arrays | None:
    """What a site told; None where its blob is not here."""
    digest = next((ref.digest for ref in one.payloads if ref.kind == kind_code(EVALUATION)), None)
    if digest is None or not store.has_blob(digest):
        return None
    try:
        return read_arrays(store.locate_blob(digest))
    except (OSError, PayloadError):  # damaged: the store finds that out
        return None


def show_told(told: Arrays, kind: str, classes: Sequence[str]) -> pb.Measures:
    """The measures in a payload, as `fednode evaluate` shows those of a file."""
    whole = read_figures(FIGURES[kind], told["figures"])
    shown = pb.Measures(num_samples=int(told["samples"]), summary=whole.values)
    _add_intervals(shown, whole)
    for k, rows in enumerate(told.get("by_class", ())):
        own = read_figures(OF_CLASS[kind], rows)
        one = shown.classes.add(class_name=classes[k], values=own.values)
        _add_intervals(one, own)
        one.num_samples = int(told["counts"][k]) if "counts" in told else shown.num_samples
        if "confusion" in told:
            one.given.extend(told["confusion"][k].tolist())
            one.num_given = int(told["confusion"][:, k].sum())
    return shown


def _add_intervals(shown: pb.Measures | pb.ClassMeasures, figures: Figures) -> None:
    for name, interval in figures.intervals.items():
        shown.intervals[name].CopyFrom(pb.Interval(low=interval.low, high=interval.high))
