"""The best round of a run that selects one, as the admin service shows it."""

from __future__ import annotations

from chain.run import Run
from chain.select import ONE, Select
from chain.selection import Selection
from node.pb import admin_pb2 as pb


def show_selected(run: Run, found: Selection) -> pb.Selected:
    """What a run has come to; nothing yet where what was `found` is of the run before."""
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
