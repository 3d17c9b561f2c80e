"""A world in which one liar has more hashing power than all others and takes every height for another key of its own.

A rotation needs nobody's consent and, as any change, no authors: its block is acceptable at once. So it can stand
against a removal that all have approved.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from chain.block import ApprovedChange
from chain.changes.change import Change, read_change
from chain.changes.members import RemoveMember, ReplaceKey
from chain.state import State
from support.faults.changing_world import ChangingWorld
from support.faults.dossiers import Dossier, approve
from support.faults.height_stage import HeightStage
from support.faults.plans import Fate, Kind, Plan, Step

LIAR = 3
SLOW_S = 300.0  # the time in which an honest member mines a block, on average


class StarvingWorld(ChangingWorld):
    """A federation of four members that vote to remove the last, which resists."""

    def __init__(self, seed: int, *, target: int) -> None:
        removal = Step(Kind.REMOVE, proposer=0, at=0, site=LIAR)
        fates = (*[Fate.LIVE] * 3, Fate.LYING)
        super().__init__(seed, 4, 1, plan=Plan(4, "bft", fates, (removal,), target), calm=True)
        self.temper = replace(self.temper, mining_s=SLOW_S)

    def get_stage(self, height: int) -> HeightStage:
        is_new = height not in self._stages
        stage = super().get_stage(height)
        if is_new and self._find_liar(stage) is not None:
            self._begin_rotation(stage)
            self.time.schedule(0.0, partial(self._take_height, stage))
        return stage

    def make_change(self, step: Step, state: State, height: int) -> Change | None:
        change = super().make_change(step, state, height)
        return None if change is None else replace(change, expires=height + 1000)

    def draw_opinion(self, change: Change) -> bool:
        """Returns the operators' opinion: all want the liar removed; nobody approves a key of its own."""
        return isinstance(change.kind, RemoveMember)

    def _begin_rotation(self, stage: HeightStage) -> None:
        """Starts a rotation to yet another key, which is ready at once."""
        state, made = stage.state, stage.height - 1
        old = next(key for key in self.get_keys(LIAR) if state.index_of(key) is not None)
        member = state.get_member(old)
        assert member is not None
        new = self._add_key(LIAR)
        change = Change(ReplaceKey(member.seat, new), member.seat, made, made + 1, made + 1000)
        change_id = change.compute_id(self.chain_id)
        self._tell_all(Dossier(change_id, change, (approve(change_id, old),)), old)
        self._claim_ready(change_id, change, new)

    def choose_change(self, stage: HeightStage, address: int) -> ApprovedChange | None:
        if address != LIAR:
            return super().choose_change(stage, address)
        complete = self._rumours.find_complete(stage.state, stage.height, self.history.get_block_id)
        rotations = (approved for _, approved in complete if isinstance(read_change(approved.change).kind, ReplaceKey))
        return next(rotations, None)

    def _find_liar(self, stage: HeightStage) -> int | None:
        keys = self.get_keys(LIAR)
        return next((index for index, key in enumerate(stage.members) if key in keys), None)

    def _take_height(self, stage: HeightStage) -> None:
        index = self._find_liar(stage)
        if index is not None and self.choose_change(stage, LIAR) is not None:
            block_id = stage.make_block(index)
            for target in range(len(stage.members)):
                if target != index:
                    stage.post(index, target, block_id)
