"""The reason why a node has no worker yet, for its operator."""

from __future__ import annotations

from node.training.learner import Learner


def describe_unready(learner: Learner) -> str | None:
    """None where the worker is ready. While it starts, why the one before died stands beside that."""
    if learner.info is not None:
        return None
    if learner.failure is not None:
        return learner.failure
    doing = learner.work or "there is no run yet that this node may train in"
    death = learner.last_death
    return f"the worker is not ready yet: {doing}" + ("" if death is None else f"; the one before died: {death}")
