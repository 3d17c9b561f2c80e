"""A node's own standing, as it says it, by the state in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from chain.proposals import Proposals
from chain.state import Observer
from chain.store.sqlite import SqliteStore
from node.consensus.standing import Standing
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain

*MEMBERS, OBSERVER, STRANGER = make_keys(5)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (MEMBERS[0], None),
        (OBSERVER, "an observer: follows the chain, and signs nothing"),
        (STRANGER, "no member: signs nothing, and follows the chain once members have agreed to its join request"),
    ],
    ids=["member", "observer", "stranger"],
)
def test_who_waits_to_be_let_in_is_told_what_it_waits_for(tmp_path: Path, key: Any, said: str | None) -> None:
    chain = LivingChain(make_genesis(MEMBERS), MEMBERS)
    state = replace(chain.state, observers=(Observer(OBSERVER.id, "registry"),))
    with SqliteStore.open(tmp_path, chain.genesis) as store:
        standing = Standing(key.id, state, Proposals(chain.tip), store, cast(Any, None))
        assert standing.describe() == said
