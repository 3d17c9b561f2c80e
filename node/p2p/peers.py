"""The peers as this node knows them: which are up, the last status of each, and whether a quorum is in sight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from chain.block import Id
from chain.signing import encode_id
from chain.state import State
from node.clock import Clock
from node.errors import InvalidRequest, NotFound
from node.p2p.admission import Admission, Role
from node.p2p.overlay import MESH_MAX
from node.p2p.refusals import Reason, Refusals, count_faults
from node.p2p.status import Status

MIN_PREFIX_CHARS = 4  # shortest beginning of an id that may stand for the whole id
ALL_TOLD = 8  # up to so many other members each status goes to all of them
FEW_TOLD = 4  # of more members, each status goes to at least so many
LONGEST_CYCLE = 8  # statuses until each other member has received one
MISSED = 4  # missed statuses after which a connected member no longer counts as alive
NEIGHBOURS_CYCLE = 4  # statuses until each neighbour has received one, where members have neighbours (`overlay`)
FAR = 3.0  # times as long until a member that is no neighbour counts as gone: its signs of life are relayed
A_MOMENT_S = 0.05  # at least between two checks of who is in sight
JUST_AFTER_S = 0.01  # added to a wait for silence, so that it is over then
UNKNOWN_AGE = 255  # the age of a member without a known sign of life


def compute_cycle(num_members: int) -> int:
    """Returns in how many statuses each other member receives one: a status goes to every n-th member. If each status
    went to all members, that would be n^2 messages a second."""
    others = num_members - 1
    return 1 if others <= ALL_TOLD else min(LONGEST_CYCLE, -(-others // FEW_TOLD))


def compute_silence_s(state: State, cycle: int | None = None) -> float:
    """Returns after how many seconds without a message a connected member no longer counts as alive."""
    return (MISSED - 1 + (compute_cycle(state.n) if cycle is None else cycle)) * state.rules.waits.status_s


@dataclass(slots=True)
class Peer:
    """Describes one remote participant. `seen_s` is the steady-clock time of its last message, -inf before the first.
    `refusals` counts what the services refused of it; the transport counts its own refusals. `heard_s` is the time of
    its newest sign of life that came through others."""

    id: Id
    name: str
    role: Role
    connected: bool = False
    num_statuses: int = 0  # since it came up
    seen_s: float = float("-inf")
    heard_s: float = float("-inf")
    status: Status | None = None
    refusals: Refusals = field(default_factory=Refusals)

    @property
    def is_member(self) -> bool:
        return self.role is Role.MEMBER

    @property
    def num_rejected(self) -> int:
        return count_faults(self.refusals)


class Peers:
    """Lists the peers: every other member, and the observers and guests that may connect. Up to `mesh_max` members each
    is connected with all others, as far as possible; above, with its neighbours (`overlay`)."""

    def __init__(self, state: State, me: Id, clock: Clock, mesh_max: int = MESH_MAX) -> None:
        self._me = me
        self._mesh_max = mesh_max
        self._clock = clock
        self._guests: Mapping[Id, str] = {}
        self._peers: dict[Id, Peer] = {}
        self._names: dict[Id, str] = {}
        self.connected_members = 0  # bit i: the member of index i
        self._reach_changed = asyncio.Event()
        self.on_state(state)

    def on_state(self, state: State) -> None:
        """Updates the book to a new state in force: members that joined or left, and changed keys."""
        self._state = state
        self._names |= {member.key: member.name for member in state.members}  # names of members that have left stay
        self.is_meshed = state.n <= self._mesh_max or state.index_of(self._me) is None
        self.cycle = compute_cycle(state.n) if self.is_meshed else NEIGHBOURS_CYCLE
        self.silence_s = compute_silence_s(state, self.cycle)
        self._write()

    def on_guests(self, guests: Mapping[Id, str]) -> None:
        """Replaces the guests, the keys that may connect besides members and observers, with their names."""
        self._guests = guests
        self._write()

    def _write(self) -> None:
        names = {member.key: member.name for member in self._state.members}
        names |= {observer.key: observer.name for observer in self._state.observers}
        names = {**self._guests, **names}
        observers = [observer.key for observer in self._state.observers]
        roles = Admission(self._state.member_ids, observers, self._guests).get_roles()
        roles.pop(self._me, None)
        book = {}
        for key, role in sorted(roles.items(), key=lambda entry: (-entry[1].value, entry[0])):  # members come first
            peer = book[key] = self._peers.get(key) or Peer(key, names[key], role)
            peer.name, peer.role = names[key], role  # also of a guest that joins: its connection stays
        self._peers = book
        self._note_connected()

    @property
    def my_role(self) -> Role:
        """Returns this node's own role in the state that it has."""
        if self._state.index_of(self._me) is not None:
            return Role.MEMBER
        is_observer = any(observer.key == self._me for observer in self._state.observers)
        return Role.OBSERVER if is_observer else Role.NONE

    def __repr__(self) -> str:
        up = sum(peer.connected for peer in self)
        return f"Peers(known={len(self._peers)}, up={up})"

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def get(self, peer: Id) -> Peer | None:
        return self._peers.get(peer)

    def get_name(self, key: Id) -> str:
        """Returns the name of a member, this one included; for a stranger the start of its key."""
        return self._names.get(key) or encode_id(key)[:8]

    def find(self, text: str) -> Peer:
        """Returns the peer of this name or id. Raises NotFound, and InvalidRequest if there are several or the text is
        only the beginning of an id."""
        found = [peer for peer in self if text in (encode_id(peer.id), peer.name)]
        if not found and (begun := self._find_begun(text)):
            told = ", ".join(f"{peer.name} {encode_id(peer.id)}" for peer in begun)
            raise InvalidRequest(f"peer {text!r}: expected a name or a whole id; so begins that of {told}")
        return self._choose(text, found)

    def look_up(self, text: str) -> Peer:
        """Returns the peer of this name, id or beginning of an id, for commands that change nothing. Raises NotFound,
        and InvalidRequest if there are several."""
        found = [peer for peer in self if text in (encode_id(peer.id), peer.name)]
        return self._choose(text, found or self._find_begun(text))

    def _find_begun(self, text: str) -> list[Peer]:
        """Returns the peers whose ids begin with the text; none for fewer than MIN_PREFIX_CHARS characters."""
        is_enough = len(text) >= MIN_PREFIX_CHARS
        return [peer for peer in self if is_enough and encode_id(peer.id).startswith(text)]

    def _choose(self, text: str, found: Sequence[Peer]) -> Peer:
        if not found:
            known = ", ".join(f"{peer.name} {encode_id(peer.id)[:8]}" for peer in self) or "nobody"
            raise NotFound(f"peer {text!r}: expected the id or the name of a peer; this node knows {known}")
        if len(found) > 1:
            raise InvalidRequest(f"peer {text!r}: {len(found)} peers are called so; expected an id")
        return found[0]

    def on_up(self, peer: Id) -> None:
        self._set_connected(peer, True)

    def on_down(self, peer: Id) -> None:
        self._set_connected(peer, False)

    def _set_connected(self, peer: Id, connected: bool) -> None:
        entry = self._peers.get(peer)
        if entry is not None:  # the transport refuses strangers
            entry.connected, entry.num_statuses = connected, 0
            self._note_connected()

    def _note_connected(self) -> None:
        """Keeps the connected members as a bitmap: every status needs it, and must not loop over all members."""
        flags = (self.is_connected(member) << index for index, member in enumerate(self._state.member_ids))
        self.connected_members = sum(flags)

    def on_status(self, peer: Id, status: Status) -> None:
        entry = self._peers[peer]
        if entry.is_member and (entry.status is None or entry.status.reaches != status.reaches):
            self._reach_changed.set()
            self._reach_changed = asyncio.Event()
        entry.status = status
        entry.num_statuses += 1
        if not self.is_meshed and entry.is_member:
            self._hear(status.ages)

    def _hear(self, ages: bytes) -> None:
        """Notes the signs of life that a neighbour reports. Each relay adds one to an age, so that a false report that
        circulates dies out.

        A neighbour that lies makes an absent member look alive: see `get_relays`.
        """
        status_s, now_s = self._state.rules.waits.status_s, self._clock.monotonic()
        for member, age in zip(self._state.member_ids, ages, strict=False):
            if age != UNKNOWN_AGE and (entry := self._peers.get(member)) is not None:
                entry.heard_s = max(entry.heard_s, now_s - (age + 1) * status_s)

    def on_sign(self, member: Id) -> None:
        """Notes a sign of life of a member: something new that it has signed for the height in hand, or the next."""
        if not self.is_meshed and (entry := self._peers.get(member)) is not None:
            entry.heard_s = self._clock.monotonic()

    def get_ages(self) -> bytes:
        """Returns the age of each member's newest sign of life, one byte each, in multiples of `status_s`; empty where
        all members are connected with each other."""
        if self.is_meshed:
            return b""
        status_s, now_s = self._state.rules.waits.status_s, self._clock.monotonic()
        ages = bytearray()
        for member in self._state.member_ids:
            entry = self._peers.get(member)
            newest_s = now_s if entry is None else self._get_heard_s(entry)
            ages.append(int(min(UNKNOWN_AGE, (now_s - newest_s) / status_s)))
        return bytes(ages)

    @staticmethod
    def _get_heard_s(peer: Peer) -> float:
        return max(peer.heard_s, peer.seen_s)

    def on_seen(self, peer: Id) -> None:
        self._peers[peer].seen_s = self._clock.monotonic()

    def refuse(self, peer: Id, reason: Reason) -> None:
        """Counts that something of `peer`, or signed by it, was refused."""
        entry = self._peers.get(peer)
        if entry is not None:  # the book does not hold this node itself
            entry.refusals[reason] += 1

    def is_connected(self, peer: Id) -> bool:
        entry = self._peers.get(peer)
        return entry is not None and entry.connected

    def is_guest(self, peer: Id) -> bool:
        """Says whether the peer is a guest: it receives changes, and nothing of rounds."""
        entry = self._peers.get(peer)
        return entry is not None and entry.role is Role.GUEST

    def is_alive(self, peer: Id) -> bool:
        """Says whether a message of the peer came within the last few statuses."""
        entry = self._peers.get(peer)
        return entry is not None and self._clock.monotonic() - entry.seen_s < self.silence_s

    def is_level(self, peer: Id, height: int) -> bool:
        """Says whether the peer is alive, and by its last status had all blocks below this height."""
        entry = self._peers.get(peer)
        status = None if entry is None else entry.status
        return self.is_alive(peer) and status is not None and status.head_height >= height - 1

    async def until_sight_may_change(self, most_s: float) -> None:
        """Returns when the next live peer counts as silent, if it sends nothing meanwhile, or when a member reports new
        connections. It waits `most_s` seconds at most, and A_MOMENT_S at least: a member may report as often as it
        likes."""
        now_s, reach_changed = self._clock.monotonic(), self._reach_changed
        left = (peer.seen_s + self.silence_s - now_s for peer in self)
        next_s = min((left_s for left_s in left if left_s > 0), default=most_s)
        await asyncio.sleep(A_MOMENT_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(most_s, next_s + JUST_AFTER_S) - A_MOMENT_S)):
                await reach_changed.wait()

    # ---- through relays

    def get_relays(self, member: Id) -> list[Peer]:
        """Returns the live peers that report a connection with `member`: what it signs comes through them.

        A peer that lies makes an absent member look alive. Others then wait for that member as long as its credit
        lasts, but the lie forges nothing that a member has to sign.
        """
        index = self._state.index_of(member)
        if index is None:
            return []
        return [
            peer
            for peer in self
            if peer.status is not None
            and peer.status.reaches >> index & 1
            and peer.is_member
            and peer.connected
            and peer.id != member
            and self.is_alive(peer.id)
        ]

    def is_settled(self, peer: Id) -> bool:
        """Says whether the peer has reported all its connections: its first status, when many come up at once, does
        not."""
        entry = self._peers.get(peer)
        return entry is not None and entry.connected and entry.num_statuses > 1

    def is_in_sight(self, member: Id) -> bool:
        """Says whether a sign of life of the member came lately, to this node or to a peer of it; with many members, to
        any of them."""
        return self.is_alive(member) or self.is_reached(member)

    def is_reached(self, member: Id) -> bool:
        """Says whether others report signs of life of the member."""
        if self.is_meshed:
            return bool(self.get_relays(member))
        entry = self._peers.get(member)
        return entry is not None and self._clock.monotonic() - entry.heard_s < FAR * self.silence_s

    def get_word(self, member: Id, height: int) -> bool | None:
        """Says whether a member contributes at a height: by its own status or, where it is not connected here, by the
        statuses of others; None where nobody knows.

        One report that it contributes is enough, while its absence needs the reports of all: so a single liar has no
        member left out that an honest peer is connected with.
        """
        if self.is_connected(member):
            return _get_word(self._peers[member].status, height)
        index = self._state.index_of(member)
        if index is None:
            return None
        if not self.is_meshed:
            return self._get_far_word(index, height)
        told = [relay.status for relay in self.get_relays(member) if relay.status is not None]
        if any(status.height == height and status.contributing >> index & 1 for status in told):
            return True
        abstains = bool(told) and all(status.height == height and status.abstaining >> index & 1 for status in told)
        return False if abstains else None

    def _get_far_word(self, index: int, height: int) -> bool | None:
        """Says whether a member contributes at a height, by reports through any number of members. That it abstains is
        believed only of the member itself and its neighbours: elsewhere nobody would know who made it up."""
        told = (peer.status for peer in self._list_connected() if peer.is_member and self.is_alive(peer.id))
        heard = any(status.height == height and status.contributing >> index & 1 for status in told if status)
        return True if heard else None

    def list_members_of_few(self, most: int) -> list[Id]:
        """Returns the connected members that report at most `most` connections, unless the reports of others here
        contradict them. A member that is connected with everybody, and reports few connections, would otherwise be sent
        everything by all."""
        members = [(peer.id, peer.status) for peer in self._list_connected() if peer.is_member and peer.status]
        few = [member for member, status in members if status.reaches.bit_count() <= most]
        told = [status.reaches for member, status in members if self.is_alive(member)]
        return [member for member in few if not self._is_reached_by_many(member, told, most)]

    def _is_reached_by_many(self, member: Id, told: Sequence[int], most: int) -> bool:
        """Says whether more than half of the members here report a connection with this member, and more than `most` /
        2. A member with few connections has few with anybody's neighbours."""
        index = self._state.index_of(member)
        count = 0 if index is None else sum(reaches >> index & 1 for reaches in told)
        return count > max(most, len(told)) // 2

    def _list_connected(self) -> list[Peer]:
        return [peer for peer in self if peer.connected]

    def get_reach(self, height: int) -> tuple[int, int, int]:
        """Returns three bitmaps of members: those that are connected and alive, and of these the ones that report that
        they contribute at this height, and that they do not. With many members the second also has those that others
        report."""
        if not self.is_meshed:
            return self._get_far_reach(height)
        reaches = contributing = abstaining = 0
        for index, member in enumerate(self._state.member_ids):
            if self.is_connected(member) and self.is_alive(member):
                word = _get_word(self._peers[member].status, height)
                reaches |= 1 << index
                contributing |= (word is True) << index
                abstaining |= (word is False) << index
        return reaches, contributing, abstaining

    def _get_far_reach(self, height: int) -> tuple[int, int, int]:
        reaches = contributing = abstaining = 0
        for peer in self._list_connected():
            index = self._state.index_of(peer.id)
            if index is None or not self.is_alive(peer.id):
                continue
            word = _get_word(peer.status, height)
            reaches |= 1 << index
            contributing |= (word is True) << index
            abstaining |= (word is False) << index
            if peer.status is not None and peer.status.height == height:
                contributing |= peer.status.contributing
        mine = self._state.index_of(self._me)
        return reaches, contributing & ~abstaining & ~(0 if mine is None else 1 << mine), abstaining

    def count_alive_members(self) -> int:
        """Returns how many members are alive as far as this node knows, itself included if it is one."""
        is_member = self._state.index_of(self._me) is not None
        return is_member + sum(peer.is_member and self.is_in_sight(peer.id) for peer in self)

    def describe_stall(self) -> str | None:
        """Returns the reason why nothing can be finalised now, or None while a quorum is in sight."""
        alive, quorum = self.count_alive_members(), self._state.q
        if alive >= quorum:
            return None
        missing = ", ".join(sorted(peer.name for peer in self if peer.is_member and not self.is_in_sight(peer.id)))
        return f"{alive} of {self._state.n} members in sight, {quorum} needed; missing {missing}"

    def describe_lag(self, height: int) -> str | None:
        """Returns how far a chain of this height lags behind the members, or None. One block does not count: it is
        about to come."""
        reached = self.get_reached_height()
        if reached <= height + 1:
            return None
        return f"catching up: at height {height} of {reached}"

    def get_reached_height(self) -> int:
        """Returns the height that the chain has certainly reached: so many members report it that at least one of them
        does not lie. 0 where too few report."""
        heights = sorted(
            (
                peer.status.head_height
                for peer in self
                if peer.is_member and peer.status is not None and self.is_alive(peer.id)
            ),
            reverse=True,
        )
        num_liars = self.count_liars(len(heights))
        return heights[num_liars] if len(heights) > num_liars else 0

    def count_liars(self, num_told: int) -> int:
        """Returns how many of `num_told` reporting members may lie. Of neighbours, a third at most."""
        return self._state.n - self._state.q if self.is_meshed else num_told // 3


def _get_word(status: Status | None, height: int) -> bool | None:
    """Says whether a peer contributes at a height, by its own status; None where that does not say."""
    if status is None or status.height != height or not (status.contributes or status.abstains):
        return None
    return status.contributes
