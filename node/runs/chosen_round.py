"""The round whose model answers, where an operator may choose one: the newest, the best, or any that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from chain.run import Run
from chain.selection import Selection
from node.errors import InvalidRequest, NotFound

NEWEST, BEST, OWN_BEST = "newest", "best", "own-best"


class OwnBest(Protocol):
    """The best round by a site's own val samples (`node.training.own_best`)."""

    @property
    def round(self) -> int: ...


class ChosenRound(NamedTuple):
    """The round that an operator chose. `number` is None for the newest. `is_asked`: it was asked for by name or
    number, and is not the default."""

    number: int | None = None
    is_best: bool = False
    is_asked: bool = False


NEWEST_ROUND = ChosenRound()


def choose_round(
    asked: str,
    run: Run,
    selection: Selection,
    *,
    is_over: bool,
    read_own_best: Callable[[], OwnBest | None] = lambda: None,
) -> ChosenRound:
    """Returns the round that `asked` means in `run`, whose best round `selection` has. By default that is the best
    round once the run is over, if it selects, else the newest. `read_own_best` returns the site's own best round.
    Raises InvalidRequest, and NotFound if there is no best round."""
    best = selection.best if selection.run == run.number else 0
    if not asked:
        return ChosenRound(best, is_best=True) if is_over and best else ChosenRound()
    if asked == NEWEST:
        return ChosenRound(is_asked=True)
    if asked == BEST:
        if not best:
            raise NotFound(f"run {run.number} has no best round: no quorum of its members has measured one")
        return ChosenRound(best, is_best=True, is_asked=True)
    if asked == OWN_BEST:
        if (own := read_own_best()) is None:
            raise NotFound(
                f"run {run.number}: this site has no best round of its own: it has measured none by val samples "
                "(data.val), or keeps no rounds (training.keep_models)"
            )
        return ChosenRound(own.round, is_best=own.round == best, is_asked=True)
    if not asked.isascii() or not asked.isdecimal() or not 0 < int(asked[:20]) < 1 << 53:
        raise InvalidRequest(f"round: expected newest, best, own-best or a number, got {asked[:40]!r}")
    number = int(asked)
    return ChosenRound(number, is_best=number == best, is_asked=True)
