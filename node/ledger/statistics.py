"""The statistics that a run's members have agreed on, as the chain has them: one line for people."""

from __future__ import annotations

from chain.block import ZERO
from chain.errors import StoreCorrupted
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError
from ml.payload import read_arrays
from ml.specs import MaskedStatisticsSpec, StatisticsSpec
from ml.specs.statistics import describe_statistics
from node.runs.specs import RunSpecs


def describe_agreed(runs: RunSpecs, store: SqliteStore) -> str | None:
    """Describes the statistics that normalise samples in the run in force; None where its members agree on none. Runs
    on the store's thread, and reads little of the newest aggregate, however large that is."""
    head, spec = store.head().block, runs.find_newest(store.head_height)
    if not isinstance(spec, StatisticsSpec | MaskedStatisticsSpec):
        return None
    own = spec.inner if isinstance(spec, MaskedStatisticsSpec) else spec
    digest, run = head.header.aggregate, runs.calendar.get_span(head.height + 1).run
    if own.num_before and not runs.calendar.count_rounds(run.number, head.height):
        return "to be agreed on in round 1"
    if digest == ZERO or not store.has_blob(digest):
        return "agreed; the newest aggregate is not here"
    try:
        return describe_statistics(read_arrays(store.locate_blob(digest))) or "not in the newest aggregate"
    except (OSError, PayloadError, StoreCorrupted):  # pruned meanwhile, or damaged: the store reports it elsewhere
        return "agreed; the newest aggregate is not here"
