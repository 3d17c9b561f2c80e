"""The outcome of pulling from single peers: what came, who is gone, and what each who is gone has cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chain.block import Id
from node.training.exchange import Exchange

LOOK_S = 0.05  # between two checks whether any peer can be asked


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of pulling for one block: the exchange, the reason why each author in `exchange.gone` is gone, and the
    bytes of blobs that peers sent."""

    exchange: Exchange
    reasons: Mapping[Id, str] = field(default_factory=dict)
    pulled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MissingAuthor:
    """An author that a round continues without. `is_fault`: the blob is here, but is not what the author signed.
    `waited` is how long this node waited for it, as a share of `collect_s`."""

    height: int
    author: Id
    why: str
    is_fault: bool
    waited: float = 0.0


async def wait_for_company(is_alone: Callable[[], bool], at_most_s: float) -> None:
    """Waits until peers are connected, `at_most_s`: a node that has just started, or is cut off, must not take all the
    others for gone."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + at_most_s
    while loop.time() < until_s and is_alone():  # noqa: ASYNC110  # who is alive is a matter of the clock
        await asyncio.sleep(LOOK_S)
