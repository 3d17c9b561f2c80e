"""The masks of one member in a run of masked sums: the keys it sends, the masks of its inputs, and the seeds it opens.

For each round the member makes an X25519 key, and sends the public half along with its openings of the round before.
With another member's public key it yields the seed that the two share, and alone the member's own seed:

    s_ij = HKDF(X25519(k_i, K_j), tag | chain id | id of the block before the inputs | both members, and keys, in order)
    b_i  = HKDF(k_i, the same, with itself and its own key alone)

The block id fixes run, height and roster, so that no two heights have the same seed. The members are in it, so that a
member that sends a copy of another's key gets other seeds. Private halves lie in `DATA/masks.json`. They are stored
before the public half is sent, are in no backup, and are deleted as soon as the openings that need them are final. A
node that has lost them takes part again from the next roster on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from chain.block import Block, Digest, Id
from chain.calendar import Place
from chain.rules import compute_quorum
from chain.signing import tag
from chain.tip import Tip
from ml.aggregation.masks import SEED_BYTES, commit, list_opened, mask_vector
from ml.payload import Arrays, decode_arrays, encode_arrays, to_rows
from ml.specs import MaskedSpec
from ml.specs.masked.aggregate import Summed, read_roster
from ml.specs.masked.spec import LEAST_MEMBERS
from node.errors import NodeError
from node.host.private_file import read_private, write_private
from node.runs.specs import RunRound

log = logging.getLogger(__name__)

MASKS = "masks.json"
_SEED_TAG = tag("mask seed")


class MaskingRefused(NodeError):
    """This member sends no input at this height; the text says why."""


@dataclass(frozen=True, slots=True)
class MaskKey:
    """Holds a key for one round. The private half is never shown: its repr is the public half."""

    private: X25519PrivateKey

    @classmethod
    def generate(cls) -> MaskKey:
        return cls(X25519PrivateKey.generate())

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"MaskKey({self.public.hex()[:8]})"


class MaskKeys:
    """Holds the private halves of this member's keys, oldest first, as they lie on disk."""

    def __init__(self, path: Path) -> None:
        """Raises NodeError if the file cannot be read, or is not a file of mask keys."""
        self._path = path
        self._keys: tuple[MaskKey, ...] = ()
        data = read_private(path)
        if data is not None:
            try:
                held = json.loads(data)["keys"]
                if not isinstance(held, list):
                    raise ValueError(f"expected a list, got {type(held).__name__}")
                self._keys = tuple(MaskKey(X25519PrivateKey.from_private_bytes(bytes.fromhex(text))) for text in held)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise NodeError(
                    f"{path}: expected keys of masks, got something else ({error}); move it away"
                ) from error

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def newest(self) -> MaskKey | None:
        return self._keys[-1] if self._keys else None

    def find(self, public: bytes) -> MaskKey | None:
        return next((key for key in self._keys if key.public == public), None)

    def keep(self, keys: Sequence[MaskKey]) -> None:
        """Stores exactly these keys, durable on return; all others are deleted. Raises NodeError."""
        if tuple(keys) == self._keys:
            return
        secrets = [key.private.private_bytes_raw().hex() for key in keys]
        write_private(self._path, json.dumps({"keys": secrets}).encode())
        self._keys = tuple(keys)


def derive_seed(secret: bytes, chain_id: Digest, before: Digest, members: Mapping[Id, bytes]) -> bytes:
    """Returns a seed for the inputs on the block `before`, of one or two members, from their public keys."""
    info = _SEED_TAG + chain_id + before + b"".join(member + members[member] for member in sorted(members))
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=info).derive(secret)


@dataclass(frozen=True, slots=True)
class RoundMasks:
    """Masks the inputs of the member `me` on the block `before`, by its key and those of the roster, which has `me`
    too."""

    me: Id
    key: MaskKey
    chain_id: Digest
    before: Digest
    members: tuple[bytes, ...]
    keys: tuple[bytes, ...]

    def derive(self, other: bytes) -> bytes:
        """Returns the seed that is shared with a member of the roster; for `me` its own seed."""
        public = self.keys[self.members.index(other)]
        if other == self.me:
            secret = self.key.private.private_bytes_raw()
        else:
            secret = self.key.private.exchange(X25519PublicKey.from_public_bytes(public))
        return derive_seed(secret, self.chain_id, self.before, {self.me: self.key.public, other: public})

    def mask(self, spec: MaskedSpec, arrays: Arrays, weight: int) -> Arrays:
        """Returns the payload that masks these arrays, which are of the method's own kind."""
        seeds = {other: self.derive(other) for other in self.members}
        values = spec.coding.encode(arrays, weight, spec.fraction_bits)
        shared = [(other, seed) for other, seed in seeds.items() if other != self.me]
        masked = mask_vector(values, self.me, seeds[self.me], shared)
        return {"values": masked, "commitments": to_rows([commit(seeds[other]) for other in self.members])}

    def open(self, summed: Sequence[bytes]) -> list[bytes]:
        """Returns the seeds that this member opens if the block of inputs has these members."""
        return [self.derive(other) for other in list_opened(self.me, self.members, summed)]


class Masker:
    """Masks inputs and opens seeds for one member. `get_block` reads the block at a height, and `find_round` returns
    the round at a height. It must not be used on two threads at once."""

    def __init__(
        self,
        keys: MaskKeys,
        me: Id,
        chain_id: Digest,
        get_block: Callable[[int], Block],
        find_round: Callable[[int], RunRound | None],
    ) -> None:
        self._keys = keys
        self._me = me
        self._chain_id = chain_id
        self._get_block = get_block
        self._find_round = find_round

    # ---- what this member has a part in

    def rest(self) -> None:
        """Keeps only the newest key, since there is nothing to open."""
        self._keys.keep([] if self._keys.newest is None else [self._keys.newest])

    def forget(self) -> None:
        """Deletes all keys, since no input masked by them will be opened."""
        self._keys.keep([])

    @property
    def num_keys(self) -> int:
        return len(self._keys)

    @property
    def me(self) -> Id:
        return self._me

    def begin(self, round_: RunRound, parent: Arrays | None) -> str | None:
        """Prepares for a height of a run of masked sums, and deletes keys whose openings are final. Says why this
        member has no part in the sum; None if it has, as far as the blocks show, and the `parent` aggregate if it is
        there."""
        if is_opening(round_):
            return None
        self.rest()
        newest = self._keys.newest
        if not self._is_author(self._find_before(round_)):
            return "it has shown no key for this round in time, and does for the next"
        roster = read_roster(parent)
        shown = None if roster is None else dict(zip(roster.members, roster.keys, strict=True)).get(self._me)
        if roster is not None and shown is None:
            return "it has not opened its last input, and shows a key for the next round"
        if newest is not None and shown in (None, newest.public):
            return None
        return "it has lost its key for this round, and shows another for the next"

    def owes_openings(self, round_: RunRound) -> bool:
        """Says whether this member's input is in a block whose sum is to be opened at this height."""
        return is_opening(round_) and round_.number > 1 and self._is_author(self._find_before(round_))

    def _is_author(self, block: Block | None) -> bool:
        return block is not None and any(c.author == self._me for c in block.contributions)

    def _find_before(self, round_: RunRound) -> Block | None:
        """Returns the block of the height before in the run, changes left out; None if a change has left that height
        out."""
        before = next((found for h in range(round_.height - 1, 0, -1) if (found := self._find_round(h))), None)
        if before is None or before.place != Place(round_.run.number, round_.number - 1):
            return None
        return self._get_block(before.height)

    # ---- what it sends

    def mask(self, tip: Tip, round_: RunRound, parent: Arrays | None, data: bytes, weight: int) -> bytes:
        """Returns the payload of inputs on `tip`, whose aggregate is `parent`, made from the method's own payload.
        Raises MaskingRefused."""
        spec, roster = get_masked_spec(round_), read_roster(parent)
        if tip.state.n < LEAST_MEMBERS:
            raise MaskingRefused(f"the federation has {tip.state.n} members, too few to hide any of them in a sum")
        if roster is None or self._me not in roster.members:
            raise MaskingRefused("it has shown no key for this round in time")
        key = self._keys.find(roster.keys[roster.members.index(self._me)])
        if key is None:
            raise MaskingRefused("it has lost its key for this round")
        masks = RoundMasks(self._me, key, self._chain_id, tip.id, roster.members, roster.keys)
        return encode_arrays(masks.mask(spec, decode_arrays(data, len(data)), weight))

    def open(self, round_: RunRound, parent: Arrays | None) -> bytes:
        """Returns the payload of openings after the aggregate `parent`: the seeds that this member opens of the sum, if
        it can, and a new key, which is stored. Raises NodeError."""
        summed = get_masked_spec(round_).read_summed(parent, round_.number)
        masks = None if summed is None else self._find_masks(round_, summed)
        seeds = [] if summed is None or masks is None else masks.open(summed.members)
        key = MaskKey.generate()
        self._keys.keep([key] if masks is None else [masks.key, key])
        return encode_arrays({"key": np.frombuffer(key.public, np.uint8), "seeds": to_rows(seeds)})

    def _find_masks(self, round_: RunRound, summed: Summed) -> RoundMasks | None:
        """Returns the masks of this member's input in a sum; None if it has no input in it, or has lost the key."""
        inputs = self._find_before(round_)
        if (
            self._me not in summed.members
            or inputs is None
            or len(summed.members) < compute_quorum("bft", LEAST_MEMBERS)
        ):
            return None
        key = self._keys.find(summed.keys[summed.roster.index(self._me)])
        if key is None:
            log.warning("round %d: the key of what is to be opened is lost, and the round with it", round_.number)
            return None
        return RoundMasks(self._me, key, self._chain_id, inputs.header.prev, summed.roster, summed.keys)

    def __repr__(self) -> str:
        return f"<Masker {self._me.hex()[:8]}: {len(self._keys)} keys>"


def is_masked(round_: RunRound | None) -> bool:
    return round_ is not None and isinstance(round_.spec, MaskedSpec)


def is_opening(round_: RunRound | None) -> bool:
    """Says whether members open seeds and send keys at a height, and train nothing."""
    return round_ is not None and isinstance(round_.spec, MaskedSpec) and not round_.spec.has_inputs(round_.number)


def get_masked_spec(round_: RunRound) -> MaskedSpec:
    """Returns the masked spec of a round. Raises ValueError if its run has no masked sums."""
    if not isinstance(round_.spec, MaskedSpec):
        raise ValueError("expected a run of masked sums")
    return round_.spec
