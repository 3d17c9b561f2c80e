"""Initial models that changes name: a run may start from one only if every voter holds it and it fits the run.

A change that starts a run names its model by digest. A node that lacks the blob fetches it, first from the miner of the
block, and neither mines nor prevotes such a block before. A model that does not fit gets no vote here. If a quorum
votes for it, the node follows all the same, as it may be for a method of a newer release.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from chain.block import Digest, Id
from chain.changes.base import Place
from chain.changes.change import Change
from chain.changes.execution import execute_change
from chain.changes.runs import StartRun
from chain.errors import InvalidChange
from chain.rules import Rules
from chain.run import Run
from chain.state import State
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError, SpecError
from ml.payload import decode_arrays, encode_arrays
from ml.specs import add_kind
from node.boundary import Boundary
from node.config.genesis_file import check_initial, make_spec
from node.consensus.height.current import CurrentRound
from node.offload import Offload, run_sized
from node.payloads.fetcher import BlobFetcher

log = logging.getLogger(__name__)

_REMEMBERED = 64  # cases that are remembered

_Case = tuple[Digest, Digest]  # a change and the state it applies to, which has the limits


class InitialModelRefused(Exception):
    """The blob is not a model that the run can begin from; the text says why."""


class InitialModels:
    """Fetches and checks initial models for one node. `blobs` fetches blobs that belong to no height, `arithmetic` is
    the thread for arrays. `on_judged` is called when a model that a change needs is here and fits."""

    def __init__(
        self,
        current: CurrentRound,
        store: SqliteStore,
        blobs: BlobFetcher,
        arithmetic: Offload,
        boundary: Boundary,
        on_judged: Callable[[], None],
    ) -> None:
        self._current = current
        self._store = store
        self._blobs = blobs
        self._arithmetic = arithmetic
        self._boundary = boundary
        self._on_judged = on_judged
        self._judged: OrderedDict[_Case, str | None] = OrderedDict()  # what is wrong with the model, None if it fits
        self._pulling: dict[_Case, asyncio.Task[None]] = {}

    def is_ready(self, change: Change) -> bool:
        """Says whether this node may mine a change: it names no model, or one that is here and fits. If that is not
        known yet, the model is fetched and checked."""
        named = _get_named(change)
        if named is None:
            return True
        case = _make_case(change, self._current.tip.state)
        if case in self._judged and self._store.has_blob(named):
            return self._judged[case] is None
        if case not in self._pulling:
            self._pulling[case] = task = asyncio.create_task(self._find_out(change), name="initial model")
            task.add_done_callback(lambda _: self._pulling.pop(case, None))
        return False

    async def _find_out(self, change: Change) -> None:
        with self._boundary.around("initial model"):
            try:
                await self.ensure(change)
            except (InitialModelRefused, InvalidChange) as error:
                log.warning("a change is not put into a block here: %s", error)
            else:
                self._on_judged()

    async def ensure(self, change: Change, sources: Sequence[Id] = ()) -> None:
        """Fetches the model that a change on the tip names, however long it takes, and checks it; does nothing if it
        names none. Raises InitialModelRefused, or InvalidChange if the change is not valid."""
        named, tip = _get_named(change), self._current.tip
        if named is None:
            return
        case = _make_case(change, tip.state)
        if case not in self._judged or not self._store.has_blob(named):
            after = execute_change(tip.state, change, Place(tip.height + 1, tip.header.aggregate))
            blob = await self._blobs.fetch(named, after.rules.limits.bound_aggregate(after.n), sources)
            wrong = await run_sized(self._arithmetic, len(blob), find_misfit, after.run, after.rules, after.n, blob)
            self._judged[case] = wrong
            while len(self._judged) > _REMEMBERED:
                self._judged.popitem(last=False)
        wrong = self._judged[case]
        if wrong is not None:
            raise InitialModelRefused(f"the initial model that it names: {wrong}")

    def __repr__(self) -> str:
        return f"<InitialModels: {len(self._judged)} judged, {len(self._pulling)} pulled>"


def _make_case(change: Change, state: State) -> _Case:
    return change.compute_id(state.chain_id), state.digest


def _get_named(change: Change) -> Digest | None:
    """Returns the digest of the model that a change starts a run from; None if it names none."""
    return change.kind.initial if isinstance(change.kind, StartRun) else None


def find_misfit(run: Run, rules: Rules, num_members: int, data: bytes) -> str | None:
    """Says why these bytes are not a model that a run can begin from; None if they are. If this release does not know
    the run's method, any arrays will do."""
    try:
        arrays = decode_arrays(data, len(data))
        try:
            spec = make_spec(run, rules, num_members)
        except SpecError:
            return None
        if encode_arrays(add_kind("model", check_initial(spec, arrays))) != data:
            return "expected the arrays of a model alone"
    except PayloadError as error:
        return str(error)
    return None
