"""The clients' side of peer-to-peer exchange: sending a model in two parts, and mixing what was pulled into one's own.

Mixing is personal, nobody recomputes it, but it uses the arithmetic of `ml.aggregation`: float64, element by element,
in the order of the authors' ids, so that a simulation and a node come to the same bytes.
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
    """`g` and `h` are there for whoever wants them."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        return self.get_weight(state), {kind: self.get_part(state, kind) for kind in self.spec.part_schemas}

    def get_weight(self, state: State) -> int:
        """n_i, or less of it where it is not to be known."""
        return self.spec.hyperparameters.choose_weight(len(state.data.train), self.spec.task.max_weight)

    def get_part(self, state: State, kind: str) -> dict[str, Array]:
        """The client's own `g` or `h`, as it stands."""
        parameters = dump_parameters(state.model)
        return {name: parameters[name] for name in self.spec.part_schemas[kind].arrays}

    def mix(self, state: State, round_: Round, kind: str, peers: Sequence[Offer], blobs: Blobs) -> dict[str, Array]:
        """The mean of one's own part and that of `peers`, weighted by what each has signed."""
        own = Contributed(round_.me, self.get_weight(state), self.get_part(state, kind))
        pulled = (Contributed(peer.author, peer.weight, blobs[peer.digests[kind]]) for peer in peers)
        return weighted_mean([own, *pulled], None)

    def load_parts(self, state: State, parts: Iterable[Arrays]) -> None:
        """Put these parts into the model; what they do not name stays as it is."""
        parameters = dump_parameters(state.model)
        for part in parts:
            parameters |= part
        load_parameters(state.model, parameters)


class AveragesParts(SharesParts[AnyPeerSpec]):
    """Every part that is sent becomes the mean over the client and Q, weighted by what each has signed."""

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        peers = self.spec.draw(round_.beacon, round_.me, round_.offers, aggregate, round_.gone)
        if peers:
            self.load_parts(state, [self.mix(state, round_, kind, peers, blobs) for kind in self.spec.part_schemas])
        return {"peers": float(len(peers))}
