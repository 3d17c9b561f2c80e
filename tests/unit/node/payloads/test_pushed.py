"""Payloads pushed behind their contribution: taken of its author alone, as it has signed them, and once."""

from __future__ import annotations

from hashlib import sha256

import pytest

from chain.block import Contribution, Id, PayloadRef
from ml.payload import kind_code
from ml.specs import get_spec
from node.p2p.transport.base import MAX_MESSAGE_BYTES, MessageKind
from node.payloads.pushed import MAX_PUSHED_BYTES, PushedPayloads, choose_pushed
from node.payloads.waiting_blobs import WaitingBlobs

ALICE, BOB = b"a" * 32, b"b" * 32


def make_contribution(*blobs: bytes, author: Id = ALICE, height: int = 5, size: int | None = None) -> Contribution:
    refs = [PayloadRef(kind, sha256(data).digest(), size or len(data)) for kind, data in enumerate(blobs, start=1)]
    return Contribution(height, bytes(32), author, 1, tuple(refs), bytes(64))


@pytest.fixture
def waiting() -> WaitingBlobs:
    return WaitingBlobs()


@pytest.fixture
def pushed(waiting: WaitingBlobs) -> PushedPayloads:
    made = PushedPayloads(waiting)
    made.on_height(5)
    return made


def take(pushed: PushedPayloads, data: bytes) -> bytes | None:
    return pushed.take(sha256(data).digest())


def test_what_a_contribution_names_is_taken_and_waits_to_be_written_once_it_is_wanted(
    pushed: PushedPayloads, waiting: WaitingBlobs
) -> None:
    pushed.expect(make_contribution(b"one", b"two"))
    assert pushed.offer(ALICE, b"two")
    assert len(waiting) == 0  # nobody has asked for it
    assert take(pushed, b"two") == b"two"
    assert waiting.get_all() == {sha256(b"two").digest(): b"two"}
    assert take(pushed, b"one") is None  # to be pulled


def test_nothing_is_taken_that_no_contribution_of_the_sender_names(pushed: PushedPayloads) -> None:
    assert not pushed.offer(ALICE, b"one")  # before it
    pushed.expect(make_contribution(b"one"))
    assert not pushed.offer(BOB, b"one")  # another sender
    assert not pushed.offer(ALICE, b"two")  # of the same size
    assert not pushed.offer(ALICE, b"longer")
    assert not pushed.offer(ALICE, b"")
    assert pushed.held_bytes == 0


def test_a_blob_is_taken_once(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"one"))
    assert pushed.offer(ALICE, b"one")
    assert not pushed.offer(ALICE, b"one")
    assert take(pushed, b"one") == b"one"
    pushed.expect(make_contribution(b"one"))  # seen again
    assert not pushed.offer(ALICE, b"one")


def test_a_second_contribution_of_an_author_earns_it_nothing(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"one"))
    pushed.expect(make_contribution(b"two"))
    assert not pushed.offer(ALICE, b"two")
    assert pushed.offer(ALICE, b"one")


def test_a_size_that_is_not_the_signed_one_is_not_taken(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"four", size=5))
    assert not pushed.offer(ALICE, b"four")
    pushed.expect(make_contribution(b"four", author=BOB, size=3))
    assert not pushed.offer(BOB, b"four")


def test_a_contribution_brings_no_more_than_its_share(pushed: PushedPayloads) -> None:
    half = MAX_PUSHED_BYTES // 2
    blobs = [bytes([i]) * (half - 1) for i in range(3)]
    pushed.expect(make_contribution(*blobs, bytes(MAX_PUSHED_BYTES + 1)))
    assert [pushed.offer(ALICE, data) for data in blobs] == [True, True, False]
    assert not pushed.offer(ALICE, bytes(MAX_PUSHED_BYTES + 1))
    assert pushed.held_bytes == 2 * (half - 1)
    assert MAX_MESSAGE_BYTES[MessageKind.PAYLOAD] == MAX_PUSHED_BYTES


def test_what_is_named_by_several_is_there_for_each(pushed: PushedPayloads) -> None:
    """Else one who names the payload of another would have everybody pull that."""
    pushed.expect(make_contribution(b"same"))
    pushed.expect(make_contribution(b"same", author=BOB))
    assert pushed.offer(ALICE, b"same")
    assert [take(pushed, b"same") for _ in range(2)] == [b"same"] * 2


def test_what_has_a_wrong_digest_counts_for_the_share_too(pushed: PushedPayloads) -> None:
    """Else a member could have bytes hashed without end that it never signed."""
    right, wrong = bytes(MAX_PUSHED_BYTES // 4), b"w" * (MAX_PUSHED_BYTES // 4)
    pushed.expect(make_contribution(right))
    assert [pushed.offer(ALICE, wrong) for _ in range(3)] == [False] * 3
    assert pushed.offer(ALICE, right)
    pushed.expect(make_contribution(right, author=BOB))
    assert [pushed.offer(BOB, wrong) for _ in range(4)] == [False] * 4
    assert not pushed.offer(BOB, right)  # nothing more of it is looked at


def test_naming_what_is_held_for_the_next_height_has_it_let_go_no_sooner(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"next", height=6))
    assert pushed.offer(ALICE, b"next")
    pushed.expect(make_contribution(b"next", author=BOB))
    assert pushed.offer(BOB, b"next")
    pushed.on_height(6)
    assert take(pushed, b"next") == b"next"


def test_the_next_height_may_begin_elsewhere_before_it_does_here(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"next", height=6))
    assert pushed.offer(ALICE, b"next")
    pushed.on_height(6)
    assert take(pushed, b"next") == b"next"


def test_what_another_brings_is_taken_where_it_is_the_authors_and_costs_the_author_nothing_where_not(
    pushed: PushedPayloads,
) -> None:
    pushed.expect(make_contribution(b"one", bytes(MAX_PUSHED_BYTES - 3)))
    for _ in range(100):
        assert not pushed.offer(ALICE, b"two", is_relayed=True)  # of the right size
    assert pushed.offer(ALICE, b"one", is_relayed=True)
    assert not pushed.offer(ALICE, b"one", is_relayed=True)
    assert pushed.offer(ALICE, bytes(MAX_PUSHED_BYTES - 3))  # all of its share was left but for that
    assert pushed.find(sha256(b"one").digest()) == b"one"
    assert not pushed.offer(BOB, b"one", is_relayed=True)


def test_a_height_that_is_over_leaves_nothing(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"one", b"two"))
    assert pushed.offer(ALICE, b"one")
    pushed.on_height(6)
    assert pushed.held_bytes == 0
    assert take(pushed, b"one") is None
    assert not pushed.offer(ALICE, b"two")


def test_two_may_offer_the_same(pushed: PushedPayloads) -> None:
    pushed.expect(make_contribution(b"one"))
    pushed.expect(make_contribution(b"one", author=BOB))
    assert pushed.offer(ALICE, b"one")
    assert pushed.offer(BOB, b"one")
    assert [take(pushed, b"one") for _ in range(2)] == [b"one"] * 2


@pytest.mark.parametrize(
    ("method", "sizes", "wanted"),
    [
        ({"name": "fedavg"}, {"model": 100}, ["model"]),
        ({"name": "fedavg"}, {"model": MAX_PUSHED_BYTES}, ["model"]),
        ({"name": "fedavg"}, {"model": MAX_PUSHED_BYTES + 1}, []),
        ({"name": "dfpl", "lambda": 1.0}, {"prototypes": 620}, ["prototypes"]),
        ({"name": "uapdfl", "num_peers": 2, "weights": "samples"}, {"model": 100}, []),
    ],
)
def test_what_is_voted_on_is_pushed_while_it_is_small(
    method: dict[str, object], sizes: dict[str, int], wanted: list[str]
) -> None:
    """And never what single peers take on demand."""
    spec = get_spec(method, {"name": "mlp", "hidden": [4]}, 10, (1, 8, 8))
    payloads = {kind: kind[:1].encode() * size for kind, size in sizes.items()}
    refs = [PayloadRef(kind_code(kind), sha256(data).digest(), len(data)) for kind, data in payloads.items()]
    contribution = Contribution(5, bytes(32), ALICE, 1, tuple(refs), bytes(64))
    assert list(choose_pushed(spec, 1, contribution, payloads)) == [payloads[kind] for kind in wanted]
    other = {kind: data[:-1] + b"!" for kind, data in payloads.items()}  # than what was signed, in an earlier life
    assert list(choose_pushed(spec, 1, contribution, other)) == []


def test_ones_own_need_not_be_read_again(pushed: PushedPayloads) -> None:
    pushed.keep(5, b"mine")
    assert take(pushed, b"mine") == b"mine"
