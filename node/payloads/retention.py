"""Retention: lets go of a node's blobs when their time is over: of old heights the large ones, those pulled from others
on demand, and streamed ones.

Small blobs are kept for ever (DESIGN §1), so that a chain can be audited from its beginning. No audit needs payloads on
demand, whatever their size; they stay as long as a peer may still ask for them. No audit needs streamed payloads
either: they are carried unchanged, and may reveal more of the samples than others should see for ever. Blobs that later
rounds read stay after the last of those rounds as long as others after their own; sets stay until that round is over.
All of them go when their run is over, except those that the terms of a run keep for ever. Blobs that members lend for
an evaluation are deleted when it ends, however small (`node.payloads.lent_blobs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from chain.block import Block, Contribution, Digest, Id
from chain.calendar import Place
from chain.changes.change import read_change
from chain.changes.runs import StartRun
from chain.errors import StoreCorrupted
from chain.store.signed_slots import get_block_digests
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError
from ml.payload import decode_arrays, kind_code
from node.payloads.evaluated_model import EvaluatedModel
from node.payloads.lent_blobs import LentBlobs
from node.payloads.on_demand import get_kinds
from node.runs.specs import RunRound, RunSpecs

LARGE_BYTES = 1 << 20
LEFT_OUT = "left out"  # the meta key for blobs, by height, of contributions that are in no block
IF_LARGE = "left out if large"  # such blobs that are only deleted if their real size is large, whatever was declared


class Retention:
    """Deletes the blobs of a height once `keep_heights` newer ones are there, and no later round reads them. The small
    blobs of `me`, this node, stay in any case.

    Runs on the store's thread. Blobs that a newer height names too stay. So do the models that the run in force, the
    run before it and the first run began from, and the best round's model of a run that evaluates it at its end.
    """

    def __init__(self, store: SqliteStore, runs: RunSpecs, me: Id) -> None:
        self._store = store
        self._runs = runs
        self._me = me
        head = store.head_height
        # One more than is kept: its blobs may be half deleted, if this node stopped meanwhile.
        newest = store.blocks(max(1, head - self._get_keep_heights(head)), head)
        self._newest = deque(stored.block for stored in newest)
        # Blocks kept by the terms of their runs, or whose blobs later rounds read, now or when this node stopped.
        self._old = list(read_sharing_blocks(store, runs, head - len(self._newest)))
        self._old += _read_drawn_blocks(store, runs, head - len(self._newest))
        self._evaluated = EvaluatedModel(store, runs)
        self._lent = LentBlobs(store, runs)
        self._models = self._find_models()
        self._left_out: dict[str, dict[str, list[str]]] = {
            key: store.get_meta(key) or {} for key in (LEFT_OUT, IF_LARGE)
        }
        self._ownerless = self._find_ownerless()

    def __repr__(self) -> str:
        left_out = sum(len(digests) for noted in self._left_out.values() for digests in noted.values())
        return (
            f"Retention(newest={len(self._newest)}, old={len(self._old)}, left_out={left_out}, "
            f"ownerless={len(self._ownerless)})"
        )

    def on_block(
        self,
        block: Block,
        seen: Iterable[Contribution] = (),
        pulled: Iterable[Digest] = (),
        late: Iterable[Digest] = (),
    ) -> int:
        """Deletes the blobs whose time is over after `block` was appended. Returns how many.

        `seen` are the contributions received for its height. `pulled` are blobs new here that were pulled for the vote,
        and `late` those pulled for blocks that were already final.
        """
        seen, pulled = [*seen], {*pulled}
        self._evaluated.on_block(block)
        self._newest.append(block)
        self._keep_account(block, seen, pulled, self._choose_unnamed(late))
        pruned, kept = self._lent.on_block(block, seen, pulled), list[Block]()
        while len(self._newest) > self._get_keep_heights(block.height):
            self._old.append(self._newest.popleft())
            pruned += self._drop_left_out(self._old[-1])
        for old in self._old:
            round_ = self._runs.find(old.height)
            if round_ is not None and (self._is_needed(round_, block.height) or self._runs.is_kept(round_)):
                kept.append(old)
            else:
                pruned += self._prune(old, round_)
        self._old = kept
        return pruned + self._drop_models()

    def _is_needed(self, round_: RunRound, head: int) -> bool:
        """Says whether a later round reads the blobs of this round, also in a node that is behind: they stay as long
        after their last use as other blobs after their only one. Sets go at once."""
        shares = round_.number <= round_.spec.sharing_heights
        return self._runs.is_needed(round_, head, behind=0 if shares else self._get_keep_heights(head) - 1)

    def _get_keep_heights(self, head: int) -> int:
        return self._runs.calendar.get_span(head + 1).rules.keep_heights

    def _find_models(self) -> frozenset[Digest]:
        return self._runs.initial_models | self._evaluated.digests

    def _drop_models(self) -> int:
        """Deletes the models that no longer stay: that of the run before the last one, and an earlier best round's."""
        before, self._models = self._models, self._find_models()
        gone = {digest for digest in before - self._models if self._is_large(digest)}
        if not gone:
            return 0
        first = max(1, self._store.head_height + 1 - len(self._newest))
        return sum(self._store.delete_blob(digest) for digest in gone - self._store.referenced_blobs(first))

    def _is_large(self, digest: Digest) -> bool:
        return (self._store.blob_size(digest) or 0) > LARGE_BYTES

    def _find_ownerless(self) -> set[Digest]:
        """Returns the large blobs, whole or partial, that a node which stopped has left: they were pulled or made for
        the height under way, and its block may still name them, or for no block at all."""
        offered = self._store.referenced_blobs(self._store.head_height + 1)
        large = {*self._store.held_blobs(LARGE_BYTES + 1)}  # this looks at every file, so it is called once
        return ((large - self._get_kept()) | {*self._store.partial_blobs()}) - offered

    def _choose_unnamed(self, digests: Iterable[Digest]) -> set[Digest]:
        """Returns the large ones of these blobs that no block names whose blobs are kept."""
        return {digest for digest in digests if self._is_large(digest)} - self._get_kept()

    def _get_kept(self) -> set[Digest]:
        kept = self._models | self._get_proposed_models()
        return set(kept).union(*map(get_block_digests, (*self._old, *self._newest)))

    def _get_proposed_models(self) -> frozenset[Digest]:
        """Returns the models that proposed runs would begin from."""
        kinds = (read_change(stored.change).kind for stored in self._store.get_changes())
        return frozenset(kind.initial for kind in kinds if isinstance(kind, StartRun) and kind.initial is not None)

    def _prune(self, block: Block, round_: RunRound | None) -> int:
        taken = set[Digest]() if round_ is None else self._get_taken(block, round_)
        doomed = {digest for digest in taken if round_ and not self._is_agreed(digest, round_)}
        sizes = [ref.size for contribution in block.contributions for ref in contribution.payloads]
        if sum(sizes) > LARGE_BYTES:
            doomed |= {digest for digest in get_block_digests(block) if self._is_large(digest)}
            self._drop_partials(block.contributions)
        for digest in self._get_streamed(block.height, block.contributions):
            self._store.drop_partial(digest)
            if self._store.has_blob(digest):
                doomed.add(digest)
        if not doomed:
            return 0
        kept = self._store.referenced_blobs(block.height + 1) | self._find_models()
        kept |= self._get_proposed_models()
        for digest in taken - kept:
            self._store.drop_partial(digest)  # of a pull that was cancelled
        return sum(self._store.delete_blob(digest) for digest in doomed - kept)

    def _get_taken(self, block: Block, round_: RunRound) -> set[Digest]:
        """Returns the payloads on demand of other authors in a block that neither this node nor the vote needs."""
        codes = {kind_code(kind) for kind in get_kinds(round_)}
        if not codes:
            return set()
        needed, taken = {block.header.aggregate}, set[Digest]()
        for contribution in block.contributions:
            for ref in contribution.payloads:
                is_taken = contribution.author != self._me and ref.kind in codes
                (taken if is_taken else needed).add(ref.digest)
        return taken - needed

    def _get_streamed(self, height: int, contributions: Iterable[Contribution]) -> set[Digest]:
        """Returns the streamed payloads of contributions. It compares codes: a refused contribution may have unknown
        kinds."""
        round_ = self._runs.find(height)
        codes = set[int]() if round_ is None else {kind_code(kind) for kind in round_.spec.get_streamed(round_.number)}
        return {ref.digest for one in contributions for ref in one.payloads if ref.kind in codes}

    def _keep_account(
        self, block: Block, seen: Collection[Contribution], pulled: set[Digest], unnamed: set[Digest]
    ) -> None:
        """Records the blobs of contributions that are not in the block, this node's own among them. Nobody ever reads
        them: with such blobs a member could fill the disks of all others, and one that is always late its own."""
        own = self._store.get_contribution(block.height)
        offered = [*seen, *([] if own is None else [own])]
        named = get_block_digests(block)
        left_out = (pulled | self._get_streamed(block.height, offered)) - named
        self._note(LEFT_OUT, block.height, left_out)
        self._note(IF_LARGE, block.height, (_get_large(offered) | self._ownerless | unnamed) - named - left_out)
        self._ownerless = set()

    def _note(self, key: str, height: int, digests: set[Digest]) -> None:
        if digests:
            self._left_out[key][str(height)] = sorted(digest.hex() for digest in digests)
            self._store.put_meta(key, self._left_out[key])

    def _drop_left_out(self, block: Block) -> int:
        pruned = 0
        for key, noted in self._left_out.items():
            digests = {bytes.fromhex(digest) for digest in noted.pop(str(block.height), ())}
            if not digests:
                continue
            for digest in digests - self._store.referenced_blobs(block.height) - self._get_kept():
                self._store.drop_partial(digest)
                if key == LEFT_OUT or self._is_large(digest):
                    pruned += self._store.delete_blob(digest)
            self._store.put_meta(key, noted)
        return pruned

    def _drop_partials(self, contributions: Iterable[Contribution]) -> None:
        """Deletes the partial files of pulls that were cancelled."""
        for digest in _get_large(contributions):
            self._store.drop_partial(digest)

    def _is_agreed(self, digest: Digest, round_: RunRound) -> bool:
        """Says whether a small blob is one that members vote on, or the result of a vote. A member could offer the
        digest of an old blob as its own payload on demand; the audit of the old height still needs that blob."""
        schemas, size = round_.spec.schemas(round_.number), self._store.blob_size(digest)
        voted = {kind: schemas[kind] for kind in round_.spec.rules(round_.number)}
        num_members = self._runs.calendar.get_span(round_.height).num_members
        entries = num_members * (3 if round_.spec.carried else 1)  # carried rows or moments are as many again
        most = entries * sum(schema.max_bytes for schema in voted.values())  # of an aggregate
        if size is None or size > min(most, LARGE_BYTES):
            return False
        try:
            names = decode_arrays(self._store.get_blob(digest), size).keys()
        except (PayloadError, StoreCorrupted):
            return False
        return any(
            names == schema.arrays.keys() or any(name.startswith(f"{kind}/") for name in names)
            for kind, schema in voted.items()
        )


def _get_large(contributions: Iterable[Contribution]) -> set[Digest]:
    """Returns the digests of the payloads that are large by what their authors declare."""
    return {ref.digest for one in contributions for ref in one.payloads if ref.size > LARGE_BYTES}


def read_sharing_blocks(store: SqliteStore, runs: RunSpecs, head: int) -> Iterator[Block]:
    """Yields the blocks up to `head` whose blobs later rounds of their run read: of the run in force, of the run before
    it, and of all runs whose terms keep them. Runs on the store's thread."""
    newest = runs.calendar.newest.run.number
    for number in range(1, newest + 1):
        first = runs.find_round(number, 1)
        if first is None or (number < newest - 1 and not runs.is_kept(first)):
            continue
        for sharing in range(1, first.spec.sharing_heights + 1):
            height = runs.calendar.get_height(Place(number, sharing))
            stored = store.get_block(height) if height is not None and height <= head else None
            if stored is not None:
                yield stored.block


def _read_drawn_blocks(store: SqliteStore, runs: RunSpecs, head: int) -> Iterator[Block]:
    """Yields the blocks up to `head`, newest first, that may hold the last contribution of a member that can still be
    drawn, and as many below them, whose blobs may be half deleted. Runs on the store's thread."""
    spec = runs.find_newest(head)
    if spec is None:
        return
    first = spec.sharing_heights + 1
    last = spec.needed_until(first)
    num_needed = 0 if last is None else last - first
    for height in range(head, max(0, head - 2 * num_needed), -1):
        stored = store.get_block(height)
        if stored is not None:
            yield stored.block
