"""An account beside a store: what the node counts in it, and from where on, whatever of the two is older."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain.signing import SigningKey
from chain.state import State
from chain.store.sqlite import SqliteStore
from ml.accountant import Release
from node.consensus.learning.privacy_recount import UNSEEN, Recount
from node.offload import Offload
from node.runs.specs import RunSpecs
from node.training.account import Account, RunAccount
from node.training.privacy_ledger import PrivacyLedger, read_account
from support.data.chains import make_chain, make_contribution, make_genesis, make_genesis_mapping, make_keys
from support.federation.inline import InlineOffload

KEYS = make_keys(4)
ME = KEYS[0]
SAMPLES = 100
PLAIN = make_genesis_mapping([])["method"]
HIDDEN = {**PLAIN, "dp_noise": 2.0}
OWN = {"dp_noise": 4.0}
NOISES = Callable[[Account], set[float]]


class Site:
    """A data directory whose chain has `height` blocks, each with a contribution of every member."""

    def __init__(self, path: Path, *, method: Mapping[str, Any] = HIDDEN, height: int = 6, stored: int | None = None):
        self.genesis = make_genesis(KEYS, method=method, rounds=40)
        self.store = SqliteStore.open(path, self.genesis)
        self.file = path / "privacy.json"
        self.runs = RunSpecs.load(self.store)
        self.chain = make_chain(self.genesis, KEYS, height)
        self.grow(height if stored is None else stored)

    def grow(self, height: int) -> None:
        for block, certificate in self.chain[self.store.head_height : height]:
            self.store.append(block, certificate)

    def sign_next(self) -> None:
        head = self.store.head().block
        mine = make_contribution(self.genesis, ME, height=head.height + 1, prev=head.id)
        self.store.put_contribution(mine)

    def open(
        self,
        own: Mapping[str, float] | None = None,
        key: SigningKey = ME,
        store: Any = None,
        disk: Offload | None = None,
    ) -> Recount:
        return Recount(
            self.file,
            self.genesis.chain_id,
            [key.id],
            self.runs,
            store or self.store,
            disk or InlineOffload(),
            own=own or {},
            get_samples=lambda: SAMPLES,
            get_iterations=lambda: None,
        )

    @property
    def account(self) -> Account:
        return read_account(self.file)

    @property
    def counted(self) -> list[int]:
        rounds = self.account.runs.get(1, RunAccount()).rounds
        return [number for first, last in rounds for number in range(first, last + 1)]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(**options: Any) -> Site:
        sites.append(Site(tmp_path, **options))
        return sites[-1]

    yield make
    for site in sites:
        site.store.close()


MakeSite = Callable[..., Site]


def look(recount: Recount) -> None:
    assert asyncio.run(recount.catch_up()) is None


def list_noise(account: Account) -> set[float]:
    return {noise for _, noise in account.told.steps}


# ---- by which noise


def test_where_own_noise_does_not_go_with_a_method_its_own_noise_counts(make_site: MakeSite) -> None:
    site = make_site()
    site.file.write_bytes(Account(chain=site.genesis.chain_id.hex(), checked=0, own_since=0).encode())
    look(site.open({"dp_update_noise": 2.0}))
    assert site.counted == list(range(1, 6 + UNSEEN + 1))
    assert list_noise(site.account) == {2.0}


# ---- by which keys


class Rotating:
    """A store whose states have a key of mine replaced by `key` from a height on."""

    def __init__(self, site: Site, key: SigningKey) -> None:
        self._site, self._key = site, key
        self._states = [(0, site.genesis.state)]

    def rotate(self, height: int) -> None:
        state = self._site.genesis.state
        members = [replace(each, key=self._key.id) if each.key == ME.id else each for each in state.members]
        in_order = tuple(sorted(members, key=lambda each: each.key))
        self._states.append((height, replace(state, members=in_order)))
        self._site.runs.calendar.add(*self._states[-1])

    def read_states(self, first: int, last: int) -> Iterator[tuple[int, State]]:
        yield from self._states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site.store, name)


@pytest.mark.parametrize("starts_again", [False, True])
def test_a_node_that_has_its_new_key_alone_learns_of_the_one_before(
    make_site: MakeSite, starts_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.consensus.learning.privacy_recount.NOTED", 1)  # whatever was looked at is noted at once
    site = make_site(stored=3)
    (new,) = make_keys(1, "new")
    store = Rotating(site, new)
    site.file.write_bytes(Account(chain=site.genesis.chain_id.hex(), checked=0).encode())
    recount = site.open(key=new, store=store)
    look(recount)
    assert site.counted == []  # whose contributions these are nobody has said yet
    site.grow(4)
    store.rotate(4)
    look(site.open(key=new, store=store) if starts_again else recount)
    assert set(site.counted) >= {1, 2, 3}
    phases = site.account.told.phases
    site.grow(6)
    look(recount)
    assert site.account.told.phases <= phases + 3  # none twice


# ---- what an earlier release wrote


def test_totals_of_an_earlier_release_have_the_round_that_was_signed_for(make_site: MakeSite) -> None:
    site = make_site(stored=4)
    site.sign_next()
    told = Account().plus(Release(20, 0.32, 2.0, 5.0), 1, 1).told
    site.file.write_text(json.dumps({"format": 1, **told.to_json()}))
    look(site.open())
    site.grow(5)
    look(site.open())
    assert site.account.told == replace(told, guessable=1)  # by noise that can be guessed
    site.grow(6)
    look(site.open())
    assert 6 in site.counted


@pytest.mark.parametrize("keeps", ["nothing", "an older account"])
def test_what_was_signed_elsewhere_may_be_of_an_earlier_release(make_site: MakeSite, keeps: str) -> None:
    site = make_site(stored=0)
    recount = site.open()
    look(recount)
    if keeps == "an older account":
        site.file.write_bytes(Account(chain=site.genesis.chain_id.hex(), checked=0).encode())
    site.grow(4)  # with contributions of mine that this directory knows nothing of
    look(recount)
    told = site.account.told
    assert told.guessable == told.phases == 4 + UNSEEN
    assert site.account.secret_since is None


def test_what_was_signed_here_and_after_that_is_of_this_release(make_site: MakeSite) -> None:
    site = make_site(stored=2)
    look(site.open())  # of an account that is gone, by a release that is new here
    assert site.account.told.guessable == site.account.told.phases == 2 + UNSEEN
    site.sign_next()
    site.grow(3)
    look(site.open())
    assert site.account.secret_since == 2
    site.file.unlink()
    site.grow(6)  # the last three with what another directory has signed, as after a restore
    look(site.open())
    assert site.counted == list(range(1, 6 + UNSEEN + 1))
    assert site.account.told.guessable == 2
    account = site.account
    site.file.write_bytes(Account(chain=account.chain, checked=0, secret_since=1).encode())
    look(site.open())
    assert site.account.secret_since == 1  # the lower of what the two know
    assert site.account.told.guessable == 1


def test_a_file_of_an_earlier_release_that_is_put_back_is_not_taken_for_this_ones(make_site: MakeSite) -> None:
    site = make_site(stored=0)
    recount = site.open()
    look(recount)
    site.sign_next()
    site.grow(1)
    look(recount)
    assert (site.account.told.guessable, site.account.secret_since) == (0, 0)
    written = json.loads(site.file.read_bytes())
    del written["secret_since"]
    site.file.write_text(json.dumps({**written, "format": 2}))
    site.grow(4)  # with what nobody has signed here since
    look(recount)
    account = site.account
    assert account.told.guessable == account.told.phases == 4 + UNSEEN
    assert json.loads(site.file.read_bytes())["format"] == 3


def test_whoever_starts_is_told_of_noise_that_can_be_guessed(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site(stored=1)
    told = Account().plus(Release(20, 0.32, 2.0, 5.0), 1, 1).told
    site.file.write_text(json.dumps({"format": 1, **told.to_json()}))
    look(site.open())
    assert "What this site has told has no bound: the noise of 1 of 1 local phases can be guessed" in caplog.text


# ---- from when on a site has noise of its own


@pytest.mark.parametrize("keeps", ["neither", "an older one"])
def test_since_when_a_site_has_its_own_noise_is_known_without_its_account(make_site: MakeSite, keeps: str) -> None:
    site = make_site(method=PLAIN, stored=2)
    look(site.open(OWN))
    assert site.account.own_since == 2
    site.grow(6)
    site.file.unlink()
    if keeps == "an older one":
        site.file.write_bytes(Account(chain=site.genesis.chain_id.hex(), checked=1).encode())
    look(site.open(OWN))
    assert site.account.own_since == 2
    assert set(site.counted) >= {3, 4, 5, 6}
    assert list_noise(site.account) == {4.0}


def test_noise_that_is_no_more_was_since_no_height(make_site: MakeSite) -> None:
    site = make_site(method=PLAIN, stored=2)
    look(site.open(OWN))
    look(site.open())
    site.grow(6)
    look(site.open(OWN))
    assert site.account.own_since == 6


def test_the_own_noise_of_another_chain_says_nothing_of_this(make_site: MakeSite) -> None:
    site = make_site(method=PLAIN, stored=2)
    site.file.write_bytes(Account(chain="00" * 32, checked=9, own_since=9).encode())
    look(site.open(OWN))
    assert site.account.own_since == 2


# ---- a file that changes while the node runs


def test_the_account_is_of_this_chain_from_its_first_phase(make_site: MakeSite) -> None:
    site = make_site(stored=0)
    recount = site.open()
    look(recount)
    assert not site.file.exists()
    PrivacyLedger.open(site.file, 1e-5, None, samples=SAMPLES).add(Release(20, 0.32, 2.0, 5.0), 1)
    site.grow(1)
    look(recount)
    assert site.account.chain == site.genesis.chain_id.hex()
    assert site.account.told.phases == 1


@pytest.mark.parametrize("by", ["an older one", "nothing", "another chain's"])
def test_a_file_that_is_replaced_while_the_node_runs_is_caught_up_with(make_site: MakeSite, by: str) -> None:
    site = make_site(stored=3)
    site.file.write_bytes(Account(chain=site.genesis.chain_id.hex(), checked=0).encode())
    older = site.file.read_bytes()
    recount = site.open()
    look(recount)
    before = site.account
    assert site.counted == list(range(1, 3 + UNSEEN + 1))
    if by == "nothing":
        site.file.unlink()
    else:
        site.file.write_bytes(older if by == "an older one" else replace(before, chain="00" * 32).encode())
    site.grow(4)
    look(recount)
    assert set(site.counted) >= {1, 2, 3, 4}
    assert site.account.chain == site.genesis.chain_id.hex()
    if by == "another chain's":
        assert site.account.told.phases >= before.told.phases + 4


def test_phases_that_a_file_lacks_are_missed_wherever_it_was_looked_at(make_site: MakeSite) -> None:
    site = make_site(stored=1)
    ledger = PrivacyLedger.open(site.file, 1e-5, None, samples=SAMPLES)
    recount = site.open()
    for number in range(1, 5):
        ledger.add(Release(20, 0.32, 2.0, 5.0), number)
        site.grow(number)
        look(recount)
        if number == 2:
            older = site.file.read_bytes()
    assert site.account.told.phases == 4
    site.file.write_bytes(older)
    look(recount)
    assert site.account.told.phases >= 4
    assert set(site.counted) >= {1, 2, 3, 4}


# ---- rounds that may have been told


def test_rounds_around_a_contribution_are_counted_by_their_own_noise(make_site: MakeSite) -> None:
    site = make_site(stored=3)
    look(site.open())
    one = site.account.told.phases
    assert list_noise(site.account) == {2.0}
    site.file.write_bytes(
        Account(chain=site.genesis.chain_id.hex(), checked=4, own_since=4).with_certain(1, 1).encode()
    )
    site.grow(5)
    look(site.open(OWN))
    assert site.account.told.steps == {(0.32, 2.0): 3 * 20, (0.32, 4.0): (1 + UNSEEN) * 20}  # 2 to 4, and from 5 on
    assert one == 3 + UNSEEN


# ---- where there is nothing to count


class CountedDisk(InlineOffload):
    """The disk's thread, and how often it was asked for something."""

    def __init__(self) -> None:
        self.asked = 0

    async def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return await super().run(function, *args, **kwargs)


@pytest.mark.parametrize(
    ("method", "own", "looks"),
    [(PLAIN, {}, 1), (HIDDEN, {}, 3), (PLAIN, OWN, 3)],
)
def test_the_disk_is_left_alone_where_rounds_tell_nothing_that_is_counted(
    make_site: MakeSite, method: Mapping[str, Any], own: Mapping[str, float], looks: int
) -> None:
    site, disk = make_site(method=method, stored=1), CountedDisk()
    recount = site.open(own, disk=disk)
    for height in (2, 3, 4):
        assert asyncio.run(recount.catch_up()) is None
        site.grow(height)
    assert disk.asked == looks


def test_after_a_change_all_blocks_since_the_last_look_are_looked_at(make_site: MakeSite) -> None:
    site, disk = make_site(method=PLAIN, stored=1), CountedDisk()
    recount = site.open(disk=disk)
    assert asyncio.run(recount.catch_up()) is None
    site.grow(4)
    assert asyncio.run(recount.catch_up()) is None
    assert repr(recount) == "<Recount up to 1>"
    run = replace(site.genesis.state.run, number=2, first_height=5, method=HIDDEN)
    site.runs.calendar.add(4, replace(site.genesis.state, run=run))
    site.grow(6)
    assert asyncio.run(recount.catch_up()) is None
    assert repr(recount) == "<Recount up to 6>"
    assert site.account.has(2, 1)
    assert site.account.has(2, 2)
    assert not site.account.has(1, 1)
