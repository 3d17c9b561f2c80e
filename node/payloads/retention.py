"""Retention: lets go of a node's blobs when their time is over: of old heights the large ones, those pulled from others
on demand, and streamed ones.

Small blobs are kept for ever (DESIGN §1), so that a chain can be audited from its beginning. No audit needs payloads
on demand, whatever their size; they stay as long as a peer may still ask for them. No audit needs streamed payloads
either: they are carried unchanged, and may show more of the samples than others should see for ever. Blobs that
later rounds read stay until the last of those rounds is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from chain.block import Block, Contribution, Digest, Id
from chain.errors import StoreCorrupted
from chain.genesis import Genesis
from chain.store.signed_slots import get_block_digests
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError
from ml.payload import decode_arrays, kind_code
from ml.specs import MethodSpec
from node.payloads.on_demand import get_kinds

LARGE_BYTES = 1 << 20
LEFT_OUT = "left out"  # the meta value with what came, by height, for contributions that are in no block
IF_LARGE = "left out if large"  # the same of what is only let go if it is large: by its size, not by anybody's word


class Retention:
    """Lets blobs of a height go once `keep_heights` newer ones are there, and no later round reads them. `me` is whose
    small ones stay in any case.

    Runs on the store's thread. Block 0's initial model stays, and so does what a newer height names too.
    """

    def __init__(self, store: SqliteStore, genesis: Genesis, spec: MethodSpec, me: Id) -> None:
        self._store = store
        self._genesis = genesis
        self._spec = spec
        self._me = me
        head = store.head_height
        # One more than is kept: its blobs may be half gone, if this node went down while they went.
        newest = store.blocks(max(1, head - genesis.rules.keep_heights), head)
        self._newest = deque(stored.block for stored in newest)
        sharing = store.blocks(1, min(spec.sharing_heights, head - len(self._newest)))
        self._old = [stored.block for stored in sharing]  # read by later rounds, or were when this node went down
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
        """A block was appended, contributions for its height had been `seen`, blobs `pulled` for the vote that had not
        been here before, and others `late`, for blocks that were final. Returns how many blobs went."""
        seen = [*seen]
        self._newest.append(block)
        self._keep_account(block, seen, {*pulled}, self._choose_unnamed(late))
        pruned, kept = 0, list[Block]()
        while len(self._newest) > self._genesis.rules.keep_heights:
            self._old.append(self._newest.popleft())
            pruned += self._drop_left_out(self._old[-1])
        for old in self._old:
            needed_until = self._spec.needed_until(old.height)
            if needed_until is not None and block.height >= needed_until:
                pruned += self._prune(old)
            elif needed_until is not None:
                kept.append(old)
        self._old = kept
        return pruned

    def _find_ownerless(self) -> set[Digest]:
        """Large blobs, whole or in part, that a node which went down has left: pulled or made for the height in hand,
        so that they may still come to be in its block, or for no block at all."""
        offered = self._store.referenced_blobs(self._store.head_height + 1)
        large = {*self._store.held_blobs(LARGE_BYTES + 1)}  # a look at every file, so not one by one
        return ((large - self._get_kept()) | {*self._store.partial_blobs()}) - offered

    def _choose_unnamed(self, digests: Iterable[Digest]) -> set[Digest]:
        """The large ones among them that no block names whose blobs are kept."""
        return {digest for digest in digests if (self._store.blob_size(digest) or 0) > LARGE_BYTES} - self._get_kept()

    def _get_kept(self) -> set[Digest]:
        return {self._genesis.run.initial_model}.union(*map(get_block_digests, (*self._old, *self._newest)))

    def _prune(self, block: Block) -> int:
        taken = self._get_taken(block)
        doomed = {digest for digest in taken if not self._is_agreed(digest, block.height)}
        sizes = [ref.size for contribution in block.contributions for ref in contribution.payloads]
        if sum(sizes) > LARGE_BYTES:
            sized = {digest: self._store.blob_size(digest) or 0 for digest in get_block_digests(block)}
            doomed |= {digest for digest, size in sized.items() if size > LARGE_BYTES}
            self._drop_partials(block.contributions)
        for digest in self._get_streamed(block.height, block.contributions):
            self._store.drop_partial(digest)
            if self._store.has_blob(digest):
                doomed.add(digest)
        if not doomed:
            return 0
        kept = self._store.referenced_blobs(block.height + 1) | {self._genesis.run.initial_model}
        for digest in taken - kept:
            self._store.drop_partial(digest)  # of a pull that was called off
        return sum(self._store.delete_blob(digest) for digest in doomed - kept)

    def _get_taken(self, block: Block) -> set[Digest]:
        """What others have on demand in a block, and neither this node nor the vote needs."""
        codes = {kind_code(kind) for kind in get_kinds(self._spec, block.height)}
        if not codes:
            return set()
        needed, taken = {block.header.aggregate}, set[Digest]()
        for contribution in block.contributions:
            for ref in contribution.payloads:
                is_taken = contribution.author != self._me and ref.kind in codes
                (taken if is_taken else needed).add(ref.digest)
        return taken - needed

    def _get_streamed(self, height: int, contributions: Iterable[Contribution]) -> set[Digest]:
        """By code: a contribution that was refused may name kinds that nobody knows."""
        codes = {kind_code(kind) for kind in self._spec.get_streamed(height)}
        return {ref.digest for one in contributions for ref in one.payloads if ref.kind in codes}

    def _keep_account(
        self, block: Block, seen: Collection[Contribution], pulled: set[Digest], unnamed: set[Digest]
    ) -> None:
        """What came of contributions that a block is without, this node's own among them, nobody ever reads: a member
        could fill the disks of all others with it, and one that is always late its own."""
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
                if key == LEFT_OUT or (self._store.blob_size(digest) or 0) > LARGE_BYTES:
                    pruned += self._store.delete_blob(digest)
            self._store.put_meta(key, noted)
        return pruned

    def _drop_partials(self, contributions: Iterable[Contribution]) -> None:
        """Of pulls that were called off."""
        for digest in _get_large(contributions):
            self._store.drop_partial(digest)

    def _is_agreed(self, digest: Digest, height: int) -> bool:
        """Whether a small blob is one that members vote on, or what came of a vote: whoever offers an old one's digest
        as its own on demand must not take it from those who will audit that height."""
        schemas, size = self._spec.schemas(height), self._store.blob_size(digest)
        voted = {kind: schemas[kind] for kind in self._spec.rules(height)}
        most = self._genesis.state.n * sum(schema.max_bytes for schema in voted.values())  # of an aggregate
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
    """What their authors say is large."""
    return {ref.digest for one in contributions for ref in one.payloads if ref.size > LARGE_BYTES}
