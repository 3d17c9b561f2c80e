"""The common part of peer-to-peer methods: nobody aggregates for all, each client draws a few others and pulls from
them.

A contribution commits to the sender's feature extractor `g` and classifier `h` by digest; members that want them pull
them. Nobody can choose whom a client draws: the block's other authors are ranked by

    SHA-256("fednode.peers" | beacon | me | other)

and the first N_com are Q. The beacon follows from the block before, so anyone can repeat the draw. A peer whose blob
cannot be fetched is left out of Q, and nobody is drawn in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from ml.errors import SpecError
from ml.payload import Arrays, ArraySchema
from ml.specs.base import Judging, MethodSpec
from ml.specs.hyperparameters import Hyperparameters, count
from ml.specs.selection import Authors, Offer, Offers
from ml.specs.sharing import SentHyperparameters
from ml.tasks import TASKS

DRAW = b"fednode.peers"


def draw_peers(beacon: bytes, me: bytes, others: Iterable[bytes], num_peers: int) -> tuple[bytes, ...]:
    """Draws Q: `num_peers` of `others`, or all if they are fewer, in the order of their rank; `me` is never among
    them."""
    ranked = sorted(
        (hashlib.sha256(DRAW + beacon + me + other).digest(), other) for other in set(others) if other != me
    )
    return tuple(other for _, other in ranked[:num_peers])


@dataclass(frozen=True, kw_only=True)
class PeerHyperparameters(SentHyperparameters):
    """Settings of peer-to-peer methods. `num_peers` is N_com, how many others a client draws each round."""

    num_peers: int = count(5)


@dataclass(frozen=True)
class PeerSpec(MethodSpec):
    """A spec with the payloads `g` and `h` on demand: the arrays of the model before its classifier, and those of the
    classifier. A method may vote on small payloads besides. Without any, a block's aggregate is the zero digest, and a
    block has its contributions alone."""

    settings: ClassVar[type[Hyperparameters]] = PeerHyperparameters
    needed_parts: ClassVar[tuple[str, ...]] = ()  # parts without which the method cannot work
    tasks: ClassVar[tuple[str, ...]] = TASKS

    hyperparameters: PeerHyperparameters

    def __post_init__(self) -> None:
        h = self.task.classifier_names
        trained = {"h" if name in h else "g" for name in self.task.parameter_schema.arrays}
        for part in self.needed_parts:
            if part not in trained:
                where = "before the classifier" if part == "g" else "in the classifier"
                raise SpecError("model.frozen", f"{self.name} expects parameters {where} that train, got none")

    @cached_property
    def part_schemas(self) -> Mapping[str, ArraySchema]:
        """The schemas of `g`, which has the running statistics of batch norm unless they stay the client's own, and of
        `h`. A part without trained arrays is not sent."""
        h = {name: spec for name, spec in self.whole_schema.arrays.items() if name in self.task.classifier_names}
        g = {name: spec for name, spec in self.whole_schema.arrays.items() if name not in h}
        return {kind: ArraySchema(part) for kind, part in (("g", g), ("h", h)) if part}

    @property
    def whole_schema(self) -> ArraySchema:
        """The arrays that may leave a client at all: g and h."""
        return self.task.model_schema if self.hyperparameters.bn_buffers == "average" else self.task.parameter_schema

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self.part_schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {}

    @property
    def max_weight_is_one(self) -> bool:
        return self.hyperparameters.weights == "uniform"

    def describe_judging(self) -> Judging:
        return replace(super().describe_judging(), draw=self.hyperparameters.num_peers)

    def get_num_peers(self, me: bytes, offers: Offers, aggregate: Arrays | None) -> int:
        """Returns N_com of one author in this round."""
        return self.hyperparameters.num_peers

    def draw(
        self, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None = None, gone: Authors = ()
    ) -> tuple[Offer, ...]:
        """Returns the offers of the peers of `me`, without those in `gone`, in the order of the draw. A client that is
        no author of the block itself draws nobody."""
        by_author = {offer.author: offer for offer in offers}
        if me not in by_author:
            return ()
        drawn = draw_peers(beacon, me, by_author, self.get_num_peers(me, offers, aggregate))
        return tuple(by_author[peer] for peer in drawn if peer not in gone)

    def wanted(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Sequence[bytes]:
        """Returns the digests of every part that Q offers, unless a method says otherwise."""
        drawn = self.draw(beacon, me, offers, aggregate, gone)
        return tuple(offer.digests[kind] for offer in drawn for kind in sorted(self.part_schemas))

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """Returns `peers` for each author in author order, as places in the block."""
        place = {offer.author: i for i, offer in enumerate(offers)}
        drawn = [self.draw(beacon, offer.author, offers, aggregate) for offer in offers]
        return {"nodes": [{"peers": [place[peer.author] for peer in peers]} for peers in drawn]}
