"""The rounds of a simulation: train, exchange, aggregate and apply, for all clients in one process.

A local phase that diverges ends the run; where some clients lie it is left out of its round, like a contribution that
validators refuse. `ml.simulation.run` collects the results.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from ml.aggregation import compute_max_liars
from ml.clients.batched import train_batched
from ml.clients.client import Client
from ml.errors import Spoiled
from ml.guard import KEEP_HEIGHTS, LeftOut
from ml.methods.base import Blobs, Metrics, Trained
from ml.methods.common.sharing import Classifies
from ml.payload import Arrays, decode_arrays
from ml.simulation.exchange import Exchange, Size
from ml.simulation.liars import Liars
from ml.simulation.measuring import Measuring, count_prototype_numbers, measure_val_accuracy, without_test_samples
from ml.specs import AuthorPayloads, MethodSpec, Offer, compute_aggregate
from ml.specs.methods.uapdfl import MAX_PAIRED
from ml.training.loop import Diverged
from ml.training.metrics import get_score

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Played:
    """The results of one round, by client. `trained` is what each has trained; `applied` are its measures on its own
    test set once it has applied the round, `on_all` those on everyone's, `val_accuracies` its accuracy on its val
    samples, where it has some. `spoiled` are the clients whose models the round would have spoiled. `digest` is the
    aggregate's, None where nothing is voted on, and `aggregate_s` the seconds that it took. `sent_prototypes` counts
    the numbers that were sent as prototypes. `divergences` [N, N] are those of UA-PDFL's unit representations, for few
    clients that all have sent one."""

    height: int
    trained: Sequence[Trained | None]
    num_left_out: int
    digest: bytes | None
    sent: Size
    received: Size
    applied: Sequence[Metrics]
    spoiled: frozenset[int]
    on_all: Sequence[Metrics]
    val_accuracies: Sequence[float | None]
    sent_prototypes: int | None
    divergences: tuple[tuple[float, ...], ...] | None
    aggregate_s: float


class Rounds:
    """The rounds of a run, to be played one after the other. `trained` has the result of each client's last local
    phase."""

    def __init__(
        self,
        clients: Sequence[Client],
        ids: Sequence[bytes],
        initial: Arrays,
        liars: Liars | None = None,
        *,
        batched: bool = False,
        get_present: Callable[[int], Collection[int]] | None = None,
        measuring: Measuring | None = None,
    ) -> None:
        """`initial` is block 0's aggregate; with `batched` all clients train in one pass. `get_present` returns the
        places of the clients that take part in the round of a height, by default all. The others train and send
        nothing, and apply the round as members do that are too late for its block. By default all rounds are
        measured."""
        self._clients = clients
        self._ids = ids
        self._spec = clients[0].spec
        self._liars = liars
        self._batched = batched
        self._get_present = get_present
        self._measuring = measuring
        self._done = [False] * len(clients)  # clients that have finished training alone
        self._parent: Arrays | None = initial
        self._kept: dict[int, Exchange] = {}  # exchanges that later rounds read, by height
        self._left_out = [LeftOut() for _ in clients]
        self.honest = list(range(len(clients))) if liars is None else liars.honest
        self.trained: list[Trained | None] = [None] * len(clients)

    def play(self, height: int, beacon: bytes) -> Played | None:
        """Plays the round that makes the block at `height`; `beacon` is the parent's id. Returns None where a
        federation would halt.

        Raises Diverged where nobody lies, and PayloadError.
        """
        is_measured = self._measuring is None or self._measuring.is_due(self._spec, height)
        with nullcontext() if is_measured else without_test_samples(self._clients):
            played = self._play(height, beacon)
        if played is not None and is_measured and self._measuring is not None:
            self._done = [
                done or self._measuring.is_done(client, get_score(metrics))
                for done, client, metrics in zip(self._done, self._clients, played.applied, strict=True)
            ]
        return played

    def _play(self, height: int, beacon: bytes) -> Played | None:
        answers = self._answer(height, beacon)
        if self._liars is not None and _stands_still(answers, self.honest):
            return None
        exchange = Exchange.make(self._spec, height, self._ids, answers)
        self._keep(exchange)
        start_s = time.perf_counter()
        digest = self._aggregate(height, answers)
        aggregate_s = time.perf_counter() - start_s
        gone = [frozenset(left_out.get(height, KEEP_HEIGHTS)) for left_out in self._left_out]
        if self._measuring is not None and self._measuring.alone_until is not None:
            gone = [frozenset(self._ids) - {me} for me in self._ids]
        offered = exchange.with_stale(self._kept, self._parent)
        taken = {me: offered.take(beacon, me, self._parent, away) for me, away in zip(self._ids, gone, strict=True)}
        sent, received = offered.measure(taken)
        applied = [self._apply(i, offered, beacon, taken[me], gone[i]) for i, me in enumerate(self._ids)]
        return Played(
            height=height,
            trained=self.trained,
            num_left_out=answers.count(None),
            digest=digest,
            sent=sent,
            received=received,
            applied=[metrics for metrics, _ in applied],
            spoiled=frozenset(i for i, (_, is_spoiled) in enumerate(applied) if is_spoiled),
            on_all=self._evaluate_on_all(),
            val_accuracies=[measure_val_accuracy(client) for client in self._clients],
            sent_prototypes=count_prototype_numbers(answers),
            divergences=self._measure_divergences(exchange, beacon),
            aggregate_s=aggregate_s,
        )

    @property
    def aggregate(self) -> Arrays | None:
        """The aggregate of the newest round."""
        return self._parent

    def _evaluate_on_all(self) -> list[Metrics]:
        """Measures all clients on everyone's test set. A client that answers as the first one does gets its measures:
        with a shared model, only one client is evaluated."""
        first, *others = self._clients
        told = first.evaluate("global")
        return [told, *(told if answer_alike(first, client) else client.evaluate("global") for client in others)]

    def _measure_divergences(self, exchange: Exchange, beacon: bytes) -> tuple[tuple[float, ...], ...] | None:
        """Returns the divergences by client; None where the method has none, or not for all clients."""
        ids = self._ids
        if len(exchange.offers) < len(ids) or len(ids) > MAX_PAIRED:
            return None
        told = self._spec.explain(exchange.height, beacon, exchange.offers, self._parent) or {}
        if (by_author := told.get("divergences")) is None:
            return None
        place = {offer.author: row for row, offer in enumerate(exchange.offers)}
        return tuple(tuple(by_author[place[me]][place[peer]] for peer in ids) for me in ids)

    def to_tree(self) -> dict[str, Any]:
        """Returns all that the next round depends on, and the measures of the last, for `load_tree`."""
        return {
            "parent": self._parent,
            "clients": [{"now": client.state_arrays(), "before": client.arrays_before} for client in self._clients],
            "kept": [exchange.to_tree() for exchange in self._kept.values()],
            "left_out": [left_out.to_list() for left_out in self._left_out],
            "measured": [None if made is None else dict(made.metrics) for made in self.trained],
            "done": list(self._done),
        }

    def load_tree(self, tree: Mapping[str, Any]) -> None:
        """Restores the state after a round of a run with the same configuration."""
        self._parent = tree["parent"]
        for client, own in zip(self._clients, tree["clients"], strict=True):
            client.load_state_arrays(own["now"], own["before"])
        kept = [Exchange.from_tree(self._spec, one) for one in tree["kept"]]
        self._kept = {exchange.height: exchange for exchange in kept}
        for left_out, refused in zip(self._left_out, tree["left_out"], strict=True):
            for peer, at, why in refused:
                left_out.add(peer, at, why)
        self.trained = [None if metrics is None else Trained(1, {}, metrics) for metrics in tree["measured"]]
        self._done = list(tree.get("done", self._done))

    def _answer(self, height: int, beacon: bytes) -> Sequence[Trained | None]:
        """Returns the contributions of all: what they have trained, and the lies of those that lie."""
        shared = self._kept.get(self._spec.get_shared_height(height) or 0)
        offers = shared.offers if shared else ()
        blobs = [shared.take_for_training(height, beacon, me) if shared else {} for me in self._ids]
        if self._liars is not None:
            self._liars.begin()
        present = range(len(self._ids)) if self._get_present is None else sorted(self._get_present(height))
        self.trained = self._train(height, beacon, offers, blobs, present)
        return self.trained if self._liars is None else self._liars.answer(height, self.trained, self._parent)

    def _train(
        self, height: int, beacon: bytes, offers: Sequence[Offer], blobs: Sequence[Blobs], present: Sequence[int]
    ) -> list[Trained | None]:
        """Runs the local phases of those present; returns None for the others. Where a batched phase diverges, trains
        one client after the other, since each may have a state to return to. If one still diverges, returns None for it
        where some lie; raises Diverged otherwise."""
        trained: list[Trained | None] = [None] * len(self._ids)
        if self._batched:
            with suppress(Diverged):
                together = train_batched(
                    [self._clients[i] for i in present],
                    height,
                    beacon,
                    ids=[self._ids[i] for i in present],
                    offers=offers,
                    blobs=[blobs[i] for i in present],
                )
                for i, made in zip(present, together, strict=True):
                    trained[i] = made
                return trained
        for i in present:
            try:
                trained[i] = self._clients[i].train(
                    height,
                    beacon,
                    num_iterations=0 if self._done[i] else None,
                    me=self._ids[i],
                    offers=offers,
                    blobs=blobs[i],
                )
            except Diverged:
                if self._liars is None:
                    raise
        return trained

    def _keep(self, exchange: Exchange) -> None:
        """Keeps only what later rounds read: all shared blobs, and of other rounds each author's newest blobs."""
        now, exchanges = exchange.height, {**self._kept, exchange.height: exchange}
        read = {made: old for made, old in exchanges.items() if _is_read_after(now, made, self._spec)}
        newer = set[bytes]()
        for made, old in sorted(read.items(), reverse=True):
            authors = {offer.author for offer in old.offers}
            if made > self._spec.sharing_heights:
                read[made] = old.keep_blobs_of(authors - newer)
            newer |= authors
        self._kept = read

    def _aggregate(self, height: int, answers: Sequence[Trained | None]) -> bytes | None:
        """Aggregates the round for the next one to build on, and returns the aggregate's digest."""
        contributions = [
            AuthorPayloads(author, made.weight, made.payloads)
            for author, made in zip(self._ids, answers, strict=True)
            if made is not None
        ]
        encoded = compute_aggregate(self._spec, height, contributions, self._parent)
        self._parent = None if encoded is None else decode_arrays(encoded, len(encoded))
        return None if encoded is None else hashlib.sha256(encoded).digest()

    def _apply(
        self, i: int, exchange: Exchange, beacon: bytes, blobs: Blobs, gone: Collection[bytes]
    ) -> tuple[Metrics, bool]:
        """Applies a round to client `i`. Returns what it measures, and whether the round would have spoiled it: then it
        keeps its state. Records the peers that it refuses."""
        client, me, height = self._clients[i], self._ids[i], exchange.height

        def on_refused(peer: bytes, why: str) -> None:
            log.info("%s took nothing of %s at height %d: %s", me.hex()[:8], peer.hex()[:8], height, why)
            self._left_out[i].add(peer, height, why)

        try:
            metrics = client.apply(
                height,
                self._parent,
                beacon=beacon,
                me=me,
                offers=exchange.offers,
                blobs=blobs,
                gone=gone,
                on_refused=on_refused,
            )
        except Spoiled as error:
            log.warning("%s went on from its own model after height %d: %s", me.hex()[:8], height, error)
            return client.evaluate() | client.measure_val(), True
        return metrics, False


def answer_alike(one: Client, other: Client) -> bool:
    """Says whether two clients answer everyone's test set alike: by the model alone, with the same weights."""
    kinds: list[Any] = [type(client.method) for client in (one, other)]
    alone = all(kind.predict is Classifies.predict for kind in kinds)
    if not alone or one.state.data.everyone is not other.state.data.everyone:
        return False
    theirs = other.state.model.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state.model.state_dict().items())


def _stands_still(answers: Sequence[Trained | None], honest: Sequence[int]) -> bool:
    """Says whether no block can be made: there are fewer than n - f contributions, a federation's quorum, or none of an
    honest client."""
    num = len(answers) - answers.count(None)
    return num < len(answers) - compute_max_liars(len(answers)) or all(answers[i] is None for i in honest)


def _is_read_after(height: int, made: int, spec: MethodSpec) -> bool:
    """Says whether a local phase after the one of `height` reads what was exchanged at height `made`."""
    last = spec.needed_until(made)
    return last is None or last > height
