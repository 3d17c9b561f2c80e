"""Signing after a data directory was put back from a backup: none until two heights have passed without this node."""

from __future__ import annotations

from node.consensus.signing.restored import Restored


def test_a_node_that_was_not_put_back_is_not_silent() -> None:
    restored = Restored(None)
    assert not restored.is_silent_at(1)
    assert restored.describe() is None
    assert not restored.on_tip(7, is_caught_up=True)
    assert restored.to_meta() is None


def test_it_is_silent_until_it_has_caught_up_and_two_heights_have_passed() -> None:
    restored = Restored({"until": None})
    assert not restored.on_tip(40, is_caught_up=False)
    assert restored.is_silent_at(41)
    assert restored.is_silent_at(10**6)
    assert restored.on_tip(100, is_caught_up=True)
    assert restored.to_meta() == {"until": 102}
    assert [restored.is_silent_at(height) for height in (101, 102, 103)] == [True, True, False]
    assert not restored.on_tip(101, is_caught_up=True)
    assert restored.on_tip(102, is_caught_up=False)
    assert restored.to_meta() is None
    assert restored.describe() is None


def test_a_restart_meanwhile_takes_nothing_back() -> None:
    restored = Restored({"until": 102})
    assert restored.is_silent_at(102)
    assert not restored.on_tip(101, is_caught_up=True)
    assert restored.describe() == "put back from a backup: it signs nothing up to height 102"
    assert not Restored({"until": 102}).is_silent_at(103)
