"""The operators of real nodes: changes that they propose and approve, and sites that they set up to join.

    newcomer = await init_newcomer(net, "node4", "127.0.0.1:7054", via="node0")
    net.nodes["node4"] = NodeProcess(newcomer.node)
    await net.start("node4")
    change = await propose(net, "node0", "add_member", request=newcomer.request)
    await approve(net, change, "node1", "node2")

They speak to the daemons' sockets, as the commands do: a shell would take a second for each word.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chain.approvals import compute_change_id
from chain.genesis import Genesis
from chain.join_request import JoinRequest
from chain.store.sqlite import SqliteStore
from node.admin.client import AdminClient
from node.pb import admin_pb2 as pb
from node.testnet.layout import TestnetNode
from support.federation.real_nodes import Federation, run_command


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A site that is set up and requests to join."""

    node: TestnetNode
    request: str


async def init_newcomer(net: Federation, name: str, address: str, *, via: str) -> Newcomer:
    """Runs `fednode join-file` at the member `via`, and `fednode init --join` at the new site."""
    file, place = net.directory / f"{name}.join", net.directory.parent / name
    await _run("join-file", "-o", file, "-c", net.nodes[via].node.config_file)
    where = ("--listen", address, "--advertise", address)
    request = (await _run("init", place, "--name", name, "--join", file, *where)).strip()
    key = JoinRequest.decode(request, net.genesis.chain_id).key
    return Newcomer(TestnetNode(name, key, address, place / "node.yaml", 0, 0, ()), request)


async def _run(*words: object) -> str:
    done = await asyncio.to_thread(run_command, *words)
    assert done.code == 0, f"fednode {words}: {done.err}"
    return done.out


# ---- changes


def make_request(kind: str, /, **terms: Any) -> pb.ProposeRequest:
    return pb.ProposeRequest(kind=kind, terms=json.dumps(terms))


async def propose(net: Federation, name: str, kind: str, /, **terms: Any) -> str:
    """Proposes a change at this node. Returns its id."""
    request = make_request(kind, **terms)
    return (await net.ask(name, lambda admin: admin.propose(request))).id


async def approve(net: Federation, change: str, *names: str) -> None:
    """Approves a change at each of these nodes, as soon as the node has received it."""
    for name in names:
        await wait_until_open(net, change, name)
        await net.ask(name, lambda admin: admin.approve(change))


async def get_proposal(net: Federation, name: str, change: str) -> pb.ProposalView | None:
    """Returns an open change as a node has it; None where it is not open there."""
    proposals = await net.ask(name, AdminClient.list_proposals)
    return next((proposal for proposal in proposals if proposal.id == change), None)


async def is_open(net: Federation, name: str, change: str) -> bool:
    return await get_proposal(net, name, change) is not None


async def wait_until_open(net: Federation, change: str, *names: str) -> None:
    for name in names or net.running:
        await net.wait_until(partial(is_open, net, name, change), f"change {change[:8]} to be open at {name}")


async def wait_until_over(net: Federation, change: str, *names: str) -> None:
    """Waits until a change is no longer open: it is executed, or can no longer be."""

    async def is_over(name: str) -> bool:
        return not await is_open(net, name, change)

    for name in names or net.running:
        await net.wait_until(partial(is_over, name), f"change {change[:8]} to be over at {name}")


async def wait_until_newcomer_is_ready(net: Federation, change: str, *names: str) -> None:
    """Waits until these nodes have the readiness of the new key that an open change brings."""

    async def is_ready(name: str) -> bool:
        proposal = await get_proposal(net, name, change)
        return proposal is not None and not proposal.missing.HasField("readiness")

    for name in names:
        await net.wait_until(partial(is_ready, name), f"a newcomer that stands ready for {change[:8]}, at {name}")


async def get_since(net: Federation, name: str) -> int:
    """Returns the height of the block that admits a site, as the site itself has it."""
    members = (await net.ask(name, AdminClient.list_members)).members
    return next(int(member.since) for member in members if member.name == name)


# ---- the chain of a node that is stopped


def read_change_heights(place: Path, change: str) -> list[int]:
    """Returns the heights that hold a change, on the chain of a stopped node: one, once it is executed."""
    stored = SqliteStore.stored_genesis(place)
    assert stored is not None, f"{place}: no chain"
    genesis = Genesis.from_mapping(stored)
    with SqliteStore.open(place, genesis, readonly=True) as store:
        changes = {}
        for height in store.get_change_heights(1, store.head_height):
            found = store.get_block(height)
            assert found is not None
            assert found.block.change is not None
            changes[height] = compute_change_id(genesis.chain_id, found.block.change.change).hex()
        return [height for height, held in changes.items() if held == change]
