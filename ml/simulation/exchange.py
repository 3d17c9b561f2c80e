"""The payloads that clients send each other in a round: voted ones to everyone, others on demand.

The contribution has only the digest of a payload on demand (`Offer`). Once the round has its aggregate, each client
pulls the payloads its spec asks for, as a node does. It does not pull a payload that is equal, byte for byte, to its
own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ml.methods.base import Trained
from ml.payload import Array, Arrays, compute_encoded_bytes, iter_encoded
from ml.specs import MethodSpec, Offer


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a payload: numbers in floating-point arrays, and bytes of its encoding."""

    params: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.params + other.params, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Size:
        return Size(self.params * times, self.bytes * times)

    @classmethod
    def of(cls, arrays: Arrays) -> Size:
        params = sum(array.size for array in arrays.values() if array.dtype.kind == "f")
        layout = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
        return cls(params, compute_encoded_bytes(layout))


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One round's contributions, by all or some of `num_clients`. `voted` is the size of all their voted payloads.
    `offers`, in author order, and `blobs` by digest are empty where a method has nothing on demand and later rounds
    read nothing."""

    spec: MethodSpec
    height: int
    num_clients: int
    voted: Size
    offers: tuple[Offer, ...]
    blobs: Mapping[bytes, Arrays]

    @classmethod
    def make(cls, spec: MethodSpec, height: int, ids: Sequence[bytes], trained: Sequence[Trained | None]) -> Exchange:
        """Makes the exchange of `trained[i]` under `ids[i]`, checked as a validator would; a client with None sends
        nothing, and only receives. Raises PayloadError.

        Hashes arrays only where they can be pulled or read later, and then once.
        """
        voted_kinds = spec.rules(height).keys()
        is_read_later = spec.needed_until(height) != height
        has_offers = is_read_later or bool(spec.schemas(height).keys() - voted_kinds)
        voted, offers, blobs = Size(), [], {}
        for author, made in sorted(zip(ids, trained, strict=True), key=lambda pair: pair[0]):
            if made is None:
                continue
            validate_contribution(spec, height, made)
            digests: dict[str, bytes] = {}
            for kind, arrays in made.payloads.items():
                if kind in voted_kinds:
                    voted += Size.of(arrays)
                if has_offers:
                    digests[kind] = _compute_digest(arrays)
                if is_read_later or kind not in voted_kinds:
                    blobs[digests[kind]] = {name: _protect(array) for name, array in arrays.items()}
            if has_offers:
                offers.append(Offer(author, made.weight, digests))
        return cls(spec, height, len(trained), voted, tuple(offers), blobs)

    def to_tree(self) -> dict[str, Any]:
        """Returns all but the spec, for `from_tree`."""
        offers = [{"author": offer.author, "weight": offer.weight, "digests": offer.digests} for offer in self.offers]
        blobs = [{"digest": digest, "arrays": arrays} for digest, arrays in self.blobs.items()]
        whole = {"height": self.height, "num_clients": self.num_clients, "voted": asdict(self.voted)}
        return {**whole, "offers": offers, "blobs": blobs}

    @classmethod
    def from_tree(cls, spec: MethodSpec, tree: Mapping[str, Any]) -> Self:
        offers = tuple(Offer(one["author"], one["weight"], one["digests"]) for one in tree["offers"])
        blobs = {
            one["digest"]: {name: _protect(array) for name, array in one["arrays"].items()} for one in tree["blobs"]
        }
        return cls(spec, tree["height"], tree["num_clients"], Size(**tree["voted"]), offers, blobs)

    def keep_blobs_of(self, authors: Collection[bytes]) -> Exchange:
        """Returns the same offers with the blobs of these authors alone."""
        kept = {digest for offer in self.offers if offer.author in authors for digest in offer.digests.values()}
        return replace(self, blobs={digest: arrays for digest, arrays in self.blobs.items() if digest in kept})

    def with_stale(self, earlier: Mapping[int, Exchange], aggregate: Arrays | None) -> Exchange:
        """Returns this round with older contributions that a method still uses; `earlier` has the rounds before by
        height. `aggregate` is this round's."""
        stale = self.spec.list_stale(aggregate)
        if not stale:
            return self
        offers, blobs = list(self.offers), dict(self.blobs)
        for author, age in stale:
            before = earlier[self.height - age]
            offer = next(offer for offer in before.offers if offer.author == author)
            offers.append(offer)
            blobs |= {digest: before.blobs[digest] for digest in offer.digests.values()}
        return replace(self, offers=tuple(offers), blobs=blobs)

    def take(
        self, beacon: bytes, me: bytes, aggregate: Arrays | None, gone: Collection[bytes] = frozenset()
    ) -> dict[bytes, Arrays]:
        """Returns the blobs of this round that `me` wants, without those of the authors in `gone`."""
        wanted = self.spec.wanted(self.height, beacon, me, self.offers, aggregate, gone)
        return {digest: self.blobs[digest] for digest in wanted}

    def take_for_training(self, height: int, beacon: bytes, me: bytes) -> dict[bytes, Arrays]:
        """Returns the blobs of this round that the local phase of `me` for a later height reads."""
        wanted = self.spec.wanted_in_training(height, beacon, me, self.offers)
        return {digest: self.blobs[digest] for digest in wanted}

    def measure(self, taken: Mapping[bytes, Mapping[bytes, Arrays]]) -> tuple[Size, Size]:
        """Returns the sizes (sent, received), summed over clients; `taken` has the blobs that each one pulled. A voted
        payload is sent once and received by all others, also one that is read later; one on demand is sent as often as
        it is pulled."""
        own = {offer.author: set(offer.digests.values()) for offer in self.offers}
        pulled = Size()
        for me, blobs in taken.items():
            for digest, arrays in blobs.items():
                if digest not in own.get(me, ()):
                    pulled += Size.of(arrays)
        return self.voted + pulled, self.voted * (self.num_clients - 1) + pulled


def validate_contribution(spec: MethodSpec, height: int, made: Trained) -> None:
    """Raises PayloadError unless `made` may be contributed at this height."""
    spec.validate_weight(made.weight)
    spec.validate_kinds(made.payloads, height)
    for kind, arrays in made.payloads.items():
        spec.validate_payload(kind, arrays, height)


def _compute_digest(arrays: Arrays) -> bytes:
    digest = hashlib.sha256()
    for piece in iter_encoded(arrays):
        digest.update(piece)
    return digest.digest()


def _protect(array: Array) -> Array:
    """Returns a read-only view, since everyone who pulls a blob gets the same arrays."""
    view = array.view()
    view.flags.writeable = False
    return view
