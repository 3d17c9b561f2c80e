"""Payloads on demand: which blobs a node asks single peers for, when, and whose fault it is when they are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from chain.block import Block, Digest, Id, PayloadRef
from ml.payload import KINDS, Arrays, ArraySchema, ArraySpec, encode_arrays
from ml.specs import MethodSpec, Offer, Task
from ml.specs.hyperparameters import Hyperparameters
from node.consensus.height.credit import PER_HEIGHT
from node.payloads.fetcher import BlobFetcher, BlobUnavailable
from node.payloads.on_demand import LATE_SHARE, OnDemand
from node.payloads.pulled import MissingAuthor, Pulled
from node.runs.specs import RunRound
from node.training.exchange import Exchange, FileUnusable
from node.training.frames import FrameError
from support.data.chains import make_candidate, make_contribution, make_genesis, make_keys
from support.federation.fixed_specs import FixedSpecs
from support.federation.inline import InlineOffload
from support.federation.virtual_time import run_virtual

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
ME, BOB, CAROL, DAVE = (key.id for key in KEYS)
BEACON = bytes(range(32))
COLLECT_S = GENESIS.rules.waits.collect_s
SCHEMA = ArraySchema({"w": ArraySpec("float32", (2,))})


class FirstSpec(MethodSpec):
    """A client takes g of the first two others, and h of the very first."""

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return {"g": SCHEMA, "h": SCHEMA}

    def rules(self, height: int) -> Mapping[str, str]:
        return {}

    @property
    def max_weight_is_one(self) -> bool:
        return True

    def wanted(
        self,
        height: int,
        beacon: bytes,
        me: bytes,
        offers: Sequence[Offer],
        aggregate: Arrays | None,
        gone: Collection[bytes] = frozenset(),
    ) -> Sequence[bytes]:
        others = [offer for offer in offers if offer.author != me and offer.author not in gone]
        return [offer.digests["g"] for offer in others[:2]] + [offer.digests["h"] for offer in others[:1]]


class LastSpec(FirstSpec):
    """Dave is in the block no more, was in the one before, and a client takes of him first."""

    def list_stale(self, aggregate: Arrays | None) -> Sequence[tuple[bytes, int]]:
        return ((DAVE, 1),)

    def wanted(
        self,
        height: int,
        beacon: bytes,
        me: bytes,
        offers: Sequence[Offer],
        aggregate: Arrays | None,
        gone: Collection[bytes] = frozenset(),
    ) -> Sequence[bytes]:
        return super().wanted(height, beacon, me, offers[::-1], aggregate, gone)


SPEC = FirstSpec(Task({"name": "mlp"}, (1, 8, 8), 10), Hyperparameters())
WITH_STALE = LastSpec(SPEC.task, SPEC.hyperparameters)


def encode(*numbers: float) -> bytes:
    return encode_arrays({"w": np.array(numbers, np.float32)})


@dataclass
class FakeFetcher:
    """Comes up with a blob after `seconds`, or with nothing."""

    blobs: dict[Digest, bytes] = field(default_factory=dict)
    seconds: dict[Digest, float] = field(default_factory=dict)
    asked: list[tuple[Digest, int, tuple[Id, ...], float]] = field(default_factory=list)
    cancelled: list[Digest] = field(default_factory=list)
    pulled_bytes: int = 0

    async def try_fetch(
        self, digest: Digest, max_bytes: int, sources: Sequence[Id] = (), *, patience_s: float
    ) -> bytes:
        self.asked.append((digest, max_bytes, tuple(sources), patience_s))
        try:
            await asyncio.sleep(self.seconds.get(digest, 0.1))
        except asyncio.CancelledError:
            self.cancelled.append(digest)
            raise
        if digest not in self.blobs:
            raise BlobUnavailable("not connected")
        self.pulled_bytes += len(self.blobs[digest])
        return self.blobs[digest]


@dataclass
class Table:
    """A block of all four with g and h of each, and whoever takes from it."""

    fetcher: FakeFetcher = field(default_factory=FakeFetcher)
    losses: list[MissingAuthor] = field(default_factory=list)
    payloads: dict[Id, list[PayloadRef]] = field(default_factory=dict)
    is_alone: bool = False
    overdrawn: frozenset[Id] = frozenset()

    @classmethod
    def lay(cls) -> Table:
        table = cls()
        for i, key in enumerate(KEYS):
            for kind, number in (("g", i), ("h", -i)):
                table.offer(key.id, kind, encode(number, 1 if kind == "g" else 2))
        return table

    def offer(self, author: Id, kind: str, data: bytes, *, size: int | None = None, is_served: bool = True) -> Digest:
        digest = sha256(data).digest()
        refs = [ref for ref in self.payloads.get(author, []) if ref.kind != KINDS[kind]]
        self.payloads[author] = [*refs, PayloadRef(KINDS[kind], digest, len(data) if size is None else size)]
        if is_served:
            self.fetcher.blobs[digest] = data
        return digest

    def get_digest(self, author: Id, kind: str) -> Digest:
        return next(ref.digest for ref in self.payloads[author] if ref.kind == KINDS[kind])

    def make_block(self) -> Block:
        contributions = [
            make_contribution(GENESIS, key, payloads=sorted(self.payloads[key.id], key=lambda ref: ref.kind))
            for key in KEYS
        ]
        return make_candidate(GENESIS, GENESIS.block0, KEYS, contributions=contributions, aggregate=bytes(32))

    def take(self) -> tuple[Pulled, float]:
        """What came of it, and the seconds it took."""

        async def story() -> tuple[Pulled, float]:
            loop = asyncio.get_running_loop()
            on_demand = OnDemand(
                FixedSpecs(GENESIS, SPEC),
                ME,
                cast(BlobFetcher, self.fetcher),
                InlineOffload(),
                is_alone=lambda: self.is_alone,
                get_patience=lambda authors: PER_HEIGHT if self.overdrawn >= set(authors) else 1.0,
                on_loss=self.losses.append,
            )
            began_s = loop.time()
            taken = await on_demand.take(self.make_block(), BEACON, None)
            return taken, loop.time() - began_s

        return cast(tuple[Pulled, float], run_virtual(cast(Coroutine[Any, Any, Any], story())))

    def get_blobs(self, *which: tuple[Id, str]) -> dict[Digest, bytes]:
        digests = [self.get_digest(author, kind) for author, kind in which]
        return {digest: self.fetcher.blobs[digest] for digest in digests}


def test_all_that_is_wanted_is_pulled_at_the_same_time_from_its_author() -> None:
    table = Table.lay()
    taken, seconds = table.take()
    wanted = [(BOB, "g"), (CAROL, "g"), (BOB, "h")]
    assert taken.exchange.blobs == table.get_blobs(*wanted)
    assert (taken.exchange.beacon, taken.exchange.me, taken.exchange.gone) == (BEACON, ME, frozenset())
    assert seconds == pytest.approx(0.1)
    asked = [(digest, sources) for digest, _, sources, _ in table.fetcher.asked]
    assert asked == [(table.get_digest(author, kind), (author,)) for author, kind in wanted]
    assert taken.pulled_bytes == sum(map(len, taken.exchange.blobs.values()))


def test_in_the_place_of_one_who_is_gone_comes_who_the_spec_says() -> None:
    table = Table.lay()
    h = table.get_digest(BOB, "h")
    del table.fetcher.blobs[table.get_digest(BOB, "g")]
    table.fetcher.seconds[h] = 100.0
    taken, seconds = table.take()
    assert taken.exchange.gone == {BOB}
    assert taken.exchange.blobs == table.get_blobs((CAROL, "g"), (DAVE, "g"), (CAROL, "h"))
    assert taken.reasons == {BOB: "g: cannot be had (not connected)"}
    assert [(loss.author, loss.is_fault) for loss in table.losses] == [(BOB, False)]
    assert table.fetcher.cancelled == [h]  # its other part is of no use any more
    assert seconds == pytest.approx(0.2)


def test_who_is_asked_late_has_a_share_of_the_time_at_least() -> None:
    table = Table.lay()
    for author in (BOB, CAROL):
        digest = table.get_digest(author, "g")
        del table.fetcher.blobs[digest]
        table.fetcher.seconds[digest] = COLLECT_S
    taken, _ = table.take()
    assert taken.exchange.gone == {BOB, CAROL}
    patience = {digest: patience_s for digest, _, _, patience_s in table.fetcher.asked}
    assert patience[table.get_digest(BOB, "g")] == COLLECT_S
    assert patience[table.get_digest(DAVE, "h")] == LATE_SHARE * COLLECT_S


@pytest.mark.parametrize("bad", [encode(1.0), encode(1.0, np.nan), b"no arrays"])
def test_a_blob_that_is_no_payload_is_its_authors_fault(bad: bytes) -> None:
    table = Table.lay()
    table.offer(BOB, "h", bad)
    taken, _ = table.take()
    assert taken.exchange.gone == {BOB}
    assert [(loss.author, loss.height, loss.is_fault) for loss in table.losses] == [(BOB, 1, True)]
    assert taken.reasons[BOB].startswith("h: ")


def test_of_two_who_offer_the_same_only_the_one_who_lies_about_its_size_is_gone() -> None:
    table = Table.lay()
    shared = encode(5, 5)
    table.offer(BOB, "g", shared, size=len(shared) - 1)
    digest = table.offer(CAROL, "g", shared)
    taken, _ = table.take()
    assert taken.exchange.gone == {BOB}
    assert taken.reasons[BOB] == f"g: declared {len(shared) - 1} bytes, has {len(shared)}"
    assert taken.exchange.blobs == table.get_blobs((CAROL, "g"), (DAVE, "g"), (CAROL, "h"))
    assert [asked[:3] for asked in table.fetcher.asked].count((digest, len(shared), (BOB, CAROL))) == 1


def test_where_all_are_gone_nothing_is_taken_and_nothing_fails() -> None:
    table = Table.lay()
    table.fetcher.blobs.clear()
    taken, _ = table.take()
    assert taken.exchange.gone == {BOB, CAROL, DAVE}
    assert (taken.exchange.blobs, taken.pulled_bytes) == ({}, 0)


def test_a_node_that_sees_nobody_waits_for_company_before_it_asks_but_not_for_ever() -> None:
    table = Table.lay()
    table.is_alone = True
    _, seconds = table.take()
    assert COLLECT_S <= seconds <= COLLECT_S + 0.2


# ---- of members that are not in the block


class LoweredSpecs(FixedSpecs):
    """From the second round on no number may be beyond 2."""

    def find(self, height: int) -> RunRound | None:
        found = super().find(height)
        if found is None or height < 2:
            return found
        return replace(found, spec=replace(found.spec, task=replace(found.spec.task, max_abs=2.0)))


def take_stale(
    table: Table, *, is_member: bool = True, is_block_here: bool = True, specs: type[FixedSpecs] = FixedSpecs
) -> tuple[Pulled, list[int]]:
    """What is taken of a second block, which has all but Dave, and the heights that were looked up for it."""
    before = table.make_block()
    table.payloads = {author: refs for author, refs in table.payloads.items() if author != DAVE}
    three = [
        make_contribution(GENESIS, key, height=2, prev=before.id, payloads=sorted(refs, key=lambda ref: ref.kind))
        for key in KEYS[:3]
        for refs in [table.payloads[key.id]]
    ]
    block = make_candidate(GENESIS, before, KEYS, contributions=three, aggregate=bytes(32))
    sought: list[int] = []

    async def read_block(height: int) -> Block | None:
        sought.append(height)
        return before if is_block_here else None

    async def story() -> Pulled:
        on_demand = OnDemand(
            specs(GENESIS, WITH_STALE),
            ME,
            cast(BlobFetcher, table.fetcher),
            InlineOffload(),
            is_alone=lambda: False,
            get_patience=lambda authors: PER_HEIGHT if table.overdrawn >= set(authors) else 1.0,
            on_loss=table.losses.append,
            read_block=read_block,
            is_member=lambda member: is_member or member != DAVE,
        )
        return await on_demand.take(block, BEACON, None)

    return cast(Pulled, run_virtual(cast(Coroutine[Any, Any, Any], story()))), sought


def test_what_a_member_offered_in_the_block_it_was_in_last_is_pulled_as_any_other() -> None:
    table = Table.lay()
    g, h = (table.get_digest(DAVE, kind) for kind in ("g", "h"))
    taken, sought = take_stale(table)
    assert sought == [1]
    assert taken.exchange.offers[-1] == Offer(DAVE, 1, {"g": g, "h": h})
    assert taken.exchange.blobs.keys() == {g, h, table.get_digest(CAROL, "g")}


def test_a_stale_blob_that_cannot_be_had_takes_its_author_out_of_the_choice_alone() -> None:
    table = Table.lay()
    del table.fetcher.blobs[table.get_digest(DAVE, "g")]
    taken, _ = take_stale(table)
    assert taken.exchange.gone == {DAVE}
    assert taken.exchange.blobs == table.get_blobs((CAROL, "g"), (BOB, "g"), (CAROL, "h"))


@pytest.mark.parametrize("overdrawn", [frozenset[Id](), frozenset({DAVE})], ids=["in credit", "overdrawn"])
def test_a_stale_blob_has_a_share_of_the_time_and_costs_its_author_no_credit(overdrawn: frozenset[Id]) -> None:
    """It has promised nothing in this round, and others may have pulled its blob."""
    table = Table.lay()
    table.overdrawn = overdrawn
    digest = table.get_digest(DAVE, "g")
    del table.fetcher.blobs[digest]
    table.fetcher.seconds[digest] = COLLECT_S / 4
    take_stale(table)
    patience = {asked: patience_s for asked, _, _, patience_s in table.fetcher.asked}
    assert patience[digest] == LATE_SHARE * COLLECT_S
    assert patience[table.get_digest(CAROL, "g")] == COLLECT_S
    assert [(loss.author, loss.waited) for loss in table.losses] == [(DAVE, 0.0)]


@pytest.mark.parametrize(("overdrawn", "share"), [(DAVE, 1.0), (CAROL, LATE_SHARE)], ids=["stale", "present"])
def test_a_blob_that_an_author_of_the_block_offers_too_has_the_longer_time_of_both(overdrawn: Id, share: float) -> None:
    table = Table.lay()
    shared = encode(5, 5)
    digest = table.offer(DAVE, "g", shared, is_served=False)
    table.offer(CAROL, "g", shared, is_served=False)
    table.fetcher.seconds[digest] = COLLECT_S / 4
    table.overdrawn = frozenset({overdrawn})
    take_stale(table)
    assert [patience_s for asked, _, _, patience_s in table.fetcher.asked if asked == digest] == [share * COLLECT_S]
    waited = {loss.author: loss.waited for loss in table.losses}
    assert waited == {DAVE: 0.0, CAROL: pytest.approx(0.25)}


def test_a_stale_blob_that_is_no_payload_is_its_authors_fault() -> None:
    table = Table.lay()
    table.offer(DAVE, "g", encode(np.nan, 1.0))
    taken, _ = take_stale(table)
    assert taken.exchange.gone == {DAVE}
    assert [(loss.author, loss.height, loss.is_fault) for loss in table.losses] == [(DAVE, 2, True)]


def test_a_stale_blob_is_judged_by_the_rules_of_the_round_it_was_made_in() -> None:
    """A change may have lowered a limit meanwhile. Dave's numbers are 3, which was allowed, those of others 2."""
    table = Table.lay()
    taken, _ = take_stale(table, specs=LoweredSpecs)
    assert not table.losses
    assert {table.get_digest(CAROL, "g"), sha256(encode(3, 1)).digest()} <= taken.exchange.blobs.keys()
    shared = encode(3, 1)
    table = Table.lay()
    table.offer(CAROL, "g", shared)
    taken, _ = take_stale(table, specs=LoweredSpecs)
    assert [(loss.author, loss.is_fault) for loss in table.losses] == [(CAROL, True)]
    assert sha256(shared).digest() in taken.exchange.blobs  # as Dave's


@pytest.mark.parametrize("case", [{"is_member": False}, {"is_block_here": False}], ids=["removed", "block not here"])
def test_who_is_no_member_any_more_or_whose_block_is_not_here_is_not_taken_from(case: dict[str, Any]) -> None:
    table = Table.lay()
    taken, _ = take_stale(table, **case)
    assert {offer.author for offer in taken.exchange.offers} == {ME, BOB, CAROL}
    assert taken.exchange.blobs == table.get_blobs((CAROL, "g"), (BOB, "g"), (CAROL, "h"))
    assert not table.losses


# ---- to the worker


def make_exchange() -> Exchange:
    offers = (Offer(BOB, 7, {"g": bytes(range(32))}), Offer(CAROL, 1, {"g": bytes(32)}))
    blobs, files = {bytes(range(32)): encode(1, 2)}, {bytes(range(32, 64)): Path("/store/of/it")}
    return Exchange(GENESIS.block0.id, ME, offers, frozenset({CAROL}), blobs, files)


def test_an_exchange_comes_out_of_a_frame_as_it_went_in() -> None:
    exchange = make_exchange()
    attachments = exchange.to_attachments() | {"aggregate": b"other"}
    assert Exchange.from_frame(exchange.to_header(), attachments) == exchange
    assert Exchange.from_frame(Exchange().to_header(), {}) == Exchange()


@pytest.mark.parametrize(
    "change",
    [
        {"beacon": "zz"},
        {"beacon": "00"},
        {"me": None},
        {"offers": {}},
        {"offers": [{"author": "00" * 32, "weight": 1}]},
        {"offers": [{"author": "00" * 32, "weight": True, "digests": {}}]},
        {"offers": [{"author": "00" * 32, "weight": 0, "digests": {}}]},
        {"offers": [{"author": "00" * 32, "weight": 1, "digests": {"g": "00"}}]},
        {"gone": "00" * 32},
        {"gone": [1]},
        {"files": None},
        {"files": {"00": "/store/of/it"}},
        {"files": {"00" * 32: ""}},
        {"files": {"00" * 32: 1}},
    ],
)
def test_what_cannot_be_an_exchange_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FrameError, match="expected"):
        Exchange.from_frame({**make_exchange().to_header(), **change}, {})
    with pytest.raises(FrameError, match="attachment"):
        Exchange.from_frame(make_exchange().to_header(), {"junk": b""})


def test_the_files_of_an_exchange_are_its_blobs_as_well_as_those_in_memory(tmp_path: Path) -> None:
    path, large = tmp_path / "large", {"x": np.arange(300_000.0)}
    path.write_bytes(encode_arrays(large))
    exchange = Exchange(blobs={bytes(32): encode(1, 2)}, files={bytes(range(32)): path})
    decoded = exchange.decode_blobs()
    assert decoded.keys() == {bytes(32), bytes(range(32))}
    np.testing.assert_array_equal(decoded[bytes(range(32))]["x"], large["x"])
    assert not decoded[bytes(range(32))]["x"].flags.writeable
    path.unlink()
    with pytest.raises(FileUnusable, match=f"{path}: cannot be read"):
        exchange.decode_blobs()
    path.write_bytes(b"something else")
    with pytest.raises(FileUnusable, match=f"{path}: .*expected"):
        exchange.decode_blobs()


def test_one_that_was_waited_for_in_vain_too_often_gets_a_moment_and_no_more() -> None:
    table = Table.lay()
    table.overdrawn = frozenset({BOB})
    table.take()
    patience = {sources: patience_s for _, _, sources, patience_s in table.fetcher.asked}
    assert patience[(BOB,)] == PER_HEIGHT * COLLECT_S
    assert patience[(CAROL,)] == COLLECT_S


def test_a_loss_says_how_long_was_waited() -> None:
    table = Table.lay()
    digest = table.get_digest(BOB, "g")
    del table.fetcher.blobs[digest]
    table.fetcher.seconds[digest] = COLLECT_S / 2
    table.take()
    (loss,) = table.losses
    assert loss.author == BOB
    assert loss.waited == pytest.approx(0.5)
