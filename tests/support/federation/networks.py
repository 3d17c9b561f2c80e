"""Federations of real nodes that are declared as data, run once, and checked in many ways afterwards.

A network says who is in it and what is done to it. When it runs, its nodes start, its story is played, they classify
samples, end, start again in another order, answer an operator, and end for good. The result is a `Lived`, from which
the tests of `tests/e2e/test_networks.py` check what must hold for every federation, whatever its story.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chain.beacon import compute_beacon
from chain.store.sqlite import SqliteStore
from ml.data import load_dataset
from ml.simulation.run import SimulationConfig, simulate
from node.testnet.layout import TestnetNode
from support.faults.cut_network import CutNetwork
from support.federation.operators import approve, propose, wait_until_over
from support.federation.processes import is_alive
from support.federation.real_nodes import (
    Federation,
    Status,
    Statuses,
    ask_stopped,
    make_federation,
    paused,
    run_command,
)

SAMPLES = 60  # samples that a node is asked to classify
SAMPLES_FILE = "digits.npz"
GUARD = 4.0  # the default of the nodes, as `max_loss_ratio` of a simulation
PER_PEER_AND_KIND = 1024  # bytes that a round may cost besides 1.1 times its payloads (DESIGN §8)
MESSAGE_KINDS = 5  # status, contribution, block, vote, blob
AWAIT_ALL = "waits.collect_s=120"  # so that every block has a contribution of every member

Story = Callable[[Federation, CutNetwork | None], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A federation, and what is done to it.

    Without `rounds` it goes on without end. In a calm one no member is ever lost, so that each block has all
    contributions and a round costs what it must. One that `can_be_cut` has relays between its nodes. `leavers` are no
    members in the end. Where a network `is_simulated`, a simulation with the same absent members has the same
    aggregates, until the height that `find_simulated` returns, else at all heights: contributions too late for a block
    must have no effect. `right` is the least share of right answers, and `on_demand` the payloads of which each node
    pulls what it needs.
    """

    name: str
    method: str
    story: Story
    num_nodes: int = 4
    rounds: int = 6
    partition: str = "classes:3,1"
    seed: int = 1
    settings: tuple[str, ...] = ()
    is_calm: bool = True
    can_be_cut: bool = False
    leavers: tuple[str, ...] = ()
    is_simulated: bool = True
    find_simulated: Callable[[Lived], int] | None = None
    right: float = 0.5
    on_demand: tuple[str, ...] = ()
    stage: str = "slow"  # the mark of its tests, if any

    def __str__(self) -> str:
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node{i}" for i in range(self.num_nodes))

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the members in the end."""
        return tuple(name for name in self.names if name not in self.leavers)

    def live(self, directory: Path) -> Lived:
        """Runs the network through its story, in a new directory."""
        settings = (*self.settings, *((AWAIT_ALL,) if self.is_calm else ()))
        make_federation(
            directory,
            num_nodes=self.num_nodes,
            method=self.method,
            rounds=self.rounds,
            partition=self.partition,
            seed=self.seed,
            settings=settings,
            difficulty=4096,
        )
        return asyncio.run(self._live(directory))

    async def _live(self, directory: Path) -> Lived:
        samples = directory / SAMPLES_FILE
        net = Federation(directory)
        with CutNetwork(list_nodes(net)) if self.can_be_cut else nullcontext() as ways:
            async with net:
                truth = _write_samples(samples, net)
                await self.story(net, ways)
                await net.check_agreement()
                before = await net.get_statuses()
                exit_codes = [await net.stop(name) for name in net.running]
                for name in _turn(self.names):
                    await net.start(name)
                await net.wait_for(
                    lambda now: all(_is_back(now[name], self) for name in self.members), "all to be back"
                )
                if not self.rounds:
                    height = max(status["height"] for status in before.values())
                    await asyncio.gather(*(net.wait_for_contribution(name, height + 1) for name in self.members))
                asked = self.names[2]
                said = {words: await _ask(net, asked, *words) for words in OPERATOR}
                answers = await _ask(net, asked, "predict", samples)
                after = await net.get_statuses()
                agreed = await net.check_agreement()
                exit_codes += [await net.stop(name) for name in net.running]
        alive = [pid for status in [*before.values(), *after.values()] for pid in _list_pids(status) if is_alive(pid)]
        return Lived(
            self, directory, before, after, agreed, exit_codes, alive, asked, said, answers["predictions"], truth
        )


OPERATOR: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("peers",),
    ("chain", "verify", "--deep"),
    ("chain", "show", "head"),
    ("rounds", "list"),
)  # what an operator asks of a node that is back


@dataclass(frozen=True)
class Lived:
    """The record of what a network said and left. `before` and `after` are the nodes' statuses at its two ends; `alive`
    are its processes that should have ended; `asked` is the node that answered `said`, and `truth` the samples' true
    classes."""

    network: Network
    directory: Path
    before: Mapping[str, Status]
    after: Mapping[str, Status]
    agreed: int
    exit_codes: Sequence[int]
    alive: Sequence[int]
    asked: str
    said: Mapping[tuple[str, ...], Any]
    predictions: Sequence[Mapping[str, Any]]
    truth: Sequence[str]

    @property
    def names(self) -> tuple[str, ...]:
        return self.network.names

    @cached_property
    def federation(self) -> Federation:
        return Federation(self.directory)

    @cached_property
    def ids(self) -> list[bytes]:
        """The founders' keys, of node0 and so on."""
        members = self.federation.genesis.state.members
        return [member.key for member in sorted(members, key=lambda member: member.name)]

    @cached_property
    def blocks(self) -> list[dict[str, Any]]:
        """The blocks that node0 left, genesis first."""
        listed: list[dict[str, Any]] = self.ask(0, "chain", "list", "--reverse", "--limit", 500)["blocks"]
        return listed

    @cached_property
    def rounds(self) -> list[list[dict[str, Any]]]:
        """The records of rounds that each node kept, oldest first."""
        listing = ("rounds", "list", "--reverse", "--limit", 500)
        return [self.ask(node, *listing)["rounds"] for node in range(self.network.num_nodes)]

    @cached_property
    def authors(self) -> list[list[str]]:
        """The authors of the contributions in each block, by height."""
        shown = [self.ask(0, "chain", "show", height) for height in range(len(self.blocks))]
        return [sorted(each["name"] for each in block["contributions"]) for block in shown]

    def ask(self, node: int, *command: object) -> Any:
        """Runs a command on the files that a node left. Returns what it prints."""
        return ask_stopped(self.directory, node, *command)

    @cached_property
    def beacons(self) -> list[bytes]:
        """The beacons of the heights that follow each block."""
        genesis = self.federation.genesis
        with SqliteStore.open(self.federation.get_data_dir("node0"), genesis, readonly=True) as store:
            stored = [store.get_block(height) for height in range(len(self.blocks))]
        return [compute_beacon(each.block) for each in stored if each is not None]

    @cached_property
    def simulated(self) -> Any:
        """The simulation of the same run: the same beacons, and the same members absent."""
        network, run = self.network, self.federation.genesis.run
        present = [[self.names.index(name) for name in authors] for authors in self.authors]

        def get_present(height: int) -> Collection[int]:
            return present[height]

        config = SimulationConfig(
            method=run.method,
            model=run.model,
            input=run.input,
            partition=network.partition,
            clients=network.num_nodes,
            rounds=self.simulated_rounds,
            seed=network.seed,
            max_loss_ratio=GUARD,
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a node's worker
        try:
            return simulate(
                config,
                ids=self.ids,
                beacons=lambda height: self.beacons[height - 1],
                present=None if network.is_calm else get_present,
            )
        finally:
            torch.set_num_threads(threads)

    @property
    def simulated_rounds(self) -> int:
        find = self.network.find_simulated
        return self.network.rounds if find is None else find(self)

    def list_left_over(self, *passing: str) -> list[str]:
        """Lists files of the nodes whose names match one of these patterns."""
        return sorted(str(file) for pattern in passing for file in self.directory.rglob(pattern))


def list_nodes(net: Federation) -> list[TestnetNode]:
    """Lists the nodes with their keys, as genesis has them."""
    keys = {member.name: member.key for member in net.genesis.state.members}
    return [replace(process.node, key=keys[name]) for name, process in net.nodes.items()]


def _turn(names: Sequence[str]) -> list[str]:
    """Returns the names in another order than that of the first start."""
    return [*names[2:], names[0], names[1]]


def _is_back(status: Status, network: Network) -> bool:
    done = status["phase"] == "done" if network.rounds else True
    return bool(status["ready"] and done and status["members_in_sight"] == len(network.members))


def _list_pids(status: Status) -> list[int]:
    return [pid for pid in (status["pid"], status["worker_pid"], *status["miner_pids"]) if pid is not None]


def _write_samples(place: Path, net: Federation) -> list[str]:
    """Writes digits of the test set to a file. Returns their classes."""
    run = net.genesis.run
    _, test = load_dataset({"format": "digits"}, run.input)
    np.savez(place, x=test.x[:SAMPLES])
    return [run.classes[label] for label in test.y[:SAMPLES]]


async def _ask(net: Federation, name: str, *words: object) -> Any:
    config = net.nodes[name].node.config_file
    done = await asyncio.to_thread(run_command, *words, "--json", "--config", config)
    assert done.code == 0, f"{name}: fednode {words}: {done.err}"
    return json.loads(done.out)


# ---- stories


async def run_all_rounds(net: Federation, _: CutNetwork | None) -> None:
    await net.start()
    await wait_until_done(net)


async def wait_until_done(net: Federation, *names: str) -> None:
    def are_done(now: Statuses) -> bool:
        wanted = [now[name] for name in names or now]
        measured = (status["measured_round"] == status["applied_round"] == status["round"] for status in wanted)
        return all(measured) and all(status["done"] for status in wanted)

    await net.wait_for(are_done, "the end of all rounds")


async def one_comes_late(net: Federation, _: CutNetwork | None) -> None:
    """Starts three; the fourth starts while two of them are paused, as they would be done too soon otherwise."""
    *first, late = net.names
    await net.start(*first)
    await net.wait_for_height(5)
    with paused(await net.get_worker(first[0]), await net.get_worker(first[1])):
        await net.start(late)
        await net.wait_until_ready(late)
    await net.wait_for_contribution(late, 5)
    await wait_until_done(net)


async def one_is_paused_and_killed(net: Federation, _: CutNetwork | None) -> None:
    """Pauses the last for longer than its registry entry lives, resumes it, and kills it."""
    staleness = int(net.genesis.run.method["staleness"])
    await net.start()
    await net.wait_until_ready()
    victim = net.names[-1]
    await net.wait_for_contribution(victim, 1)
    await _ask(net, victim, "pause")
    away = (await net.get_status(victim))["height"] + 1  # the block of this height may still hold its contribution
    await net.wait_for_height(away + staleness + 2)
    await _ask(net, victim, "resume")
    back = await net.wait_for_contribution(victim, away + staleness + 1)
    await net.wait_for_height(back + 1)
    alive = (await net.get_status("node0"))["height"]
    await net.kill(victim)
    await net.wait_for_height(alive + staleness + 3)


async def two_are_killed_in_turn(net: Federation, _: CutNetwork | None) -> None:
    """Kills each of two by `kill -9`, and starts it again once the others have gone on without it."""
    await net.start()
    for victim in net.names[:2]:
        height = await net.wait_for_contribution(victim, (await net.get_status(victim))["height"])
        await net.kill(victim)
        left = await asyncio.to_thread(run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir(victim))
        assert left.code == 0, left.err
        await net.wait_for_height(height + 2)
        await net.start(victim)
        await net.wait_for_contribution(victim, height + 2)
    await wait_until_done(net)


async def all_are_cut_in_two(net: Federation, ways: CutNetwork | None) -> None:
    """Cuts the network into two and two: nobody has a quorum, all report that, and nothing is finalised until it is
    healed."""
    assert ways is not None
    halves = net.names[:2], net.names[2:]
    await net.start()
    await net.wait_for_height(2)
    ways.cut(*halves)
    stalled = await net.wait_for(lambda now: all(one["stalled"] for one in now.values()), "all to wait", looks=5)
    for half in halves:
        assert len({stalled[name]["head"] for name in half}) == 1
    ways.heal()
    await wait_until_done(net)


async def one_leaves(net: Federation, _: CutNetwork | None) -> None:
    """Has the others remove the last one from the federation, and go on; it follows."""
    await net.start()
    await net.wait_until_ready()
    change = await propose(net, "node0", "remove_member", name=net.names[-1])
    await approve(net, change, *net.names[1:3])
    await wait_until_over(net, change)
    await wait_until_done(net, *net.names[:-1])


def find_return(lived: Lived) -> int:
    """Returns the last block before the paused one is back: from then on its training may be too late for a block."""
    victim = lived.names[-1]
    away = next(h for h in range(2, len(lived.authors)) if victim not in lived.authors[h])
    return next(h for h in range(away, len(lived.authors)) if victim in lived.authors[h]) - 1


NETWORKS = (
    Network(name="dfpl", method="dfpl", story=run_all_rounds, rounds=10, stage=""),
    Network(
        name="swim",
        method="swim",  # needs the number of rounds
        story=run_all_rounds,
        rounds=3,
        settings=("local_iterations=2",),
        right=0.1,
    ),
    Network(
        name="fedrep",
        method="fedrep",  # votes on a part of the model
        story=run_all_rounds,
        rounds=3,
        settings=("local_iterations=2",),
        right=0.1,
    ),
    Network(
        name="ditto",
        method="ditto",  # answers by another model than that it votes on
        story=run_all_rounds,
        rounds=3,
        settings=("local_iterations=2",),
        right=0.1,
        stage="long",
    ),
    Network(
        name="fedintr",
        method="fedintr",  # sends more than a model
        story=run_all_rounds,
        rounds=3,
        settings=("local_iterations=2",),
        right=0.1,
        stage="long",
    ),
    Network(
        name="fedala",
        method="fedala",
        story=run_all_rounds,
        rounds=3,
        settings=("local_iterations=2",),
        right=0.1,
    ),
    Network(
        name="feddbe",
        method="feddbe",  # agrees on a mean first
        story=run_all_rounds,
        rounds=3,
        settings=("local_iterations=2",),
        right=0.1,
    ),
    Network(name="mpfedcl", method="mpfedcl", story=run_all_rounds, rounds=10, partition="dirichlet:0.3", right=0.6),
    Network(
        name="reembed",
        method="mpfedcl",
        story=run_all_rounds,
        partition="dirichlet:0.3",
        settings=("reembed=true", "own_samples=100"),
    ),
    Network(
        name="uapdfl",
        method="uapdfl",
        story=run_all_rounds,
        num_nodes=6,
        partition="dirichlet:0.1",
        settings=("num_peers=2", "input.normalize=none"),  # so that every node draws a peer in each round
        on_demand=("g", "h"),
        right=0.1,
    ),
    Network(
        name="alike",
        method="uapdfl",
        story=run_all_rounds,
        num_nodes=6,
        partition="dirichlet:5",
        settings=("num_peers=2", "input.normalize=none"),
        on_demand=("g", "h"),
        right=0.1,
        stage="long",
    ),
    Network(
        name="stale",
        method="uapdfl",
        story=one_is_paused_and_killed,
        rounds=0,
        partition="dirichlet:0.5",
        settings=("num_peers=3", "staleness=2", "local_iterations=5", "input.normalize=none"),
        is_calm=False,
        find_simulated=find_return,
        on_demand=("g", "h"),
        right=0.1,
    ),
    Network(
        name="late",
        method="dfpl",
        story=one_comes_late,
        rounds=34,  # the difficulty may change at heights 17 and 33
        settings=("local_iterations=1", "pow.difficulty=262144", "pow.adaptive=true", "pow.target_ms=600000"),
        is_calm=False,
        is_simulated=False,
        right=0.1,
    ),
    Network(
        name="killed", method="fedavg", story=two_are_killed_in_turn, rounds=30, partition="dirichlet:1", is_calm=False
    ),
    Network(
        name="cut",
        method="fedavg",
        story=all_are_cut_in_two,
        rounds=10,
        partition="dirichlet:1",
        is_calm=False,
        can_be_cut=True,
    ),
    Network(
        name="leaves",
        method="dfpl",
        story=one_leaves,
        rounds=20,
        is_calm=False,
        leavers=("node3",),
        is_simulated=False,
    ),
)
