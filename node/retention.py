"""Which blobs a node lets go: of old heights the large ones, what it has pulled of others on demand, and streamed ones.

Small ones are kept for ever (DESIGN §1), so that a chain can be audited from its beginning. What others have on demand
no audit needs, whatever its size; it stays as long as a peer may still ask for it. Nor does it need what is streamed,
which is carried and may show of samples more than others have to see for ever. What later rounds read stays until the
last of them is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from chain.block import Block, Contribution, Digest, Id
from chain.errors import StoreCorrupted
from chain.genesis import Genesis
from chain.signed import get_block_digests
from chain.sqlite_store import SqliteStore
from ml.errors import PayloadError
from ml.payload import decode_arrays, kind_name
from ml.specs import MethodSpec
from node.on_demand import get_kinds

LARGE_BYTES = 1 << 20
LEFT_OUT = "left out"  # the meta value with what came, by height, for contributions that are in no block


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
        newest = store.blocks(max(1, head - genesis.keep_heights + 1), head)
        self._newest = deque(stored.block for stored in newest)
        sharing = store.blocks(1, min(spec.sharing_heights, head - len(self._newest)))
        self._old = [stored.block for stored in sharing]  # read by later rounds, or were when this node went down
        self._left_out: dict[str, list[str]] = store.get_meta(LEFT_OUT) or {}

    def on_block(self, block: Block, seen: Iterable[Contribution] = (), pulled: Iterable[Digest] = ()) -> int:
        """A block was appended, contributions for its height had been `seen`, and blobs `pulled` for the vote that had
        not been here before. Returns how many blobs went."""
        self._keep_account(block, seen, pulled)
        self._newest.append(block)
        pruned, kept = 0, list[Block]()
        if len(self._newest) > self._genesis.keep_heights:
            self._old.append(self._newest.popleft())
            pruned = self._drop_left_out(self._old[-1].height)
        for old in self._old:
            needed_until = self._spec.needed_until(old.height)
            if needed_until is not None and block.height >= needed_until:
                pruned += self._prune(old)
            elif needed_until is not None:
                kept.append(old)
        self._old = kept
        return pruned

    def _prune(self, block: Block) -> int:
        taken = self._get_taken(block)
        doomed = {digest for digest in taken if not self._is_agreed(digest, block.height)}
        sizes = [ref.size for contribution in block.contributions for ref in contribution.payloads]
        if sum(sizes) > LARGE_BYTES:
            sized = {digest: self._store.blob_size(digest) or 0 for digest in get_block_digests(block)}
            doomed |= {digest for digest, size in sized.items() if size > LARGE_BYTES}
        for digest in self._get_streamed(block.height, block.contributions):
            self._store.drop_partial(digest)
            if self._store.has_blob(digest):
                doomed.add(digest)
        if not doomed:
            return 0
        kept = self._store.referenced_blobs(block.height + 1) | {self._genesis.initial_model}
        for digest in taken - kept:
            self._store.drop_partial(digest)  # of a pull that was called off
        return sum(self._store.delete_blob(digest) for digest in doomed - kept)

    def _get_taken(self, block: Block) -> set[Digest]:
        """What others have on demand in a block, and neither this node nor the vote needs."""
        kinds = get_kinds(self._spec, block.height)
        if not kinds:
            return set()
        needed, taken = {block.header.aggregate}, set[Digest]()
        for contribution in block.contributions:
            for ref in contribution.payloads:
                is_taken = contribution.author != self._me and kind_name(ref.kind) in kinds
                (taken if is_taken else needed).add(ref.digest)
        return taken - needed

    def _get_streamed(self, height: int, contributions: Iterable[Contribution]) -> set[Digest]:
        kinds = self._spec.get_streamed(height)
        return {ref.digest for c in contributions for ref in c.payloads if kind_name(ref.kind) in kinds}

    def _keep_account(self, block: Block, seen: Iterable[Contribution], pulled: Iterable[Digest]) -> None:
        """What came of contributions that a block is without, of streamed ones this node's own among them, nobody ever
        reads: a member could fill the disks of all others with it."""
        left_out = {*pulled} - get_block_digests(block)
        if self._spec.get_streamed(block.height):
            own = self._store.get_contribution(block.height)
            offered = self._get_streamed(block.height, [*seen, *([] if own is None else [own])])
            left_out |= offered - self._get_streamed(block.height, block.contributions)
        if left_out:
            self._left_out[str(block.height)] = sorted(digest.hex() for digest in left_out)
            self._store.put_meta(LEFT_OUT, self._left_out)

    def _drop_left_out(self, height: int) -> int:
        digests = {bytes.fromhex(digest) for digest in self._left_out.pop(str(height), ())}
        if not digests:
            return 0
        doomed = digests - self._store.referenced_blobs(height)
        for digest in doomed:
            self._store.drop_partial(digest)
        pruned = sum(self._store.delete_blob(digest) for digest in doomed)
        self._store.put_meta(LEFT_OUT, self._left_out)
        return pruned

    def _is_agreed(self, digest: Digest, height: int) -> bool:
        """Whether a small blob is one that members vote on, or what came of a vote: whoever offers an old one's digest
        as its own on demand must not take it from those who will audit that height."""
        schemas, size = self._spec.schemas(height), self._store.blob_size(digest)
        voted = {kind: schemas[kind] for kind in self._spec.rules(height)}
        most = self._genesis.n * sum(schema.max_bytes for schema in voted.values())  # of an aggregate
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
