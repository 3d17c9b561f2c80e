"""Run specs for parts that are tested alone: one spec at all heights of a genesis, whatever its method."""

from __future__ import annotations

from chain.calendar import Calendar, Span
from chain.genesis import Genesis
from ml.specs import MethodSpec
from node.runs.specs import RunRound, RunSpecs


class FixedSpecs(RunSpecs):
    def __init__(self, genesis: Genesis, spec: MethodSpec) -> None:
        super().__init__(Calendar([(0, genesis.state)]))
        self._spec = spec

    def _get_spec(self, span: Span) -> MethodSpec:
        return self._spec


def find_round(runs: RunSpecs, height: int) -> RunRound:
    """Returns the round at a height, which has to be a round's."""
    found = runs.find(height)
    assert found is not None, f"height {height} is no round"
    return found
