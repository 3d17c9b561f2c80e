"""A federation with newcomers: keys that genesis lets follow as observers, and that changes make members.

async with growing(tmp_path, 3, newcomers=("node3",)) as net:
    start_joiner(net, "node3", make_checkpoint(net, "node0"))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from chain.changes.members import AddMember
from chain.checkpoint import Checkpoint, get_marked
from chain.signing import SigningKey, encode_id
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.signing.keys import OtherKeyInForce
from node.consensus.wiring import make_round_service
from support.data.chains import make_keys
from support.federation.cluster import Cluster, Node, ScriptedTrainer, cluster

TRAIN_S = 0.3


@asynccontextmanager
async def growing(path: Path, n: int, newcomers: Sequence[str], **options: Any) -> AsyncIterator[Cluster]:
    """Runs n members, beside newcomers that do not run yet. Rounds take some time, as readiness takes seconds."""
    options.setdefault("train_s", TRAIN_S)
    keys = make_keys(len(newcomers), "newcomer")
    observers = [{"key": encode_id(key.id), "name": name} for name, key in zip(newcomers, keys, strict=True)]
    async with cluster(path, n, observers=observers, **options) as net:
        for i, (name, key) in enumerate(zip(newcomers, keys, strict=True)):
            net.nodes[name] = Node(name, key, path / name, ScriptedTrainer(n + i))
        yield net


def make_checkpoint(net: Cluster, name: str, height: int | None = None) -> Checkpoint:
    """Returns the checkpoint that this node would write into a join file now."""
    node = net[name]
    height = node.height if height is None else height
    marks = tuple(node.get_block(marked).id for marked in get_marked(height))
    return Checkpoint(height, node.get_block(height).id, marks)


def start_joiner(net: Cluster, name: str, checkpoint: Checkpoint | None = None) -> None:
    def join(context: NodeContext) -> RoundService:
        return make_round_service(replace(context, checkpoint=checkpoint))

    net.start(name, join)


def add(net: Cluster, name: str) -> AddMember:
    return AddMember(net.id(name), name)


async def follow_keys(net: Cluster, name: str, spare: SigningKey) -> None:
    """Restarts a node with the key that has come into force, as its daemon does."""
    node = net[name]
    assert node.task is not None
    await asyncio.wait({node.task})
    failure, node.failure = node.failure, None
    assert isinstance(failure, BaseExceptionGroup)
    assert failure.subgroup(OtherKeyInForce) is not None
    await net.crash(name)
    node.key, old = spare, node.key
    net.start(name, lambda context: make_round_service(replace(context, spare=old)))
