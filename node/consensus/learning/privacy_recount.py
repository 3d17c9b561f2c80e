"""Recount: counts what this site has revealed of its samples by contributions that are on the chain, but not in its
privacy account.

An account that was restored from a backup, or lost, is behind the chain. So whenever blocks have been appended, and
before anything is trained, the node searches for its own contributions to rounds with noise that are not counted, and
counts them. What is uncertain makes the count larger, never smaller:

- The weight says how many samples the site had then if it is their number, and within a factor of two if it is
  bucketed. Else the number is what the site has now, or what its account says. Of several numbers the smallest gives
  the chance that a step has a sample, and the largest the steps of an epoch.
- A phase that was broken off lives on in those after it. So all rounds since the last counted one are counted too,
  whether or not the chain shows a contribution to them.
- A contribution may have been sent, but not be in a block. So the UNSEEN rounds after each are counted as well, and if
  no round of the run was counted before, the UNSEEN rounds before it.

With `budget_s` measurements chose the number of steps, which is in no block. It is assumed to be what this node would
choose now, or the method's own number if that is larger.

Nor does a block say by which release a contribution was made, and the noise of earlier releases can be guessed. What
this data directory has signed since a release with secret noise first opened it is from such a release, and so is what
the member signed after that. All else counts as noise that can be guessed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from chain.block import Contribution, Id
from chain.layout import MAX_HEIGHT
from chain.store.sqlite import SqliteStore
from ml.accountant import Release
from ml.errors import MlError, SpecError
from ml.specs import MaskedSpec, MethodSpec, StatisticsSpec
from ml.specs.releases import plan_release
from ml.specs.sharing import SentHyperparameters
from node.config.genesis_file import make_spec
from node.config.own_noise import get_trained_method
from node.consensus.learning.masking import Masking
from node.consensus.signing.restored import UNKNOWN_HEIGHTS
from node.offload import Offload
from node.runs.specs import RunRound, RunSpecs
from node.training.account import FORMAT, Account
from node.training.privacy_ledger import change_account, describe_guessable, read_account

log = logging.getLogger(__name__)

UNSEEN = UNKNOWN_HEIGHTS  # rounds around a contribution in which something may have been sent
SLICE = 256  # blocks searched at once, while votes wait for the disk's thread
NOTED = 1024  # blocks searched again after a start, at most
OWN_SINCE = "own_since"  # the key of a store's `meta` for what an account has under that name: {"height": …}, or null
OPENED_AT = "secret_noise"  # the key of a store's `meta` for up to where something may have been signed when a release
# that draws noise from a secret stream first opened it: {"height": …}


@dataclass(frozen=True, slots=True)
class _Told:
    """Holds a round that reveals something, and the spec by which this site trains in it."""

    round: RunRound
    spec: MethodSpec


@dataclass(frozen=True, slots=True)
class _Missing:
    """Holds a round that is not counted though the chain has this site's contribution to it, and the bounds of the
    number of its samples."""

    round: RunRound
    spec: MethodSpec
    between: tuple[int, int]


class Recount:
    """Recounts for one site; `me` are the keys of its member. `own` is the site's own noise, by key. `get_samples`
    returns the number of samples the worker has, None before it is ready. `get_iterations` returns the number of
    iterations a round would be trained with now, None for the method's own number."""

    def __init__(
        self,
        path: Path,
        chain_id: Id,
        me: Collection[Id],
        runs: RunSpecs,
        store: SqliteStore,
        disk: Offload,
        *,
        own: Mapping[str, float],
        get_samples: Callable[[], int | None],
        get_iterations: Callable[[], int | None],
    ) -> None:
        self._path = path
        self._chain = chain_id.hex()
        self._me = frozenset(me)
        self._runs = runs
        self._store = store
        self._disk = disk
        self._mine = frozenset[Id]()  # all keys that the member has had, up to this head
        self._mine_since = -1  # the height of the change after which they were listed
        self._own = own
        self._get_samples = get_samples
        self._get_iterations = get_iterations
        self._account: Account | None = None  # as it was last read
        self._checked = 0  # the height up to which it is complete
        self._own_since: int | None = None  # the height above which the site's own noise is in force
        self._own_specs: tuple[MethodSpec, MethodSpec | None] | None = None  # the last: without and with that noise
        self._failure: str | None = None
        self._idle_since: int | None = None  # the last change, if nothing counts after it
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Recount up to {self._checked}>"

    async def catch_up(self) -> str | None:
        """Counts what is missing, durably, as far as that is known by now. Says why it could not, if the account cannot
        be read or written; else returns None. If neither the run nor the site hides anything, the disk is not used."""
        async with self._turn:
            newest = self._runs.calendar.newest.since
            if newest == self._idle_since:
                return None
            try:
                while await self._disk.run(self._look, self._get_samples(), self._get_iterations()):
                    pass
            except MlError as error:
                if str(error) != self._failure:
                    log.error("what this site has told could not be counted: %s", error)
                self._failure = str(error)
            else:
                self._failure = None
                if self._checked >= self._store.head_height and not self._tells():
                    self._idle_since = newest
            return self._failure

    def _tells(self) -> bool:
        """Says whether coming rounds are counted, until the next change."""
        spec = self._runs.find_newest(self._store.head_height)
        return bool(self._own) or (spec is not None and spec.hyperparameters.is_counted)

    # ---- on the disk's thread

    def _look(self, num_samples: int | None, num_iterations: int | None) -> bool:
        """Searches some blocks. Returns whether there are more."""
        head = self._store.head_height
        account = read_account(self._path)
        if not self._is_followed(account):
            account = self._open(account, head)
        self._account = account
        self._look_for_keys(account, head)
        if self._checked >= head:
            return False
        last = min(head, self._checked + SLICE)
        missing, reached = self._find_missing(account, self._checked + 1, last, num_samples)
        is_due = self._mine and account.checked is not None and reached >= account.checked + NOTED
        if (missing or is_due) and not self._count(missing, reached, num_iterations):
            return True
        self._checked = reached
        return reached == last < head

    def _is_followed(self, account: Account) -> bool:
        """Says whether this is the account that was read last, with what was added since; not if somebody has put back
        another file, or an older one."""
        known = self._account
        if known is None or account.is_guessable:
            return False
        if account.chain != known.chain or account.own_since != known.own_since:
            return False
        if account.chain is None:
            return account == Account()
        return (account.checked or 0) >= (known.checked or 0) and account.told.phases >= known.told.phases

    def _open(self, account: Account, head: int) -> Account:
        """Returns the account, which is of this chain from now on. An account of an earlier release has no rounds, but
        all that was revealed up to here. The site's own noise is in force above the height at which it was first
        configured."""
        since = self._choose_since(account, head) if self._own else None
        if account.is_guessable or self._store.get_meta(OPENED_AT) is None:  # an older release may have run here
            self._store.put_meta(OPENED_AT, {"height": self._find_signed(head)})
        if account.told.guessable and not account.is_set_aside:
            log.warning("What this site has told has no bound: %s", describe_guessable(account.told))
        secret_since = self._find_secret_since(account)
        if account.chain != self._chain:
            checked = 0 if account.has_rounds else self._find_signed(head)
            if account != Account() or since is not None:
                account = self._change(lambda now: _begin(now, self._chain, checked))
            self._checked = checked
        else:
            self._checked = min(account.checked or 0, self._find_signed(head))
        noted = None if since is None else {"height": since}
        if self._store.get_meta(OWN_SINCE) != noted:
            self._store.put_meta(OWN_SINCE, noted)
        known = replace(account, own_since=since, secret_since=secret_since, version=FORMAT)
        if account != known and known != Account(secret_since=secret_since):
            account = self._change(lambda now: replace(now, own_since=since, secret_since=secret_since, version=FORMAT))
        self._own_since = since
        return account

    def _look_for_keys(self, account: Account, head: int) -> None:
        """Reads the member's keys after a change. If it has more than before, blocks are searched again: what such a
        key signed counted as another member's until then."""
        since = self._runs.calendar.newest.since
        if since == self._mine_since:
            return
        mine = self._list_keys()
        if self._mine_since >= 0 and mine - self._mine:
            self._checked = min(account.checked or 0, self._find_signed(head))
        self._mine, self._mine_since = mine, since

    def _choose_since(self, account: Account, head: int) -> int:
        """Returns the smaller of the heights in the account and in the store. If neither has one, what was signed for
        the next height before this start was trained without the site's own noise."""
        noted = self._store.get_meta(OWN_SINCE)
        known = [] if noted is None else [int(noted["height"])]
        if account.own_since is not None and account.chain == self._chain:
            known.append(account.own_since)
        return min(known, default=self._find_signed(head))

    def _find_secret_since(self, account: Account) -> int | None:
        """Returns the smaller of the heights in the account and in the store."""
        first = self._store.find_contribution(int(self._store.get_meta(OPENED_AT)["height"]))
        known = [] if first is None else [first - 1]
        if account.secret_since is not None and account.chain == self._chain:
            known.append(account.secret_since)
        return min(known, default=None)

    def _find_signed(self, head: int) -> int:
        """Returns the height up to which something was signed, or could be."""
        return head if self._store.get_contribution(head + 1) is None else head + 1

    def _change(self, change: Callable[[Account], Account]) -> Account:
        return change_account(self._path, change)

    def _find_missing(
        self, account: Account, first: int, last: int, num_samples: int | None
    ) -> tuple[Sequence[_Missing], int]:
        """Returns the rounds of these heights that are not counted, and the height that was reached: it stops before a
        round that cannot be counted yet."""
        counted = {height: found for height in range(first, last + 1) if (found := self._find_counted(height))}
        if not counted:
            return (), last
        missing: list[_Missing] = []
        for stored in self._store.blocks(min(counted), max(counted)):
            found = counted.get(stored.block.height)
            own = [each for each in stored.block.contributions if each.author in self._mine]
            if found is None or not own or sends_nothing(found.spec, own[0]):
                continue
            place = found.round.place
            if account.is_certain(place.run, place.round):
                continue
            account = read_account(self._path)
            if account.is_certain(place.run, place.round):  # the worker has counted it meanwhile
                continue
            between = read_samples(found.spec, place.round, own[0])
            if between is None:
                known = [number for number in (num_samples, account.samples) if number]
                if not known:
                    return missing, stored.block.height - 1
                between = min(known), max(known)
            missing.append(_Missing(found.round, found.spec, between))
        return missing, last

    def _find_counted(self, height: int) -> _Told | None:
        """Returns the round at a height if it counts, by the noise of the run or by the site's own; else None."""
        round_ = self._runs.find(height)
        if round_ is None:
            return None
        spec = self._get_spec(round_)
        return None if plan_release(spec, 1, round_.number) is None else _Told(round_, spec)

    def _plan_round(self, missing: _Missing, num_iterations: int | None, number: int) -> Release | None:
        """Returns what a phase for a round of the same run can have revealed, by its own spec if its height is
        known."""
        round_ = self._runs.find_round(missing.round.run.number, number)
        spec = missing.spec if round_ is None else self._get_spec(round_)
        return plan_phase(spec, missing.between, number, num_iterations)

    def _is_old(self, missing: _Missing, since: int | None, number: int) -> bool:
        """Says whether a phase for a round of the same run may be from a release whose noise can be guessed."""
        round_ = self._runs.find_round(missing.round.run.number, number) or missing.round
        return since is None or round_.height <= since

    def _get_spec(self, round_: RunRound) -> MethodSpec:
        """Returns the spec by which the site trains a round. It is the run's if its method cannot have the site's
        noise: nothing is trained then, but it may have been before."""
        is_own = self._own_since is not None and round_.height > self._own_since
        own = self._get_own_spec(round_) if is_own else None
        return round_.spec if own is None else own

    def _get_own_spec(self, round_: RunRound) -> MethodSpec | None:
        """Returns the spec with the site's own noise; None if the method cannot have it, so that the site does not
        train."""
        if self._own_specs is None or self._own_specs[0] is not round_.spec:
            run, rules = round_.run, round_.rules
            num_members = round_.spec.task.num_members
            try:
                method = get_trained_method(self._own, run, rules.limits, num_members)
                spec = (
                    round_.spec if method == run.method else make_spec(replace(run, method=method), rules, num_members)
                )
                self._own_specs = round_.spec, spec
            except SpecError:
                self._own_specs = round_.spec, None
        return self._own_specs[1]

    def _list_keys(self) -> frozenset[Id]:
        """Returns all keys that the member has had in its seat."""
        states = [state for _, state in self._store.read_states(0, MAX_HEIGHT)]
        held = {member.seat for state in states for member in state.members if member.key in self._me}
        return frozenset(member.key for state in states for member in state.members if member.seat in held)

    def _count(self, missing: Sequence[_Missing], reached: int, num_iterations: int | None) -> bool:
        """Counts the missing rounds. Returns whether that worked; it does not in a file that was put back since."""
        is_followed = True

        def change(account: Account) -> Account:
            nonlocal is_followed
            if not (is_followed := self._is_followed(account)):
                return account
            before, since = account.told.phases, self._find_secret_since(account)
            checked = max(reached, account.checked or 0)
            account = replace(account, chain=self._chain, checked=checked, secret_since=since)
            for each in missing:
                plan, is_guessable = partial(self._plan_round, each, num_iterations), partial(self._is_old, each, since)
                account = _add(account, each, plan, is_guessable)
            if account.told.phases > before:
                log.warning(
                    "The account of what this site has told lacked %d rounds, the last of them at height %d: they are "
                    "counted now, by what the chain shows",
                    account.told.phases - before,
                    missing[-1].round.height,
                )
            return account

        counted = self._change(change)
        if is_followed:
            self._account = counted
        return is_followed


def _begin(account: Account, chain: str, checked: int) -> Account:
    """Returns the account for this chain: what it knows of the rounds of another chain does not count for this one."""
    if account.chain is None:
        return replace(account, chain=chain, checked=checked)
    return replace(account, chain=chain, checked=checked, runs={}, secret_since=None)


def _add(
    account: Account,
    missing: _Missing,
    plan: Callable[[int], Release | None],
    is_guessable: Callable[[int], bool],
) -> Account:
    """Returns the account with a round that the chain shows and the rounds around it that may have revealed something,
    as far as they are not counted. `plan` returns what a round revealed, `is_guessable` whether its noise can be
    guessed."""
    run, number = missing.round.place.run, missing.round.place.round
    if account.is_certain(run, number):
        return account
    before = account.find_last(run, number)
    first = max(1, number - UNSEEN) if before is None else before + 1
    for each in range(first, number + UNSEEN + 1):
        release = None if account.has(run, each) else plan(each)
        if release is not None:
            account = account.plus_assumed(release, run, each, is_guessable=is_guessable(each))
    return account.with_certain(run, number)


def plan_phase(spec: MethodSpec, between: tuple[int, int], number: int, num_iterations: int | None) -> Release | None:
    """Returns the most that a phase can have revealed."""
    asked = [(num, iterations) for num in between for iterations in (None, num_iterations)]
    planned = [plan_release(spec, num, number, iterations) for num, iterations in asked]
    releases = [release for release in planned if release is not None]
    if not releases:
        return None
    steps, rate = max(release.steps for release in releases), max(release.rate for release in releases)
    return replace(releases[0], steps=steps, rate=rate)


def read_samples(spec: MethodSpec, number: int, contribution: Contribution) -> tuple[int, int] | None:
    """Returns the bounds of the number of a site's samples by the weight that it signs; None if the weight does not
    show it."""
    if isinstance(spec, StatisticsSpec) and spec.is_statistics(number):
        return None
    hyper, weight = spec.hyperparameters, contribution.weight
    if not isinstance(hyper, SentHyperparameters) or spec.max_weight_is_one or weight >= spec.task.max_weight:
        return None
    return {"samples": (weight, weight), "bucketed": (weight, 2 * weight - 1)}.get(hyper.weights)


def sends_nothing(spec: MethodSpec, contribution: Contribution) -> bool:
    """Says whether a contribution has no content: in a run of masked sums, one without a part in the sum."""
    return isinstance(spec, MaskedSpec) and Masking.is_empty(contribution)
