"""The attacks of a hostile member within the protocol, one by one, and the outcome each must have.

for name, attack in ATTACKS.items():
    await attack.act(net, liar)        # node3 lies to node0, or to all

The liar has its key and its connections, and sees what the honest see. An attack that shows on its face costs it the
connection to whom it tried it on; any other costs it the object, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from chain import codec
from chain import pow as work
from chain.block import ZERO, Block, Body, Contribution, Phase, Vote
from chain.evidence import make_evidence
from chain.signing import SigningKey
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_digest
from support.faults.liar import Liar, flip, make_arrays, make_message
from support.federation.cluster import DIM, Cluster

Act = Callable[[Cluster, Liar], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """An attack and its outcome. `reason` is what the victim counts against the liar, None where it counts nothing.
    `is_banned`: its connection is refused. `told` is what `rounds show` says of the round. `same` says how much the
    honest members' chain equals the one without the attack: the same blocks; where the rules let the attack cost or
    save them a moment, the same content of blocks; or merely one chain for all. Genesis may have `settings` of its
    own."""

    act: Act
    reason: Reason | None
    is_banned: bool = False
    told: str = ""
    same: Literal["blocks", "aggregates", "chain"] = "blocks"
    settings: Mapping[str, Any] = field(default_factory=dict)


def _say(make: Callable[[Cluster, Liar], Contribution | Block | Vote | Message | None]) -> Act:
    """Returns an act that sends a message to node0, once the honest members have contributed."""

    async def act(net: Cluster, liar: Liar) -> None:
        await net.wait_for(lambda: len(liar.get_contributions()) >= 3, "the honest to contribute")
        made = make(net, liar)
        if made is not None:
            liar.send(made, "node0")

    return act


def _offer(make: Callable[[Liar], Contribution]) -> Act:
    """Returns an act that sends a contribution to all."""

    async def act(net: Cluster, liar: Liar) -> None:
        liar.send(make(liar))

    return act


# ---- forged and replayed


def _forge_sender(net: Cluster, liar: Liar) -> Message:
    """Puts another member's name above the liar's own signature."""
    own = liar.make_contribution()
    return make_message(replace(own, author=net.id("node1")))


def _sign_with_identity_point(net: Cluster, liar: Liar) -> Message:
    """Signs with the point of order 1 as key: R = it and S = 0 would pass for a signature over anything."""
    point = (1).to_bytes(32, "little")
    return make_message(replace(liar.make_contribution(), author=point, signature=point + bytes(32)))


def _hang_other_body(net: Cluster, liar: Liar) -> Message:
    block = liar.make_candidate(liar.get_contributions().values())
    return make_message(replace(block, body=Body(block.contributions[1:])))


def _sign_badly(net: Cluster, liar: Liar) -> Message:
    contributions = list(liar.get_contributions().values())
    bad = [replace(contributions[0], signature=bytes(64)), *contributions[1:]]
    return make_message(liar.make_candidate(bad, aggregate=make_digest("any")))


def _accuse_falsely(net: Cluster, liar: Liar) -> Message:
    """Accuses node1 of two votes for one slot, one of which it never signed."""
    votes = [liar.make_vote(Phase.PREVOTE, block_id, key=liar.key) for block_id in (ZERO, make_digest("b"))]
    return make_message(make_evidence(*(replace(vote, voter=net.id("node1")) for vote in votes)))


def _accuse_of_nothing(net: Cluster, liar: Liar) -> Message:
    """Accuses with two votes that may both be signed."""
    votes = [liar.make_vote(Phase.PREVOTE, ZERO, view=view) for view in (0, 1)]
    return make_message(make_evidence(*votes))


async def _replay_old_round(net: Cluster, liar: Liar) -> None:
    """Sends again everything that was received for the height before, as it was signed."""
    for _, message in [*liar.heard]:
        if message.kind is not MessageKind.STATUS:
            liar.send(message, "node0")


def _repeat_parent(net: Cluster, liar: Liar) -> Contribution:
    """Contributes to this height on the block before the last."""
    return liar.make_contribution(prev=net["node0"].get_block(liar.height - 2).id)


# ---- candidates


def _lack_work(net: Cluster, liar: Liar) -> Message:
    """Sends a candidate of difficulty 1, which is below what genesis asks for; any id has enough work for that."""
    block = liar.make_candidate(liar.get_contributions().values(), difficulty=1)
    return _make_short_of(net.genesis.rules.pow.min, liar, block)


def _claim_work(net: Cluster, liar: Liar) -> Message:
    """Sends a candidate with the right difficulty whose id does not have the work."""
    block = liar.make_candidate(liar.get_contributions().values())
    return _make_short_of(block.header.difficulty, liar, block)


def _make_short_of(difficulty: int, liar: Liar, block: Block) -> Message:
    """Returns the candidate with a nonce that does not have the work of this difficulty."""
    chain_id, nonce = liar.net.genesis.chain_id, block.nonce
    seal = codec.compute_seal(chain_id, block.header)
    while work.is_valid_work(codec.compute_block_id(seal, nonce), difficulty):
        nonce += 1
    return make_message(codec.make_block(chain_id, block.header, nonce, block.body, liar.key))


def _aggregate_wrongly(net: Cluster, liar: Liar) -> Block:
    return liar.make_candidate(liar.get_contributions().values(), aggregate=make_digest("wrong"))


def _reach_ahead(net: Cluster, liar: Liar) -> Block:
    return liar.make_candidate(liar.get_contributions().values(), ahead_ms=60_000)


def _go_back(net: Cluster, liar: Liar) -> Block:
    return liar.make_candidate(liar.get_contributions().values(), time_ms=liar.tip.header.time_ms)


def _set_difficulty(net: Cluster, liar: Liar) -> Block:
    return liar.make_candidate(liar.get_contributions().values(), difficulty=2 * liar.tip.next_difficulty)


async def _censor(net: Cluster, liar: Liar) -> None:
    """Censors node0: the liar has itself awaited, so that all settle when it contributes, and has a block without node0
    ready."""
    liar.send(liar.make_status())
    await net.wait_for(lambda: len(liar.get_contributions()) >= 3, "the honest to contribute")
    await asyncio.sleep(4 * net.genesis.rules.waits.delta_s)
    contributions = [liar.make_contribution(), *liar.get_contributions().values()]
    block = liar.make_candidate(c for c in contributions if c.author != net.id("node0"))
    liar.send(contributions[0])
    liar.send(block)


# ---- signed twice


def _double(make: Callable[[Cluster, Liar, int], Contribution | Block | Vote]) -> Act:
    """Returns an act that sends one object to node0, and another for the same slot to node1."""

    async def act(net: Cluster, liar: Liar) -> None:
        await net.wait_for(lambda: len(liar.get_contributions()) >= 3, "the honest to contribute")
        first, second = (make(net, liar, i) for i in range(2))
        liar.send(first, "node0")
        liar.send(second, "node1")
        liar.send(first, "node1")

    return act


# ---- blobs


async def _serve_other_bytes(net: Cluster, liar: Liar) -> None:
    honest = liar.serve
    liar.serve = lambda peer, digest, offset: flip(honest(peer, digest, offset) or b"0", 5)
    liar.send(liar.make_contribution())


async def _serve_without_end(net: Cluster, liar: Liar) -> None:
    liar.serve = lambda peer, digest, offset: bytes(5 << 20)
    liar.send(liar.make_contribution())


async def _serve_nothing(net: Cluster, liar: Liar) -> None:
    liar.serve = lambda peer, digest, offset: None
    liar.send(liar.make_contribution())


def _declare_header(length: int) -> bytes:
    """Returns an encoding whose header claims this length."""
    return length.to_bytes(8, "little") + b"{}" * 40


# ---- floods


def _flood(make: Callable[[Cluster, Liar, int], Contribution | Block | Vote | Message], count: int) -> Act:
    async def act(net: Cluster, liar: Liar) -> None:
        await net.wait_for(lambda: len(liar.get_contributions()) >= 3, "the honest to contribute")
        for i in range(count):
            liar.send(make(net, liar, i), "node0")

    return act


def _make_accusation(net: Cluster, liar: Liar, i: int) -> Message:
    """Accuses itself, truthfully, each time for another height."""
    votes = [liar.make_vote(Phase.PREVOTE, make_digest(text), height=500 + i) for text in "ab"]
    return make_message(make_evidence(*votes))


def _make_garbage(net: Cluster, liar: Liar, i: int) -> Message:
    return Message(MessageKind.VOTE, hashlib.sha256(str(i).encode()).digest() * 5)


EASY = {"pow": {"difficulty": 8, "min": 8, "max": 8, "target_ms": 1}}  # many blocks cost the liar little work

ATTACKS: Mapping[str, Attack] = {
    # visible in the message itself
    "no object at all": Attack(_say(lambda net, liar: Message(MessageKind.VOTE, b"garbage")), Reason.BYTES, True),
    "status that is none": Attack(
        _say(lambda net, liar: Message(MessageKind.STATUS, b"\xff" * 100)), Reason.BYTES, True
    ),
    "status of another chain": Attack(
        _say(lambda net, liar: make_message(liar.make_status(chain_id=make_digest("another")))),
        Reason.OTHER_CHAIN,
        True,
    ),
    "contribution for another chain": Attack(
        _say(lambda net, liar: liar.make_contribution(chain_id=make_digest("another"))), Reason.SIGNATURE, True
    ),
    "contribution in another's name": Attack(_say(_forge_sender), Reason.SIGNATURE, True),
    "vote in another's name": Attack(
        _say(lambda net, liar: replace(liar.make_vote(Phase.PREVOTE, ZERO), voter=net.id("node1"))),
        Reason.SIGNATURE,
        True,
    ),
    "candidate in another's name": Attack(
        _say(
            lambda net, liar: replace(
                liar.make_candidate(liar.get_contributions().values(), miner=net["node1"].key), signature=bytes(64)
            )
        ),
        Reason.SIGNATURE,
        True,
    ),
    "contribution of a stranger": Attack(
        _say(lambda net, liar: liar.make_contribution(key=SigningKey.from_private_bytes(make_digest("stranger")))),
        Reason.STRANGER,
        True,
    ),
    "universal forgery under a small-order key": Attack(_say(_sign_with_identity_point), Reason.STRANGER, True),
    "candidate with another body": Attack(_say(_hang_other_body), Reason.BODY, True),
    "candidate over a bad signature": Attack(_say(_sign_badly), Reason.SIGNATURE, True),
    "candidate without the work": Attack(_say(_claim_work), Reason.WORK, True),
    "candidate below the least difficulty": Attack(
        _say(_lack_work), Reason.WORK, True, settings={"pow": {"difficulty": 64, "min": 64, "max": 64, "target_ms": 1}}
    ),
    "evidence that was never signed": Attack(_say(_accuse_falsely), Reason.EVIDENCE, True),
    "evidence of nothing": Attack(_say(_accuse_of_nothing), Reason.EVIDENCE, True),
    # replayed
    "replay of the round before": Attack(_replay_old_round, Reason.OTHER_HEIGHT),
    "contribution on an older block": Attack(_say(_repeat_parent), Reason.RULE),
    "contribution of a round to come": Attack(
        _say(lambda net, liar: liar.make_contribution(height=liar.height + 5)), Reason.OTHER_HEIGHT
    ),
    # candidates that break a rule
    "wrong aggregate": Attack(_say(_aggregate_wrongly), Reason.AGGREGATE, told="aggregate of height"),
    "clock a minute ahead": Attack(_say(_reach_ahead), Reason.CLOCK, told="its time is 60.0 s ahead"),
    "clock behind the parent's": Attack(_say(_go_back), Reason.RULE),
    "difficulty of its own": Attack(_say(_set_difficulty), Reason.RULE),
    "leaves an honest member out": Attack(
        _censor, Reason.LEAVES_OUT, told="it leaves out node0, in time here", same="chain"
    ),
    # signed twice
    "two contributions": Attack(
        _double(lambda net, liar, i: liar.make_contribution(make_arrays(value=i))),
        Reason.SIGNED_TWICE,
        told="contribution",
        same="chain",
    ),
    "two candidates": Attack(
        _double(lambda net, liar, i: liar.make_candidate(liar.get_contributions().values(), ahead_ms=-i)),
        Reason.SIGNED_TWICE,
        told="candidate",
        same="chain",
    ),
    "two votes": Attack(
        _double(lambda net, liar, i: liar.make_vote(Phase.PREVOTE, (ZERO, make_digest("b"))[i])),
        Reason.SIGNED_TWICE,
        told="vote",
        same="aggregates",  # after the evidence everyone sends a status again
    ),
    # payloads
    **{
        name: Attack(_offer(make), Reason.PAYLOAD, told=told, same="aggregates")  # nobody waits for it any more
        for name, make, told in (
            ("not a number", lambda liar: liar.make_contribution(make_arrays(value=float("nan"))), "finite"),
            ("infinite", lambda liar: liar.make_contribution(make_arrays(value=float("inf"))), "finite"),
            ("wrong shape", lambda liar: liar.make_contribution(make_arrays(dim=DIM + 1)), "prototypes"),
            ("wrong dtype", lambda liar: liar.make_contribution(make_arrays(dtype="float64")), "prototypes"),
            ("pickle", lambda liar: liar.make_contribution(b"\x80\x04pickle"), "prototypes"),
            ("header of 2^31", lambda liar: liar.make_contribution(_declare_header(2**31)), "prototypes"),
            ("header of 2^63", lambda liar: liar.make_contribution(_declare_header(2**63)), "prototypes"),
            ("larger than its kind", lambda liar: liar.make_contribution(size=16 << 20), "expected at most"),
            ("weight of its own", lambda liar: liar.make_contribution(weight=7), "weight"),
        )
    },
    "weight of 2^29 - 1": Attack(_offer(lambda liar: liar.make_contribution(weight=2**29 - 1)), Reason.RULE),
    "blob of other bytes": Attack(_serve_other_bytes, Reason.BLOB, told="its payloads did not come"),
    "blob without end": Attack(_serve_without_end, Reason.BLOB, told="its payloads did not come"),
    "blob that nobody has": Attack(_serve_nothing, None, told="its payloads did not come"),
    # votes
    "vote for view 2^31": Attack(
        _say(lambda net, liar: liar.make_vote(Phase.PRECOMMIT, make_digest("b"), view=2**31)), None
    ),
    # floods
    "flood of good votes": Attack(
        _flood(lambda net, liar, i: liar.make_vote(Phase(1 + i % 2), make_digest(str(i)), view=i // 2), 600),
        Reason.RATE,
    ),
    "flood of one vote": Attack(
        _flood(lambda net, liar, i: liar.make_vote(Phase.PREVOTE, make_digest("b"), view=3), 600), None
    ),
    "flood of contributions": Attack(
        _flood(lambda net, liar, i: liar.make_contribution(height=liar.height + 1, prev=make_digest(str(i))), 200),
        Reason.NO_ROOM,
    ),
    "flood of candidates": Attack(
        _flood(
            lambda net, liar, i: liar.make_candidate(
                liar.get_contributions().values(), aggregate=make_digest("wrong"), ahead_ms=-i
            ),
            60,
        ),
        Reason.NO_ROOM,
        told="aggregate of height",
        same="aggregates",
        settings=EASY,
    ),
    "flood of evidence far away": Attack(_flood(_make_accusation, 200), Reason.OTHER_HEIGHT),
    "flood of garbage": Attack(_flood(_make_garbage, 200), Reason.BYTES, True),
}
