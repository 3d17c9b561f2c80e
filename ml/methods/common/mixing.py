"""The clients' side of peer-to-peer exchange: sending a model in two parts, and averaging pulled parts with the
client's own.

Each client mixes for itself and nobody recomputes it. It still uses the arithmetic of `ml.aggregation`: float64,
element by element, in the order of the authors' ids, so that a simulation and a node compute the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ml.aggregation import Contributed, weighted_mean
from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import Classifies
from ml.models.base import dump_parameters, load_parameters
from ml.payload import Array, Arrays
from ml.specs import Offer
from ml.specs.peers import PeerSpec

AnyPeerSpec = TypeVar("AnyPeerSpec", bound=PeerSpec)


class SharesParts(Classifies[AnyPeerSpec]):
    """Sends `g` and `h` as blobs that peers pull on demand."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        return self.get_weight(state), {kind: self.get_part(state, kind) for kind in self.spec.part_schemas}

    def get_weight(self, state: State) -> int:
        """Returns the weight to sign: n_i, or less of it if the run keeps that private."""
        return self.spec.hyperparameters.choose_weight(len(state.data.train), self.spec.task.max_weight)

    def get_part(self, state: State, kind: str) -> dict[str, Array]:
        """Returns the client's own `g` or `h`, as it is."""
        parameters = dump_parameters(state.model)
        return {name: parameters[name] for name in self.spec.part_schemas[kind].arrays}

    def mix(self, state: State, round_: Round, kind: str, peers: Sequence[Offer], blobs: Blobs) -> dict[str, Array]:
        """Returns the mean of the client's own part and that of `peers`, weighted by the signed weights."""
        own = Contributed(round_.me, self.get_weight(state), self.get_part(state, kind))
        pulled = (Contributed(peer.author, peer.weight, blobs[peer.digests[kind]]) for peer in peers)
        return weighted_mean([own, *pulled], None)

    def load_parts(self, state: State, parts: Iterable[Arrays]) -> None:
        """Loads these parts into the model; parameters that they do not name stay as they are."""
        parameters = dump_parameters(state.model)
        for part in parts:
            parameters |= part
        load_parameters(state.model, parameters)


class AveragesParts(SharesParts[AnyPeerSpec]):
    """Replaces every part that is sent by the mean over the client and Q, weighted by the signed weights."""

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        peers = self.spec.draw(round_.beacon, round_.me, round_.offers, aggregate, round_.gone)
        if peers:
            self.load_parts(state, [self.mix(state, round_, kind, peers, blobs) for kind in self.spec.part_schemas])
        return {"peers": float(len(peers))}
