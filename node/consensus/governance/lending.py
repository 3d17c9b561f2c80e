"""The operator's agreement that this site lends its own model for one evaluation; it is stored.

The operator gives it together with the approval of the change that begins the evaluation, before that is executed. The
others see it by the models that are lent.
"""

from __future__ import annotations

from collections.abc import Mapping

from chain.approvals import compute_change_id
from chain.block import Digest
from chain.calendar import Place
from chain.changes.base import Kind
from chain.changes.runs import StartRun
from chain.run import Run
from chain.store.sqlite import SqliteStore
from ml.errors import SpecError
from ml.specs.methods.evaluation import EVALUATION, EvaluationHyperparameters
from node.runs.specs import RunSpecs

_META = "lends"  # the meta value with the ids of the changes, the newest last
MAX_KEPT = 100


def get_lendable(kind: Kind) -> Place | None:
    """Returns the round whose models sites may lend by a change; None for a change without lending."""
    return find_lendable(kind.terms["method"]) if isinstance(kind, StartRun) else None


def find_lendable(method: object) -> Place | None:
    """Returns the round whose models sites may lend, by the method of a run; None if they lend none."""
    if not isinstance(method, Mapping) or method.get("name") != EVALUATION:
        return None
    try:
        settings = EvaluationHyperparameters.from_mapping(method)
    except SpecError:
        return None
    if not settings.lend or settings.of_run is None or settings.of_round is None:
        return None
    return Place(settings.of_run, settings.of_round)


class Lending:
    """Holds the changes by which this node's operator has agreed to lend."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._agreed: list[str] = store.get_meta(_META) or []

    def __contains__(self, change_id: Digest) -> bool:
        return change_id.hex() in self._agreed

    def note(self, change_id: Digest, *, lends: bool) -> None:
        """Stores the operator's last answer to a change. Runs on the store's thread."""
        others = [known for known in self._agreed if known != change_id.hex()]
        agreed = [*others, *([change_id.hex()] if lends else [])][-MAX_KEPT:]
        if agreed != self._agreed:
            self._store.put_meta(_META, agreed)
            self._agreed = agreed

    def __repr__(self) -> str:
        return f"Lending({len(self._agreed)} changes)"


def lends_in(store: SqliteStore, runs: RunSpecs, run: Run) -> bool:
    """Says whether this site lends its own model in a run. Runs on the store's thread."""
    start = runs.calendar.get_start(run.number)
    stored = store.get_block(start) if start else None
    if not start or stored is None or stored.block.change is None:
        return False
    return compute_change_id(store.get_state(start - 1).chain_id, stored.block.change.change) in Lending(store)
