"""The selection of other members' blobs: which of them a method pulls, from whom, and for how long they are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml.payload import Arrays


@dataclass(frozen=True, slots=True)
class Offer:
    """Holds the commitments of one author's contribution: the digest of each kind's blob, and the weight."""

    author: bytes
    weight: int
    digests: Mapping[str, bytes]


Offers = Sequence[Offer]
Authors = Collection[bytes]


class SelectionSpec:
    """The part of a method's spec that selects blobs. It selects none, unless a method says so."""

    @property
    def shares_samples(self) -> bool:
        """Says whether a learned transformation of a member's samples leaves its node."""
        return False

    def get_streamed(self, height: int) -> Mapping[str, str]:
        """Returns the kinds of this height that are too large to hold in memory, each with the kind that has the
        digests of its chunks."""
        return {}

    def get_shared_height(self, height: int) -> int | None:
        """Returns the earlier height whose blobs the local phase for `height` reads; None if it reads none."""
        return None

    def needed_until(self, height: int) -> int | None:
        """Returns the last height whose local phase reads the blobs of `height`: `height` itself if none does, None if
        there is no end."""
        return height

    @property
    def keeps_shared(self) -> bool:
        """Says whether blobs that later heights read are kept for ever, also after the run."""
        return False

    def get_lent(self, height: int) -> Collection[str]:
        """Returns the kinds of this height that no member keeps: they are deleted, small or not, as soon as no local
        phase reads them."""
        return ()

    def list_stale(self, aggregate: Arrays | None) -> Sequence[tuple[bytes, int]]:
        """Lists members that are not in the block, each with the age, in rounds, of its offers, which may be pulled in
        this block's round. In every list of offers theirs come after the block's own."""
        return ()

    def wanted_in_training(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, gone: Authors = ()
    ) -> Sequence[bytes]:
        """Returns the digests of the blobs that the local phase of `me` for `height` reads.

        `offers` are those of the block at `get_shared_height(height)`; `beacon` is that of `height`. The authors in
        `gone` were found to have none of what they offer.
        """
        return ()

    def wanted(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Sequence[bytes]:
        """Returns the digests of the on-demand blobs that `me` needs to apply this round. None, unless a method says
        so.

        `offers` are the block's in author order; `beacon` is that of its height. The authors in `gone` were found to
        have none of what they offer.
        """
        return ()

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """Explains a round, as JSON: who pulled what from whom and why, from what everyone knows; None if the method
        has nothing to explain. `shared` are the offers of the block at `get_shared_height(height)`."""
        return None
