"""DFedAvgM: local steps with momentum, then models are mixed over a graph (ALGORITHMS §9).

Sun, Li, Wang, *Decentralized Federated Averaging*, 2021 (IEEE TPAMI 2022). Client i makes K heavy-ball steps from x_i,
and then combines models by its row of a symmetric, doubly stochastic W (see the spec for the graph and for W):

    y^{k+1} = y^k - eta * grad(y^k) + theta * (y^k - y^{k-1})        y^{-1} = y^0 = x_i
    x_i    <- sum over l of W_il * y_l^K

The step is that of SGD with momentum theta whose buffer starts at zero, with which all methods here train.

Where we deviate: K and theta are the `local_iterations` (or epochs) and `momentum` of all methods, with theta 0.9 by
default, since the paper leaves it open. UA-PDFL used twice the local work and half the rounds of the others for this
method; a comparison has to set that itself. The paper's quantised messages are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ml.methods.base import Blobs, Round, State
from ml.methods.common.mixing import SharesParts
from ml.payload import Array, Arrays
from ml.specs.methods.dfedavgm import DFedAvgMSpec, compute_mixing_weights


class DFedAvgM(SharesParts[DFedAvgMSpec]):
    """Trains by cross-entropy; both parts of the model are mixed."""

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        neighbours = self.spec.draw(round_.beacon, round_.me, round_.offers, aggregate, round_.gone)
        if not neighbours:
            return {"peers": 0.0}
        graph = self.spec.get_graph(round_.beacon, round_.offers)
        weights = compute_mixing_weights(graph, round_.me, round_.gone)
        parts = []
        for kind in self.spec.part_schemas:
            arrays = {peer.author: blobs[peer.digests[kind]] for peer in neighbours}
            arrays[round_.me] = self.get_part(state, kind)
            parts.append(compute_combination((weight, arrays[author]) for author, weight in weights.items()))
        self.load_parts(state, parts)
        return {"peers": float(len(neighbours))}


def compute_combination(terms: Iterable[tuple[float, Arrays]]) -> dict[str, Array]:
    """Computes the sum of weight * array under each name: element by element, in float64, in the order of the terms,
    rounded to float32 once at the end. So it is the same bytes wherever it is computed."""
    sums: dict[str, Array] = {}
    for weight, arrays in terms:
        for name, array in arrays.items():
            term = array.astype(np.float64)
            term *= weight
            sums[name] = sums[name] + term if name in sums else term
    return {name: total.astype(np.float32) for name, total in sums.items()}
