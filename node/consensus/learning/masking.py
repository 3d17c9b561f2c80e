"""Masking: masks a member's payloads and opens its seeds, off the event loop, with what the chain holds for that.

`node.consensus.learning.masks` has the arithmetic. The store is read and keys are written on the disk's thread; vectors
are masked on another.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from chain.block import Block, Contribution
from chain.errors import StoreCorrupted
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from ml.payload import KINDS, Arrays, decode_arrays, encode_arrays
from ml.specs.masked.aggregate import MASKED, count_spoiled
from ml.specs.masked.spec import is_empty_input
from node.consensus.learning.masks import MASKS, Masker, MaskKeys, get_masked_spec, is_masked, is_opening
from node.offload import Offload, run_sized
from node.payloads.aggregates import Aggregates
from node.runs.specs import RunRound, RunSpecs
from node.training.trainer import Trained

log = logging.getLogger(__name__)

MAX_SPOILED = 3  # after so many sums in a row no inputs are sent until a change


class Masking:
    """Masks inputs and opens seeds for the member `me`."""

    def __init__(
        self,
        masker: Masker,
        runs: RunSpecs,
        aggregates: Aggregates,
        *,
        disk: Offload,
        bulk: Offload,
    ) -> None:
        self.reason: str | None = None  # why this member has no part in the sum of the height in hand
        self.pause: str | None = None  # why no member has
        self.has_inputs = False  # whether members send inputs at the height in hand
        self.masker = masker
        self._runs = runs
        self._aggregates = aggregates
        self._disk = disk
        self._bulk = bulk

    async def on_tip(self, tip: Tip) -> None:
        """Prepares for the height after `tip`: whether it has inputs, and whether this member has a part in the sum."""
        height = tip.height + 1
        round_ = self._runs.find(height)
        before = self.reason, self.pause
        self.reason = self.pause = None
        self.has_inputs = is_masked(round_) and not is_opening(round_)
        if round_ is not None and is_masked(round_) and tip.state.is_active(self.masker.me):
            parent = await self._find_parent(tip) if self.has_inputs else None
            self.reason = await self._disk.run(self.masker.begin, round_, parent)
            self.pause = _explain_pause(parent)
        elif self.masker.num_keys:
            run = tip.state.run  # a change may add rounds once its rounds are over
            is_over = run.is_masked and not run.is_ended and tip.state.is_active(self.masker.me)
            await self._disk.run(self.masker.rest if is_over else self.masker.forget)
        why = self.pause or self.reason
        if why is not None and (self.reason, self.pause) != before:
            log.warning("height %d: this node has no part in the sum: %s", height, why)

    async def _find_parent(self, tip: Tip) -> Arrays | None:
        data = self._aggregates.peek(tip.block)
        if data is None:  # as after a start
            data = await self._aggregates.find(tip.block)
        return None if data is None else decode_arrays(data, len(data))

    def is_opening(self, height: int) -> bool:
        """Says whether members open seeds and send keys at a height."""
        return is_opening(self._runs.find(height))

    async def owes_openings(self, height: int) -> bool:
        """Says whether others wait for the seeds that this member has to open."""
        round_ = self._runs.find(height)
        return round_ is not None and is_masked(round_) and await self._disk.run(self.masker.owes_openings, round_)

    async def mask(self, tip: Tip, round_: RunRound, trained: Trained) -> Trained:
        """Returns what has been trained, masked. Raises MaskingRefused."""
        parent = await self._aggregates.get_arrays(tip.block)
        spec = get_masked_spec(round_)
        data = trained.payloads[spec.coding.kind]
        masked = await run_sized(self._bulk, len(data), self.masker.mask, tip, round_, parent, data, trained.weight)
        return replace(trained, payloads={MASKED: masked, **{kind: trained.payloads[kind] for kind in spec.shown}})

    @staticmethod
    def is_empty(contribution: Contribution) -> bool:
        """Says whether a contribution at a height of inputs has no input."""
        sizes = {ref.kind: ref.size for ref in contribution.payloads}
        return is_empty_input({MASKED: sizes.get(KINDS[MASKED], 0)})

    def has_to_send(self, height: int) -> bool:
        """Says whether there is something to send at a height without training for it."""
        return self.is_opening(height) or self.reason is not None

    async def open(self, tip: Tip, round_: RunRound) -> Trained:
        """Returns a new key and the seeds that this member opens; at a height of inputs, an empty input. Raises
        NodeError."""
        if not is_opening(round_):
            empty = get_masked_spec(round_).empty_input
            return Trained(1, {kind: encode_arrays(arrays) for kind, arrays in empty.items()}, {})
        parent = await self._aggregates.get_arrays(tip.block)
        data = await self._disk.run(self.masker.open, round_, parent)
        return Trained(1, {MASKED: data}, {})

    def __repr__(self) -> str:
        return f"<Masking: {self.masker!r}>"


def make_masking(
    me: bytes,
    chain_id: bytes,
    store: SqliteStore,
    runs: RunSpecs,
    aggregates: Aggregates,
    *,
    disk: Offload,
    bulk: Offload,
) -> Masking:
    """Makes the masking of the member `me`, whose keys lie beside its store. Raises NodeError."""

    def get_block(height: int) -> Block:
        stored = store.get_block(height)
        if stored is None:
            raise StoreCorrupted(f"{store.path}: block {height}: missing from the store")
        return stored.block

    masker = Masker(MaskKeys(store.path / MASKS), me, chain_id, get_block, runs.find)
    return Masking(masker, runs, aggregates, disk=disk, bulk=bulk)


def _explain_pause(parent: Arrays | None) -> str | None:
    """Says why no member sends an input: several sums in a row are out of range, and nobody knows who lies. A change
    has to decide what follows. A member that has not computed the aggregate itself sends an input, and waits with the
    others."""
    spoiled = count_spoiled(parent)
    if spoiled < MAX_SPOILED:
        return None
    return f"{spoiled} sums in a row were out of range, as somebody has lied; the run waits for a change"
