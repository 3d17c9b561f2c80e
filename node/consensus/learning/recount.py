"""Recount: what this site has told by contributions that are on the chain, and its account does not know of.

An account that was put back from a backup, or is gone, is behind the chain. So whenever blocks have been appended, and
before anything is trained, the node looks for its own contributions to rounds with noise that are not counted, and
counts them. What is not certain makes it more, never less:

- How many samples the site had then, the weight says where it is their number, and within a factor of two where it is
  bucketed. Else it is what the site has now, or what its account says. Of several numbers the smallest gives the chance
  that a step has a sample, and the largest the steps of an epoch.
- A phase that was broken off lives on in those after it. So all rounds from the last that was counted are, too, whether
  or not the chain shows a contribution to them.
- A contribution may have been sent and not have been taken. So the UNSEEN rounds after each are counted as well, and
  where no round of the run was counted before, the UNSEEN rounds before it.

With `budget_s` the number of steps was chosen by measurements, and is in no block: it is taken to be what this node
would choose now, or the method's own if that is more.

No block says either by which release a contribution was made, and the noise of earlier ones can be guessed. What this
data directory has signed since a release with secret noise first opened it is such a release's, and so is what the
member signed after that. All else counts as noise that can be guessed.
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

UNSEEN = UNKNOWN_HEIGHTS  # rounds around a contribution of which it is not certain that nothing was sent
SLICE = 256  # blocks that are looked at together, while votes wait for the disk's thread
NOTED = 1024  # blocks that are looked at again after a start, at most
OWN_SINCE = "own_since"  # the key of a store's `meta` for what an account has under that name: {"height": …}, or null
OPENED_AT = "secret_noise"  # the key of a store's `meta` for up to where something may have been signed when a release
# that draws noise from a secret stream first opened it: {"height": …}


@dataclass(frozen=True, slots=True)
class _Told:
    """A round that tells something, and the spec that this site trains by in it."""

    round: RunRound
    spec: MethodSpec


@dataclass(frozen=True, slots=True)
class _Missing:
    """A round that is not counted though the chain has this site's contribution to it, and between which numbers that
    of its samples was."""

    round: RunRound
    spec: MethodSpec
    between: tuple[int, int]


class Recount:
    """One site's, of the keys of the member `me`. `own` is the site's own noise, by key. `get_samples` is how many
    samples the worker has, None before it is ready; `get_iterations` what a round would be trained with now, None for
    the method's own number."""

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
        self._mine = frozenset[Id]()  # all that the member has had, as far as the chain here has come
        self._mine_since = -1  # the height of the change that they were listed after
        self._own = own
        self._get_samples = get_samples
        self._get_iterations = get_iterations
        self._account: Account | None = None  # as it was when it was last read
        self._checked = 0  # the height up to which nothing is missing in it
        self._own_since: int | None = None  # the height above which the site's own noise is in force
        self._own_specs: tuple[MethodSpec, MethodSpec | None] | None = None  # the last without that noise, and with it
        self._failure: str | None = None
        self._idle_since: int | None = None  # the change after which there is nothing to count, and was not before
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Recount up to {self._checked}>"

    async def catch_up(self) -> str | None:
        """Counts what is missing, durably, as far as that can be said by now. Why it could not: the account cannot be
        read or written. In a run that hides nothing, of a site that does not either, the disk is left alone."""
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
        """Whether rounds to come are counted, until the next change."""
        spec = self._runs.find_newest(self._store.head_height)
        return bool(self._own) or (spec is not None and spec.hyperparameters.is_counted)

    # ---- on the disk's thread

    def _look(self, num_samples: int | None, num_iterations: int | None) -> bool:
        """Whether there is more to look at, after some blocks."""
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
        """Whether this is what has become of the account as it was read last; not where the file is another, or as it
        was before, as somebody has put it there."""
        known = self._account
        if known is None or account.is_guessable:
            return False
        if account.chain != known.chain or account.own_since != known.own_since:
            return False
        if account.chain is None:
            return account == Account()
        return (account.checked or 0) >= (known.checked or 0) and account.told.phases >= known.told.phases

    def _open(self, account: Account, head: int) -> Account:
        """The account, of this chain from now on. What earlier releases wrote knows of no rounds, and of all up to
        here. The site's own noise is in force above the height at which it was first there."""
        since = self._choose_since(account, head) if self._own else None
        if account.is_guessable or self._store.get_meta(OPENED_AT) is None:  # such a release may have run here again
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
        """Whatever changes have said of the member's keys. Where that is more than before, blocks are looked at again:
        what a key signed was a stranger's until then, and is noted as looked at nowhere."""
        since = self._runs.calendar.newest.since
        if since == self._mine_since:
            return
        mine = self._list_keys()
        if self._mine_since >= 0 and mine - self._mine:
            self._checked = min(account.checked or 0, self._find_signed(head))
        self._mine, self._mine_since = mine, since

    def _choose_since(self, account: Account, head: int) -> int:
        """The smaller of what the account and the store know. Where neither knows, what was signed for the next height
        before this start was trained without the site's own noise."""
        noted = self._store.get_meta(OWN_SINCE)
        known = [] if noted is None else [int(noted["height"])]
        if account.own_since is not None and account.chain == self._chain:
            known.append(account.own_since)
        return min(known, default=self._find_signed(head))

    def _find_secret_since(self, account: Account) -> int | None:
        """The smaller of what the account and the store know."""
        first = self._store.find_contribution(int(self._store.get_meta(OPENED_AT)["height"]))
        known = [] if first is None else [first - 1]
        if account.secret_since is not None and account.chain == self._chain:
            known.append(account.secret_since)
        return min(known, default=None)

    def _find_signed(self, head: int) -> int:
        """The height up to which something was signed, or could be."""
        return head if self._store.get_contribution(head + 1) is None else head + 1

    def _change(self, change: Callable[[Account], Account]) -> Account:
        return change_account(self._path, change)

    def _find_missing(
        self, account: Account, first: int, last: int, num_samples: int | None
    ) -> tuple[Sequence[_Missing], int]:
        """Those of these heights, up to the one that is reached: what cannot be counted yet is waited for."""
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
        """The round at a height, where what it tells is counted: by the noise of the run, or by the site's own."""
        round_ = self._runs.find(height)
        if round_ is None:
            return None
        spec = self._get_spec(round_)
        return None if plan_release(spec, 1, round_.number) is None else _Told(round_, spec)

    def _plan_round(self, missing: _Missing, num_iterations: int | None, number: int) -> Release | None:
        """What a phase for a round of the same run can have told: by its own spec, where its height is known."""
        round_ = self._runs.find_round(missing.round.run.number, number)
        spec = missing.spec if round_ is None else self._get_spec(round_)
        return plan_phase(spec, missing.between, number, num_iterations)

    def _is_old(self, missing: _Missing, since: int | None, number: int) -> bool:
        """Whether a phase for a round of the same run may have been of a release whose noise can be guessed."""
        round_ = self._runs.find_round(missing.round.run.number, number) or missing.round
        return since is None or round_.height <= since

    def _get_spec(self, round_: RunRound) -> MethodSpec:
        """The spec that the site trains a round by. That of the run where its method cannot have the site's noise:
        nothing is trained then, but it may have been before."""
        is_own = self._own_since is not None and round_.height > self._own_since
        own = self._get_own_spec(round_) if is_own else None
        return round_.spec if own is None else own

    def _get_own_spec(self, round_: RunRound) -> MethodSpec | None:
        """The spec that the site trains by; None where it does not, as the method cannot have its noise."""
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
        """All keys that the member has had, as it keeps its seat."""
        states = [state for _, state in self._store.read_states(0, MAX_HEIGHT)]
        held = {member.seat for state in states for member in state.members if member.key in self._me}
        return frozenset(member.key for state in states for member in state.members if member.seat in held)

    def _count(self, missing: Sequence[_Missing], reached: int, num_iterations: int | None) -> bool:
        """Whether that could be done: not in a file that was put there since."""
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
    """As the account of this chain: what it knows of the rounds of another one says nothing of this."""
    if account.chain is None:
        return replace(account, chain=chain, checked=checked)
    return replace(account, chain=chain, checked=checked, runs={}, secret_since=None)


def _add(
    account: Account,
    missing: _Missing,
    plan: Callable[[int], Release | None],
    is_guessable: Callable[[int], bool],
) -> Account:
    """With a round that the chain shows, and those around it that may have been told, too, as far as they are not
    counted. `plan` says of a round how much, `is_guessable` whether by noise that can be guessed."""
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
    """The most that a phase can have told."""
    asked = [(num, iterations) for num in between for iterations in (None, num_iterations)]
    planned = [plan_release(spec, num, number, iterations) for num, iterations in asked]
    releases = [release for release in planned if release is not None]
    if not releases:
        return None
    steps, rate = max(release.steps for release in releases), max(release.rate for release in releases)
    return replace(releases[0], steps=steps, rate=rate)


def read_samples(spec: MethodSpec, number: int, contribution: Contribution) -> tuple[int, int] | None:
    """Between which numbers that of a site's samples is, by the weight that it signs; None where that says nothing."""
    if isinstance(spec, StatisticsSpec) and spec.is_statistics(number):
        return None
    hyper, weight = spec.hyperparameters, contribution.weight
    if not isinstance(hyper, SentHyperparameters) or spec.max_weight_is_one or weight >= spec.task.max_weight:
        return None
    return {"samples": (weight, weight), "bucketed": (weight, 2 * weight - 1)}.get(hyper.weights)


def sends_nothing(spec: MethodSpec, contribution: Contribution) -> bool:
    """Whether nothing was sent: in a run of masked sums, a word that there is no part of this member in the sum."""
    return isinstance(spec, MaskedSpec) and Masking.is_empty(contribution)
