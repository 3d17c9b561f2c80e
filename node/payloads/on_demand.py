"""Pulls payloads on demand from single peers, as the method asks for them once a block is final (PROTOCOL §2).

The method's spec names the blobs. Each is pulled from its author, or from any other peer that has it by now, all at the
same time. An author whose blob no peer serves, or whose blob is not what it signed, is gone: the spec is asked again,
without that author. So a missing author costs a round no more than if it had not been drawn. Nothing here fails, and
the wait for a peer that sends nothing ends after `collect_s`.

A method may also use members that are not in the block (`MethodSpec.list_stale`). Their offer is what they signed for
the last block that they were in; it is pulled as any other, for as long as they are members.

Pulled blobs go to disk, like all blobs. So this node can serve one when its author cannot, and need not pull it again
after a restart. It is deleted some heights later (`node.payloads.retention`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from chain.block import Block, Contribution, Digest, Id
from ml import payload
from ml.errors import PayloadError
from ml.guard import LeftOut
from node.boundary import UNFORESEEN, Boundary
from node.offload import Offload, run_sized
from node.payloads.fetcher import BlobFetcher, BlobUnavailable
from node.payloads.pulled import MissingAuthor, Pulled, wait_for_company
from node.runs.specs import RunRound, RunSpecs
from node.training.exchange import Exchange, get_offer, get_offers

# A share of `collect_s`: the least time for a blob that replaces one of a gone author, and the most for a stale blob.
LATE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class _Commitment:
    """The statement of one author about the blob with a digest, and the round that the author signed it in."""

    author: Id
    kind: str
    size: int
    made: RunRound

    def is_stale(self, height: int) -> bool:
        """Says whether the author signed it for an earlier block than that at `height`."""
        return self.made.height != height


@dataclass(frozen=True, slots=True)
class _Stale:
    """The last contribution of a member that is not in the current block, and its round."""

    made: RunRound
    contribution: Contribution


@dataclass(frozen=True, slots=True)
class _Pulled:
    """The result of one pull: the blob, None if no peer served it; what is wrong with each author that committed to it;
    and the time waited, as a share of `collect_s`. That wait counts against authors in the block only: a stale author
    has promised nothing for this block."""

    data: bytes | None
    wrong: Mapping[Id, str]
    waited: float = 0.0


class _Taking:
    """The blobs of one block as they arrive, and the authors that are gone."""

    def __init__(
        self,
        round_: RunRound,
        me: Id,
        block: Block,
        beacon: bytes,
        aggregate: payload.Arrays | None,
        left_out: Mapping[Id, str],
        stale: Sequence[_Stale] = (),
    ) -> None:
        self.offers = (*get_offers(block), *(get_offer(one.contribution) for one in stale))
        self.gone = dict(left_out)
        self.commitments: dict[Digest, list[_Commitment]] = {}
        self.blobs: dict[Digest, bytes] = {}
        self._round = round_
        self._me = me
        self._block = block
        self._beacon = beacon
        self._aggregate = aggregate
        self._useless: set[Digest] = set()
        for contribution in block.contributions:
            self._add(round_, contribution)
        for one in stale:
            self._add(one.made, one.contribution)

    def _add(self, made: RunRound, contribution: Contribution) -> None:
        for ref in contribution.payloads:
            commitment = _Commitment(contribution.author, payload.kind_name(ref.kind), ref.size, made)
            self.commitments.setdefault(ref.digest, []).append(commitment)

    def get_wanted(self) -> list[Digest]:
        """Returns the digests of the blobs that the spec names now, without those that proved to be unusable."""
        wanted = self._round.spec.wanted(
            self._round.number, self._beacon, self._me, self.offers, self._aggregate, frozenset(self.gone)
        )
        return [digest for digest in dict.fromkeys(wanted) if digest not in self._useless]

    def settle(self, digest: Digest, pulled: _Pulled) -> list[MissingAuthor]:
        """Records the result of a pull. Returns the authors that are gone because of it."""
        new = {author: why for author, why in pulled.wrong.items() if author not in self.gone}
        self.gone |= new
        if pulled.data is None or all(c.author in pulled.wrong for c in self.commitments[digest]):
            self._useless.add(digest)
        else:
            self.blobs[digest] = pulled.data
        height, is_fault = self._block.height, pulled.data is not None
        stale = {commitment.author for commitment in self.commitments[digest] if commitment.is_stale(height)}
        return [
            MissingAuthor(height, author, why, is_fault, 0.0 if author in stale else pulled.waited)
            for author, why in new.items()
        ]


ReadBlock = Callable[[int], Awaitable[Block | None]]


async def _read_none(height: int) -> Block | None:
    return None


class OnDemand:
    """Pulls the payloads on demand of final blocks.

    `offload` decodes them. `is_alone` says whether so few peers are connected that none may be blamed for its absence.
    `get_patience` returns the share of `collect_s` to wait for the best of some authors. `on_loss` is called for every
    author that a round continues without. `read_block` returns the final block of a height, None if it is not here;
    `is_member` says whether a key is a member now, and not suspended.
    """

    def __init__(
        self,
        runs: RunSpecs,
        me: Id,
        blobs: BlobFetcher,
        offload: Offload,
        *,
        is_alone: Callable[[], bool],
        get_patience: Callable[[Collection[Id]], float],
        on_loss: Callable[[MissingAuthor], None],
        read_block: ReadBlock = _read_none,
        is_member: Callable[[Id], bool] = lambda member: True,
        boundary: Boundary | None = None,
    ) -> None:
        self._runs = runs
        self._me = me
        self._blobs = blobs
        self._read_block = read_block
        self._is_member = is_member
        self._get_patience = get_patience
        self._offload = offload
        self._left_out = LeftOut()
        self._is_alone = is_alone
        self._on_loss = on_loss
        self._boundary = boundary or Boundary()

    def __repr__(self) -> str:
        return f"OnDemand(left_out={self._left_out!r})"

    def leave_out(self, author: Id, height: int, why: str) -> None:
        """Leaves out an author whose offer at `height` did harm: nothing of it is used for some rounds."""
        self._left_out.add(author, height, why)

    async def take(self, block: Block, beacon: bytes, aggregate: bytes | None) -> Pulled:
        """Returns all blobs that `spec.wanted` names for a final block and that could be pulled. `beacon` is that of
        its height, `aggregate` the block's, None if there is none."""
        round_ = self._runs.find(block.height)
        if round_ is None or not get_kinds(round_):
            return Pulled(Exchange(beacon, self._me))
        arrays = None
        if aggregate is not None:
            size = len(aggregate)
            arrays = await run_sized(self._offload, size, payload.decode_arrays, aggregate, size)
        left_out = self._left_out.get(block.height, round_.rules.keep_heights)
        taking = _Taking(round_, self._me, block, beacon, arrays, left_out, await self._find_stale(round_, arrays))
        before = self._blobs.pulled_bytes
        await self._pull_all(round_, taking)
        blobs = {digest: taking.blobs[digest] for digest in taking.get_wanted()}
        exchange = Exchange(beacon, self._me, taking.offers, frozenset(taking.gone), blobs)
        return Pulled(exchange, taking.gone, self._blobs.pulled_bytes - before)

    async def _find_stale(self, round_: RunRound, aggregate: payload.Arrays | None) -> list[_Stale]:
        """Returns the last contributions, as far as they are still usable, of members that are not in a round's
        block."""
        found: list[_Stale] = []
        for author, age in round_.spec.list_stale(aggregate):
            before = self._runs.find_round(round_.run.number, round_.number - age)
            block = None if before is None else await self._read_block(before.height)
            if before is not None and block is not None and self._is_member(author):
                found += [_Stale(before, one) for one in block.contributions if one.author == author]
        return found

    async def _pull_all(self, round_: RunRound, taking: _Taking) -> None:
        """Pulls until every wanted blob is here, or its authors are gone."""
        if not taking.get_wanted():
            return
        collect_s = round_.rules.waits.collect_s
        await wait_for_company(self._is_alone, collect_s)
        until_s = asyncio.get_running_loop().time() + collect_s
        pulls: dict[Digest, asyncio.Task[_Pulled]] = {}
        ended: list[asyncio.Task[_Pulled]] = []
        try:
            while True:
                wanted = taking.get_wanted()
                for digest in pulls.keys() - set(wanted):
                    ended.append(pulls.pop(digest))
                    ended[-1].cancel()
                for digest in wanted:
                    if digest not in taking.blobs and digest not in pulls:
                        pull = self._try_pull(round_, digest, taking.commitments[digest], until_s)
                        pulls[digest] = asyncio.create_task(pull, name=f"blob {digest.hex()[:8]}")
                if not pulls:
                    return
                await asyncio.wait(pulls.values(), return_when=asyncio.FIRST_COMPLETED)
                for digest in [digest for digest, pull in pulls.items() if pull.done()]:
                    for loss in taking.settle(digest, pulls.pop(digest).result()):
                        self._on_loss(loss)
        finally:
            await _end([*ended, *pulls.values()])

    async def _try_pull(
        self, round_: RunRound, digest: Digest, commitments: list[_Commitment], until_s: float
    ) -> _Pulled:
        """Pulls a blob as `_pull` does. If that raises an unforeseen error, the blob counts as wrong for all its
        authors."""
        with self._boundary.around("blob on demand", commitments[0].author):
            return await self._pull(round_, digest, commitments, until_s)
        return _Pulled(None, {c.author: f"{c.kind}: {UNFORESEEN}" for c in commitments})

    async def _pull(self, round_: RunRound, digest: Digest, commitments: list[_Commitment], until_s: float) -> _Pulled:
        """Pulls a blob and checks it against what each author has signed of it."""
        began_s, collect_s = asyncio.get_running_loop().time(), round_.rules.waits.collect_s
        least_s, left_s = LATE_SHARE * collect_s, 0.0
        if present := [commitment.author for commitment in commitments if not commitment.is_stale(round_.height)]:
            left_s = min(max(until_s - began_s, least_s), self._get_patience(present) * collect_s)
        if len(present) < len(commitments):
            left_s = max(left_s, least_s)
        max_bytes = max(commitment.size for commitment in commitments)
        authors = [commitment.author for commitment in commitments]
        try:
            data = await self._blobs.try_fetch(digest, max_bytes, authors, patience_s=left_s)
        except BlobUnavailable as error:
            waited = (asyncio.get_running_loop().time() - began_s) / collect_s
            return _Pulled(None, {c.author: f"{c.kind}: cannot be had ({error})" for c in commitments}, waited)
        misfits: dict[tuple[str, int], str | None] = {}
        wrong: dict[Id, str] = {}
        for commitment in commitments:
            kind, made = commitment.kind, commitment.made  # a change may have altered the limits since
            if (kind, made.height) not in misfits:
                misfit = await run_sized(self._offload, len(data), _find_misfit, made, kind, data)
                misfits[kind, made.height] = misfit
            misfit = misfits[kind, made.height]
            if commitment.size != len(data):
                wrong[commitment.author] = f"{kind}: declared {commitment.size} bytes, has {len(data)}"
            elif misfit is not None:
                wrong[commitment.author] = f"{kind}: {misfit}"
        return _Pulled(data, wrong)


def get_kinds(round_: RunRound) -> frozenset[str]:
    """Returns the kinds on demand: those that contributions of this round carry and no rule votes on."""
    spec, number = round_.spec, round_.number
    return frozenset(spec.schemas(number)) - frozenset(spec.rules(number))


def _find_misfit(round_: RunRound, kind: str, data: bytes) -> str | None:
    """Returns why a blob is no valid payload of its kind by the rules of its round, None if it is one."""
    try:
        arrays = payload.decode_arrays(data, round_.spec.schemas(round_.number)[kind].max_bytes)
        round_.spec.validate_payload(kind, arrays, round_.number)
    except PayloadError as error:
        return str(error)
    return None


async def _end(tasks: Iterable[asyncio.Task[_Pulled]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
