"""The evaluations on a chain: one model each, measured by every site on its own test samples. An evaluation is a run of
its own, or the last height of a run that selects its best round. Where sites lend their own models, each of these is
one more.

The measures of a site are part of the chain: the digest of its payload stands in its signed contribution. The payload's
bytes are few, and are never pruned.
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
from ml.specs.methods.evaluation import EVALUATION, EvaluationHyperparameters
from ml.specs.methods.lending import LENDING, LENT, MEASURING, LendingSpec, split_rows
from ml.specs.told import FIGURES, OF_CLASS, Figures, read_figures
from node.errors import NotFound
from node.ledger.names import get_name
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound, RunSpecs
from node.training.exchange import get_offers

Endings = MutableMapping[int, tuple[Place, Digest]]  # the round whose model a height evaluates, and its aggregate


def read_evaluations(
    store: SqliteStore, runs: RunSpecs, number: int | None = None, endings: Endings | None = None
) -> Sequence[pb.EvaluationView]:
    """Returns all evaluations, the earliest first, or those of one run, 0 being the newest. `endings` keeps what was
    found by reading a run's blocks, for later calls. Runs on the store's thread. Raises NotFound."""
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
    return [view for one in evaluations for view in _show(store, runs, one, endings)]


def _list_rounds(store: SqliteStore, runs: RunSpecs) -> list[RunRound]:
    """Lists the rounds that evaluate a model, or will: one of each run that was made for it, and the last heights of
    runs that select."""
    numbers = range(1, runs.calendar.newest.run.number + 1)
    firsts = [first for number in numbers if (first := runs.find_round(number, 1)) is not None]
    ends = (runs.find(height) for height in runs.calendar.list_evaluating(store.head_height))
    lending = (first.run.number for first in firsts if isinstance(first.spec, LendingSpec))
    made = [one for one in firsts if _get_settings(one.run) is not None and not isinstance(one.spec, LendingSpec)]
    made += [second for number in lending if (second := runs.find_round(number, MEASURING)) is not None]
    made += [end for end in ends if end is not None and isinstance(end.spec, ClosingEvaluationSpec)]
    return sorted(made, key=lambda round_: round_.height)


def find_measured(calendar: Calendar, run: Run) -> Place:
    """Returns the run and the round, as people count them, whose model an evaluation measures. Round 0 is the model
    that the run began from."""
    settings = _get_settings(run)
    if settings is not None and settings.of_run is not None and settings.of_round is not None:
        return Place(settings.of_run, settings.of_round)
    start, before = calendar.get_start(run.number), calendar.get_run(run.number - 1)
    if not start or before is None:
        return Place(run.number, 0)
    if _get_settings(before) is not None:  # an evaluation keeps the model that it measured
        return find_measured(calendar, before)
    return Place(before.number, calendar.count_rounds(before.number, start - 1))


def _get_settings(run: Run) -> EvaluationHyperparameters | None:
    """Returns the settings of an evaluation; None for a run that trains, or whose settings are invalid."""
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


def _show(store: SqliteStore, runs: RunSpecs, round_: RunRound, endings: Endings) -> list[pb.EvaluationView]:
    """Shows each model that is measured in a round."""
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
    views = _add_lent(store, runs, round_, shown)
    stored = store.get_block(height) if height <= store.head_height else None
    if stored is None:
        return views
    state = store.get_state(height - 1)
    told = [(one.author, _read_told(store, one, round_)) for one in stored.block.contributions]
    for i, view in enumerate(views):
        view.height = height
        for author, rows in told:
            site = view.sites.add(id=encode_id(author), name=get_name(state, author), held=rows is not None)
            if rows is not None and len(rows) == len(views) and int(rows[i]["samples"]):
                site.measures.CopyFrom(show_told(rows[i], run.task, run.classes))
    return views


def _add_lent(
    store: SqliteStore, runs: RunSpecs, round_: RunRound, shown: pb.EvaluationView
) -> list[pb.EvaluationView]:
    """Returns the views of the common model, if there is one, and of the lent ones. If there is neither, returns one
    view without a model."""
    if not isinstance(round_.spec, LendingSpec):
        return [shown]
    shown.lends = True
    height = runs.calendar.get_height(Place(round_.run.number, LENDING))
    stored = None if height is None or height > store.head_height else store.get_block(height)
    lent = list[pb.EvaluationView]()
    if stored is not None:
        state = store.get_state(stored.block.height - 1)
        for offer in round_.spec.list_lenders(get_offers(stored.block)):
            view = pb.EvaluationView(lender=encode_id(offer.author), lender_name=get_name(state, offer.author))
            view.MergeFrom(shown)
            view.model = offer.digests[LENT].hex()
            lent.append(view)
    if round_.spec.num_common:
        return [shown, *lent]
    shown.model = ""
    return lent or [shown]


def _read_told(store: SqliteStore, one: Contribution, round_: RunRound) -> Sequence[Arrays] | None:
    """Returns a site's measures of each model; None where its blob is not here."""
    digest = next((ref.digest for ref in one.payloads if ref.kind == kind_code(EVALUATION)), None)
    if digest is None or not store.has_blob(digest):
        return None
    try:
        told = read_arrays(store.locate_blob(digest))
        return split_rows(told) if isinstance(round_.spec, LendingSpec) else [told]
    except (OSError, PayloadError):  # damaged: the store reports it elsewhere
        return None


def show_told(told: Arrays, kind: str, classes: Sequence[str]) -> pb.Measures:
    """Shows the measures in a payload, as `fednode evaluate` shows those of a file."""
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
