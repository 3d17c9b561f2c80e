"""The selection of other members' blobs: which of them a method takes, of whom, and for how long they are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml.payload import Arrays


@dataclass(frozen=True, slots=True)
class Offer:
    """The commitments of one author's contribution: the digest of each kind's blob."""

    author: bytes
    weight: int
    digests: Mapping[str, bytes]


Offers = Sequence[Offer]
Authors = Collection[bytes]


class SelectionSpec:
    """The part of a method's spec that selects. None is taken, unless a method says so."""

    @property
    def shares_samples(self) -> bool:
        """Whether a learned transformation of a member's samples leaves its node."""
        return False

    def get_streamed(self, height: int) -> Mapping[str, str]:
        """The kinds of this height that are too large to hold in memory, each with the kind that has the digests of its
        chunks."""
        return {}

    def get_shared_height(self, height: int) -> int | None:
        """The earlier height whose blobs the local phase for `height` reads; None where it reads none."""
        return None

    def needed_until(self, height: int) -> int | None:
        """The last height whose local phase reads the blobs of `height`, itself where none does; None: without end."""
        return height

    @property
    def keeps_shared(self) -> bool:
        """Whether what later heights read stays for ever, also once the run is over."""
        return False

    def get_lent(self, height: int) -> Collection[str]:
        """The kinds of this height that no member keeps: they go as soon as no local phase reads them, small or not."""
        return ()

    def list_stale(self, aggregate: Arrays | None) -> Sequence[tuple[bytes, int]]:
        """Members that are not in the block, and whose offers of so many rounds before may be taken in its round. Their
        offers come after the block's own, wherever offers are asked for."""
        return ()

    def wanted_in_training(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, gone: Authors = ()
    ) -> Sequence[bytes]:
        """The digests of the blobs that the local phase of `me` for `height` reads.

        `offers` are those of the block at `get_shared_height(height)`; `beacon` is that of `height`; the
        authors in `gone` have been found to have none of what they offer.
        """
        return ()

    def wanted(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Sequence[bytes]:
        """The digests of the on-demand blobs that `me` needs to apply this round. None, unless a method says so.

        `offers` are the block's in author order; `beacon` is that of its height; the authors in `gone` have
        been found to have none of what they offer.
        """
        return ()

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """The explanation of a round, as JSON: who took what from whom and why, from what everyone knows; None where
        there is nothing of the kind to say. `shared` are the offers of the block at `get_shared_height(height)`."""
        return None
