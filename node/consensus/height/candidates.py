"""The candidates of one height: which this node keeps, which are acceptable in view 0, and which it holds back from the
vote for some time (PROTOCOL §3, §4).

A block is never refused for its time. Clocks are set, and two members could lock on a block that a third refuses for
ever. The block is held, and judged again later.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from chain.block import Block, Id
from chain.state import State
from node.consensus.height.actions import CandidateRefused, Now, Objection
from node.consensus.height.collecting import Collecting
from node.p2p.refusals import Reason

FUTURE_MS = 2_000  # how far a candidate's time may be ahead of the clock to be acceptable in view 0 (PROTOCOL §3)
EARLY_MS = 10_000  # how far to be valid: a candidate further ahead is held until its time comes, never refused
LOOK_S = 1.0  # the longest time until held candidates are judged again: clocks are set
OUTDONE = Objection(None, "another candidate leaves out fewer")
MAX_CANDIDATES_PER_MINER = 2  # the second is evidence (I6); more only if votes name them


class Candidates:
    """Keeps and judges the candidates of one height for one member. `parent_ms` is the time of the parent block."""

    def __init__(self, state: State, parent_ms: int) -> None:
        self.blocks: dict[Id, Block] = {}
        self.recomputed: set[Id] = set()  # valid, once their time has come
        self.early: set[Id] = set()  # of these, those that may become acceptable with time
        self._hasty: set[Id] = set()  # of these, those whose miner did not wait for members that this node awaits
        self.refusals: dict[Id, CandidateRefused] = {}
        self.objections: dict[Id, Objection] = {}  # why a block is not prevoted in view 0, or at all
        self._state = state
        self._parent_ms = parent_ms
        self._first_seen_s: dict[Id, float] = {}
        self._ripe_at_s: dict[Id, float] = {}  # when a block that was held may be voted on
        self._wanted: set[Id] = set()  # blocks that votes name
        self._look_at_s = inf  # when early blocks are judged again
        self._first_s: float | None = None  # when the first acceptable candidate arrived
        self._last_s = 0.0  # when the newest valid candidate arrived

    # ---- which candidates are kept

    def has_room_for(self, block: Block, coming: Collection[Id] = ()) -> bool:
        """Says whether a block may be kept: two of each miner (I6), and any block that votes name. Without the latter,
        a miner that made three blocks could leave this node without the one that others are locked on. Votes name one
        proposal a view, so there are few. `coming` are ids of blocks of the same miner that count as kept."""
        if block.id in self._wanted:
            return True
        rivals = {other.id for other in self.blocks.values() if other.header.miner == block.header.miner}
        return len(rivals.union(coming)) < MAX_CANDIDATES_PER_MINER

    def find_rival(self, block: Block) -> Block | None:
        """Returns another block of the same miner, which is evidence together with this one; None if there is none."""
        return next((other for other in self.blocks.values() if other.header.miner == block.header.miner), None)

    def want(self, block_id: Id) -> bool:
        """Notes that votes name a block. Returns whether it has to be requested."""
        self._wanted.add(block_id)
        return block_id not in self.blocks

    def refuse(self, refusal: CandidateRefused) -> None:
        """Notes that a block does not fit what was recomputed, or cannot be judged here."""
        self.objections[refusal.block.id] = Objection(refusal.kind, refusal.reason)
        self.refusals[refusal.block.id] = refusal

    # ---- which candidates are acceptable

    def judge(self, block: Block, collecting: Collecting, view: int, now: Now) -> Objection | None:
        """Returns this node's objection to a valid block in view 0, None if it is acceptable. Its time must not be
        ahead of the clock, and it must not leave out an author whose payloads were here in good time. A block is held
        for a while if its miner alone knew the body, or if it leaves out an author that is here or is still awaited."""
        self.objections.pop(block.id, None)  # its blobs may have arrived since, or its time may have come
        self.early.discard(block.id)
        self._hasty.discard(block.id)
        objection = self._hold_hasty(block, collecting, view, now) or self._find_objection(block, collecting, now)
        if objection is not None:
            self.objections[block.id] = objection
            if objection.kind is Reason.CLOCK or now.monotonic_s < self._ripe_at_s.get(block.id, -inf):
                self.early.add(block.id)
        return objection

    def _hold_hasty(self, block: Block, collecting: Collecting, view: int, now: Now) -> Objection | None:
        """Keeps a block out of the vote of view 0 until this node has waited for contributions as well, `collect_s` at
        most. Otherwise a miner that does not wait for slow members would win every block, and no block would have their
        contributions."""
        until_s = self._first_seen_s.setdefault(block.id, now.monotonic_s) + collecting.collect_s
        awaited = collecting.find_not_awaited(block)
        if not awaited or now.monotonic_s >= until_s:
            return None
        if view == 0:
            self._hasty.add(block.id)
        self._ripe_at_s[block.id] = until_s
        return Objection(None, f"held while {self._name(awaited)} may come: its miner did not wait")

    def _find_objection(self, block: Block, collecting: Collecting, now: Now) -> Objection | None:
        ahead_ms = block.header.time_ms - max(now.wall_ms, self._parent_ms + 1)
        if ahead_ms > FUTURE_MS:
            return Objection(Reason.CLOCK, f"its time is {ahead_ms / 1000:.1f} s ahead of the clock here")
        if collecting.lacks_given(block):
            return Objection(Reason.LEAVES_OUT, "it has too few inputs for a sum, and more are to come")
        missing = collecting.find_left_out(block, now)
        if not missing:
            return self._hold(block, collecting, now)
        return Objection(Reason.LEAVES_OUT, f"it leaves out {self._name(missing)}, in time here")

    def _name(self, keys: Collection[Id]) -> str:
        return ", ".join(member.name for member in self._state.members if member.key in keys)

    def _hold(self, block: Block, collecting: Collecting, now: Now) -> Objection | None:
        """Returns an objection to a block that is to be held for now; later None, or OUTDONE if a better one has
        arrived. Its miner may have had the body to itself: then the others get as much time to mine on it. Or it leaves
        out an author that is here: then a block that leaves out none gets 2 Delta to arrive."""
        begun_s = max(self._first_seen_s.setdefault(block.id, now.monotonic_s), collecting.cutoff_s or -inf)
        equal_at_s, is_short = collecting.find_equal_at_s(block) or -inf, collecting.is_short(block)
        whole_at_s = begun_s + 2 * self._state.rules.waits.delta_s if is_short else -inf
        self._ripe_at_s[block.id] = max(equal_at_s, whole_at_s)
        if now.monotonic_s >= self._ripe_at_s[block.id]:
            is_outdone = is_short and not all(map(collecting.is_short, self.get_acceptable()))
            return OUTDONE if is_outdone else None
        why = "its miner alone knew the body for a while" if equal_at_s > whole_at_s else "another may leave out fewer"
        return Objection(None, f"held for {self._ripe_at_s[block.id] - now.monotonic_s:.3f} s more: {why}")

    def is_held(self, block: Block, now: Now) -> bool:
        """Says whether a block is kept out of the vote for now."""
        return block.id in self._hasty or self._is_ahead(block, now)

    def _is_ahead(self, block: Block, now: Now) -> bool:
        """Says whether the time of a block is too far ahead for the block to be valid yet. The lowest time that the
        parent allows is always valid."""
        time_ms = block.header.time_ms
        return time_ms > self._parent_ms + 1 and time_ms > now.wall_ms + EARLY_MS

    def plan_look(self, block: Block, now: Now) -> float | None:
        """Returns after how many seconds an early block has to be judged again; None if that happens sooner anyway."""
        limit_ms = EARLY_MS if self._is_ahead(block, now) else FUTURE_MS
        ahead_s = (block.header.time_ms - limit_ms - now.wall_ms) / 1000
        after_s = min(LOOK_S, max(ahead_s, self._ripe_at_s.get(block.id, -inf) - now.monotonic_s))
        if now.monotonic_s + after_s >= self._look_at_s:
            return None
        self._look_at_s = now.monotonic_s + after_s
        return after_s

    def take_early(self) -> list[Block]:
        """Returns the early blocks, which are to be judged again now."""
        self._look_at_s = inf
        return [self.blocks[block_id] for block_id in sorted(self.early)]

    def release_hasty(self) -> bool:
        """Releases the blocks that were held because their miner did not wait. Returns whether there were any."""
        were_held = bool(self._hasty)
        self._hasty.clear()
        return were_held

    def outdo(self, collecting: Collecting) -> list[Block]:
        """Returns the blocks that are no longer acceptable because another acceptable one leaves out fewer authors."""
        acceptable = self.get_acceptable()
        short = [block for block in acceptable if collecting.is_short(block)]
        if len(short) == len(acceptable):
            return []
        self.objections |= {block.id: OUTDONE for block in short}
        return short

    def get_acceptable(self) -> list[Block]:
        """Returns the valid blocks without an objection, in order of their ids."""
        return [self.blocks[block_id] for block_id in sorted(self.recomputed) if block_id not in self.objections]

    # ---- how far apart candidates arrive

    def note_arrival(self, now: Now, *, acceptable: bool) -> bool:
        """Notes when a valid candidate arrived. Returns whether it is the first acceptable one."""
        self._last_s = now.monotonic_s
        if not acceptable or self._first_s is not None:
            return False
        self._first_s = now.monotonic_s
        return True

    @property
    def apart_s(self) -> float | None:
        """Returns the seconds between the first acceptable candidate and the newest valid one; None if none was
        acceptable."""
        return None if self._first_s is None else max(0.0, self._last_s - self._first_s)

    def __repr__(self) -> str:
        return f"<Candidates: {len(self.blocks)}, {len(self.recomputed)} valid, {len(self.objections)} objected to>"
