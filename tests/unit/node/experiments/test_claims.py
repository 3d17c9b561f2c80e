"""Claims on runs: one has each, a silent one loses it, and no clock is compared with another."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from node.experiments.claims import LOOK_S, RENEW_S, TAKE_OVER_S, Claims, SharedPieces


class Clock:
    """One process's own, which goes by itself alone."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def take(claims: Claims, name: str) -> bool:
    return claims.take(name, claims.list_newest().get(name))


def test_one_of_two_has_a_run_until_it_gives_it_up(tmp_path: Path) -> None:
    alice, bob = Claims(tmp_path), Claims(tmp_path)
    assert take(alice, "run")
    assert not take(bob, "run")
    assert take(bob, "other")
    alice.release("run")
    assert take(bob, "run")
    bob.release_all()
    assert not list(tmp_path.iterdir())


def test_of_two_that_have_seen_the_same_one_takes(tmp_path: Path) -> None:
    alice, bob = Claims(tmp_path), Claims(tmp_path)
    seen = alice.list_newest().get("run")
    assert bob.take("run", seen)
    assert not alice.take("run", seen)


def test_who_says_nothing_loses_its_run_and_who_renews_keeps_it(tmp_path: Path) -> None:
    times = {"alice": Clock(), "bob": Clock(1e9)}  # whose clocks have nothing to do with each other
    alice, bob = Claims(tmp_path, times["alice"]), Claims(tmp_path, times["bob"])
    assert take(alice, "run")
    for _ in range(20):  # long past the limit, but not in silence
        for clock in times.values():
            clock.now_s += TAKE_OVER_S / 2
        alice.renew()
        assert not take(bob, "run")
    times["bob"].now_s += TAKE_OVER_S - 1
    assert not take(bob, "run")
    times["bob"].now_s += 1
    assert take(bob, "run")


def test_a_clock_that_leaps_takes_nothing_that_was_not_looked_at_for_long(tmp_path: Path) -> None:
    alice, bob = Claims(tmp_path), Claims(tmp_path, clock := Clock())
    assert take(alice, "run")
    clock.now_s += 1e9
    assert not take(bob, "run")


def test_of_two_that_find_one_dead_one_takes_over(tmp_path: Path) -> None:
    dead, clock = Claims(tmp_path), Clock()
    alice, bob = Claims(tmp_path, clock), Claims(tmp_path, clock)
    assert take(dead, "run")
    newest = alice.list_newest()["run"]
    assert not alice.take("run", newest)
    assert not bob.take("run", newest)
    clock.now_s += TAKE_OVER_S
    assert alice.take("run", newest)
    assert not bob.take("run", newest)
    assert not take(bob, "run")  # a claim of alice's, and not silent for long


def test_one_that_was_only_slow_takes_nothing_from_its_heir(tmp_path: Path) -> None:
    slow, heir = Claims(tmp_path), Claims(tmp_path, clock := Clock())
    assert take(slow, "run")
    take(heir, "run")
    clock.now_s += TAKE_OVER_S
    assert take(heir, "run")
    slow.renew()
    slow.release("run")
    assert not take(Claims(tmp_path), "run")
    heir.release("run")
    assert not list(tmp_path.iterdir())


def test_an_heir_that_is_stopped_leaves_the_slow_owner_its_claim(tmp_path: Path) -> None:
    slow, heir = Claims(tmp_path, own_time := Clock()), Claims(tmp_path, clock := Clock())
    assert take(slow, "run")
    take(heir, "run")
    clock.now_s += TAKE_OVER_S
    assert take(heir, "run")
    heir.release("run")
    own_time.now_s += RENEW_S
    slow.renew()
    assert not take(Claims(tmp_path), "run")  # which the slow one is still at
    slow.release("run")
    assert not list(tmp_path.iterdir())


def test_what_another_has_claimed_since_is_neither_renewed_nor_taken_away(tmp_path: Path) -> None:
    lost, owner = Claims(tmp_path, clock := Clock()), Claims(tmp_path)
    assert take(lost, "run")
    (tmp_path / "run.0").unlink()
    assert take(owner, "run")
    before = (tmp_path / "run.0").read_text()
    clock.now_s += RENEW_S
    lost.renew()
    lost.release("run")
    assert (tmp_path / "run.0").read_text() == before
    owner.release("run")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_fails_for_a_moment_is_looked_at_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = SharedPieces([1], ["a"], Claims(tmp_path), lambda name: False, clock=(clock := Clock()))
    for call in ("iterdir", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, call, fail)
            assert pieces.take() is None
        assert pieces.may_come()
        clock.now_s += LOOK_S
    assert pieces.take() == (0, 1)


def test_claims_of_a_folder_that_fails_are_given_up_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claims = Claims(tmp_path)
    assert take(claims, "run")
    monkeypatch.setattr(Path, "unlink", fail)
    claims.release_all()
    assert "claim on run: cannot be given up (Stale file handle)" in caplog.text


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def test_a_claim_is_written_anew_only_when_it_is_time(tmp_path: Path) -> None:
    claims = Claims(tmp_path, clock := Clock())
    assert take(claims, "run")
    path = tmp_path / "run.0"
    before = path.read_text()
    claims.renew()
    assert path.read_text() == before
    clock.now_s += RENEW_S
    claims.renew()
    assert path.read_text() != before
    path.unlink()
    clock.now_s += RENEW_S
    claims.renew()  # a disk that is gone ends nobody
    assert not path.exists()


def test_pieces_are_shared_and_those_done_elsewhere_are_told(tmp_path: Path) -> None:
    done: set[str] = set()
    names = ["a", "b", "c", "d"]
    clock = Clock()
    alice = SharedPieces([1, 2, 3, 4], names, Claims(tmp_path), done.__contains__, clock=clock)
    bob = SharedPieces([1, 2, 3, 4], names, Claims(tmp_path), done.__contains__, start=2, clock=clock)
    assert (alice.take(), bob.take(), alice.take(), bob.take()) == ((0, 1), (2, 3), (1, 2), (3, 4))
    assert alice.take() is None
    assert alice.may_come()  # bob may die
    assert list(alice.list_news()) == []
    done |= {"c", "d"}
    assert alice.take() is None  # it has only just looked
    assert list(alice.list_news()) == []
    clock.now_s += LOOK_S
    assert alice.take() is None
    assert [news.index for news in alice.list_news()] == [2, 3]
    assert list(alice.list_news()) == []
    assert not alice.may_come()


def test_a_run_that_is_done_between_two_looks_is_given_back(tmp_path: Path) -> None:
    answers = iter([False, True])
    pieces = SharedPieces([1], ["a"], Claims(tmp_path), lambda name: next(answers))
    assert pieces.take() is None
    assert [news.index for news in pieces.list_news()] == [0]
    assert not pieces.may_come()
    assert not list(tmp_path.iterdir())
