"""The best round of a run that selects one, as the admin service shows it."""

from __future__ import annotations

from collections.abc import Iterable

from chain.run import Run
from chain.select import ONE, Select
from chain.selection import Selection
from node.pb import admin_pb2 as pb


def show_selected(run: Run, found: Selection) -> pb.Selected:
    """Shows the best round of a run so far; none if the selection `found` belongs to an earlier run."""
    select = run.select or Select()
    found = found if found.run == run.number else Selection()
    return pb.Selected(
        by=select.by,
        best_round=found.best,
        score=found.score / ONE,
        since=found.since,
        patience=select.patience,
        stopped=run.stopped,
        last_round=found.last,
        last_score=found.last_score / ONE,
    )


def mark_best(rounds: Iterable[pb.Round], found: Selection) -> None:
    """Marks the best round `found` in a run, if it is among these."""
    for shown in rounds:
        shown.best = found.best > 0 and (shown.run, shown.round) == (found.run, found.best)
