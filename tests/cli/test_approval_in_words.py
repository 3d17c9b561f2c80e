"""The words in which `fednode approve` speaks of a change."""

from __future__ import annotations

import pytest

from node.cli.federation.proposals import describe_missing, describe_outcome
from node.pb import admin_pb2 as pb


@pytest.mark.parametrize(
    ("unanswered", "said"),
    [
        (("b", "c"), "1 more that will train"),
        ((), "1 more that will train, and too few are left to answer"),
    ],
)
def test_a_run_that_too_few_will_train_in_is_told_so(unanswered: tuple[str, ...], said: str) -> None:
    assert describe_missing(pb.Missing(training=1, unanswered=unanswered)) == said


@pytest.mark.parametrize(
    ("proposal", "said"),
    [
        (pb.ProposalView(open=True, missing=pb.Missing(nothing=True)), "it will be in the next block"),
        (pb.ProposalView(open=True, missing=pb.Missing(training=1, unanswered=["b"])), "it still lacks 1 more that"),
        (pb.ProposalView(open=False, missing=pb.Missing(nothing=True)), "it was executed before, so this is for this"),
    ],
)
def test_what_comes_of_an_approval(proposal: pb.ProposalView, said: str) -> None:
    assert describe_outcome(proposal).startswith(said)
