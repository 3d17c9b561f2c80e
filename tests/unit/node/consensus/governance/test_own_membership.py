"""A node's own standing, as it says it, by the state in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chain.changes.members import RemoveMember, ReplaceKey
from chain.proposals import Proposals
from chain.signing import encode_id
from chain.state import Observer
from chain.store.sqlite import SqliteStore
from node.consensus.governance.own_membership import OwnMembership
from node.events import Events
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
        own_membership = OwnMembership(key.id, state, Proposals(chain.tip), store, cast(Any, None))
        assert own_membership.describe() == said


@pytest.mark.parametrize("kind", [RemoveMember(0), ReplaceKey(0, STRANGER.id)], ids=["removed", "replaced"])
def test_whose_seat_has_another_key_is_not_told_that_it_was_removed(tmp_path: Path, kind: Any) -> None:
    """A thief of its key may have done that."""
    chain = LivingChain(make_genesis(MEMBERS), [*MEMBERS, STRANGER])
    with SqliteStore.open(tmp_path, chain.genesis) as store:
        own_membership = OwnMembership(
            MEMBERS[0].id,
            chain.state,
            Proposals(chain.tip),
            store,
            Events(cast(Any, SimpleNamespace(now_ms=lambda: 0))),
        )
        chain.add_change(kind)
        own_membership.on_state(chain.state)
        said = own_membership.describe() or ""
    assert said.startswith("removed at height 1: signs" if isinstance(kind, RemoveMember) else "replaced at height 1: ")
    assert ("fednode key replace node0 REQUEST" in said) is isinstance(kind, ReplaceKey)
    assert (encode_id(STRANGER.id) in said) is isinstance(kind, ReplaceKey)
