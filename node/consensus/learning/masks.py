"""The masks of one member in a run of masked sums: the keys it shows, what hides its inputs, and what it opens.

For each round it makes a key of X25519 and shows the public half beside its openings of the round before. With the
other members' it comes to the seeds that two share, and with none to its own:

    s_ij = HKDF(X25519(k_i, K_j), tag | chain id | id of the block before the inputs | both members, and keys, in order)
    b_i  = HKDF(k_i, the same, with itself and its own key alone)

The id fixes run, height and roster, so that no seed is ever that of two heights; with the members in it, who shows a
copy of another's key comes to other seeds. Private halves lie in `DATA/masks.json`, durable before the public half is
sent, in no backup, and go as soon as the openings are final that they were for. A node that has lost
them takes part again from the next roster on.
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
    """A key for one round. Never shown: its repr is the public half."""

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
    """The private halves that this member holds, oldest first, as they lie on disk."""

    def __init__(self, path: Path) -> None:
        """Raises NodeError where the file cannot be read, or is none of ours."""
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
        """Exactly these, durable when it returns; all others are gone. Raises NodeError."""
        if tuple(keys) == self._keys:
            return
        secrets = [key.private.private_bytes_raw().hex() for key in keys]
        write_private(self._path, json.dumps({"keys": secrets}).encode())
        self._keys = tuple(keys)


def derive_seed(secret: bytes, chain_id: Digest, before: Digest, members: Mapping[Id, bytes]) -> bytes:
    """A seed for the inputs on the block `before`, of one or two members, by their public keys."""
    info = _SEED_TAG + chain_id + before + b"".join(member + members[member] for member in sorted(members))
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=info).derive(secret)


@dataclass(frozen=True, slots=True)
class RoundMasks:
    """What hides the inputs of the member `me` on the block `before`, by its key and those of the roster, which it is
    in."""

    me: Id
    key: MaskKey
    chain_id: Digest
    before: Digest
    members: tuple[bytes, ...]
    keys: tuple[bytes, ...]

    def derive(self, other: bytes) -> bytes:
        """The seed that is shared with a member of the roster; of `me` its own."""
        public = self.keys[self.members.index(other)]
        if other == self.me:
            secret = self.key.private.private_bytes_raw()
        else:
            secret = self.key.private.exchange(X25519PublicKey.from_public_bytes(public))
        return derive_seed(secret, self.chain_id, self.before, {self.me: self.key.public, other: public})

    def mask(self, spec: MaskedSpec, arrays: Arrays, weight: int) -> Arrays:
        """The payload that hides these arrays, of the method's own kind."""
        seeds = {other: self.derive(other) for other in self.members}
        values = spec.coding.encode(arrays, weight, spec.fraction_bits)
        shared = [(other, seed) for other, seed in seeds.items() if other != self.me]
        masked = mask_vector(values, self.me, seeds[self.me], shared)
        return {"values": masked, "commitments": to_rows([commit(seeds[other]) for other in self.members])}

    def open(self, summed: Sequence[bytes]) -> list[bytes]:
        """The seeds that this member opens once the block of inputs has these members."""
        return [self.derive(other) for other in list_opened(self.me, self.members, summed)]


class Masker:
    """One member's. `get_block` reads the block at a height, and `find_round` says which round that is. Not to be used
    on two threads at once."""

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
        """There is nothing to open. Of the keys only the newest may be wanted again."""
        self._keys.keep([] if self._keys.newest is None else [self._keys.newest])

    def forget(self) -> None:
        """Nothing that was hidden by any key will be opened."""
        self._keys.keep([])

    @property
    def num_keys(self) -> int:
        return len(self._keys)

    @property
    def me(self) -> Id:
        return self._me

    def begin(self, round_: RunRound, parent: Arrays | None) -> str | None:
        """A height of a run of masked sums begins. Why this member has no part in its sum; None where it has, as far as
        blocks show, and the aggregate before where it is at hand. A key whose openings are final is forgotten."""
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
        """Whether this member's input is in a block whose sum waits to be opened at this height."""
        return is_opening(round_) and round_.number > 1 and self._is_author(self._find_before(round_))

    def _is_author(self, block: Block | None) -> bool:
        return block is not None and any(c.author == self._me for c in block.contributions)

    def _find_before(self, round_: RunRound) -> Block | None:
        """The block of the height before in the run, changes apart; None where a change has left that out."""
        before = next((found for h in range(round_.height - 1, 0, -1) if (found := self._find_round(h))), None)
        if before is None or before.place != Place(round_.run.number, round_.number - 1):
            return None
        return self._get_block(before.height)

    # ---- what it sends

    def mask(self, tip: Tip, round_: RunRound, parent: Arrays | None, data: bytes, weight: int) -> bytes:
        """The payload of inputs on `tip`, whose aggregate is `parent`, from that of the method. Raises
        MaskingRefused."""
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
        """The payload of openings after the aggregate `parent`: what this member opens of the sum, if it can,
        and a new key, which is durable. Raises NodeError."""
        summed = get_masked_spec(round_).read_summed(parent, round_.number)
        masks = None if summed is None else self._find_masks(round_, summed)
        seeds = [] if summed is None or masks is None else masks.open(summed.members)
        key = MaskKey.generate()
        self._keys.keep([key] if masks is None else [masks.key, key])
        return encode_arrays({"key": np.frombuffer(key.public, np.uint8), "seeds": to_rows(seeds)})

    def _find_masks(self, round_: RunRound, summed: Summed) -> RoundMasks | None:
        """What hides this member's input in a sum; None where it has none in it, or has lost the key."""
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
    """Whether a height is one at which nothing is trained for, but seeds are opened and keys shown."""
    return round_ is not None and isinstance(round_.spec, MaskedSpec) and not round_.spec.has_inputs(round_.number)


def get_masked_spec(round_: RunRound) -> MaskedSpec:
    """Raises ValueError of any other run's round."""
    if not isinstance(round_.spec, MaskedSpec):
        raise ValueError("expected a run of masked sums")
    return round_.spec
