"""DFedAvgM: models are mixed over the edges of an undirected graph (ALGORITHMS §9).

Sun, Li, Wang, *Decentralized Federated Averaging*, 2021 (IEEE TPAMI 2022). The graph's mixing matrix W is symmetric and
each of its rows sums to 1; here its weights are those of Metropolis and Hastings, for neighbours i and l:

    W_il = 1 / (1 + max(deg_i, deg_l))        W_ii = 1 - sum of the others

The graph comes from the draw that all peer-to-peer methods have in common: i and j are neighbours if either has drawn
the other, so a client has N_com of them or more, up to all. Anyone can compute who drew whom, and so W.

Where we deviate: the paper's graph stays the same in all rounds, this one is drawn again in each. The paper leaves
theta open; it is `momentum`, 0.9 by default. The weight of a neighbour whose model cannot be fetched goes to the client
itself: its row still sums to 1, but W is not symmetric then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from ml.payload import Arrays
from ml.specs.hyperparameters import Hyperparameters, choice, number
from ml.specs.peers import PeerHyperparameters, PeerSpec, draw_peers
from ml.specs.selection import Authors, Offer, Offers

Graph = Mapping[bytes, frozenset[bytes]]  # the neighbours of each author


@lru_cache(maxsize=4)
def draw_graph(beacon: bytes, authors: tuple[bytes, ...], num_peers: int) -> Graph:
    """Draws the undirected graph that has an edge wherever one author has drawn the other."""
    drawn = {author: draw_peers(beacon, author, authors, num_peers) for author in authors}
    neighbours: dict[bytes, set[bytes]] = {author: set(peers) for author, peers in drawn.items()}
    for author, peers in drawn.items():
        for peer in peers:
            neighbours[peer].add(author)
    return {author: frozenset(found) for author, found in neighbours.items()}


def compute_mixing_weights(graph: Graph, me: bytes, gone: Authors = ()) -> dict[bytes, float]:
    """Computes the row of W that belongs to `me`, itself included, in author order, without those in `gone`."""
    reached = sorted(peer for peer in graph[me] if peer not in gone)
    weights = {peer: 1 / (1 + max(len(graph[me]), len(graph[peer]))) for peer in reached}
    weights[me] = 1 - math.fsum(weights.values())
    return dict(sorted(weights.items()))


@dataclass(frozen=True, kw_only=True)
class DFedAvgMHyperparameters(PeerHyperparameters):
    """Settings of DFedAvgM. `momentum` is theta. W does not depend on a client's number of samples, so it is not
    sent."""

    momentum: float = number(0.9, "[0, 1)")
    weights: str = choice("uniform")


@dataclass(frozen=True)
class DFedAvgMSpec(PeerSpec):
    """DFedAvgM's spec, with `g` and `h` on demand, both wanted of all neighbours."""

    name: ClassVar[str] = "dfedavgm"
    settings: ClassVar[type[Hyperparameters]] = DFedAvgMHyperparameters

    hyperparameters: DFedAvgMHyperparameters

    def draw(
        self, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None = None, gone: Authors = ()
    ) -> tuple[Offer, ...]:
        """Returns the offers of the neighbours of `me`, in author order."""
        graph = self.get_graph(beacon, offers)
        return tuple(offer for offer in offers if offer.author in graph.get(me, ()) and offer.author not in gone)

    def get_graph(self, beacon: bytes, offers: Offers) -> Graph:
        return draw_graph(beacon, tuple(offer.author for offer in offers), self.hyperparameters.num_peers)

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """Returns each author's `peers`, and W as `weights`, its rows and columns in author order."""
        graph = self.get_graph(beacon, offers)
        rows = [compute_mixing_weights(graph, offer.author) for offer in offers]
        weights = [[row.get(offer.author, 0.0) for offer in offers] for row in rows]
        return {**(super().explain(height, beacon, offers, aggregate) or {}), "weights": weights}
