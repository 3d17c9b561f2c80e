"""A federation of masked sums of real processes, one of which dies with the block of inputs on its disk and its seeds
not yet opened: the round is lost, the chain goes on, and every sum is recomputed from the stores."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from chain.store.sqlite import SqliteStore
from ml.data import get_default_input, load_dataset
from ml.payload import decode_arrays, encode_arrays, kind_name
from ml.simulation.run import SimulationConfig, simulate
from ml.specs.masked.aggregate import drop_masked
from support.faults.killed_nodes import Killable
from support.federation.real_nodes import make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

VICTIM = "node3"
OTHERS = ("node0", "node1", "node2")
METHOD = ("aggregation=masked_sum", "local_iterations=5")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def test_one_that_dies_between_inputs_and_openings_costs_a_round(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "net", method="fedavg", settings=METHOD, rounds=0)
    async with Killable(directory) as net:
        await net.start(*OTHERS)
        await net.start_doomed(VICTIM, "append.committed", times=4)  # keys, inputs, openings, and inputs again
        await net.wait_until_killed(VICTIM, "the second block of inputs")
        await net.wait_for_height(9, *OTHERS)
        await net.start_plain(VICTIM)
        height = await net.wait_for_contribution(VICTIM, (await net.get_status("node0"))["height"])
        await net.wait_for_height(height + 4)
        await net.check_agreement()
        for name in net.running:
            assert await net.stop(name) == 0
        assert net.check_nothing_contradicted() > 0
        for name in net.names:
            told = await asyncio.to_thread(
                run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir(name)
            )
            assert told.code == 0, told.err
        with SqliteStore.open(net.get_data_dir("node0"), net.genesis, readonly=True) as store:
            blocks = {block.block.height: block.block for block in store.blocks(3, 6)}
            sent = {height: {c.author for c in block.contributions} for height, block in blocks.items()}
            if len(sent[4]) == 4:  # its input was in the sum
                assert sent[5] < sent[4]


async def check_answers(net: Killable, tmp_path: Path) -> None:
    """By the nearest prototype, of whomever that is."""
    _, test = load_dataset({"format": "digits"}, get_default_input({"format": "digits"}, net.genesis.run.model))
    archive = tmp_path / "digits.npz"
    np.savez(archive, x=test.x[:8])
    asked = ("predict", archive, "--config", net.nodes["node2"].node.config_file, "--json")
    finished = await asyncio.to_thread(run_command, *asked)
    assert finished.code == 0, finished.err
    predictions = json.loads(finished.out)["predictions"]
    assert len(predictions) == 8
    assert {found["nearest_name"] for found in predictions} <= set(net.names)


@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.long), "mpfedcl"])
async def test_real_nodes_come_to_the_aggregate_of_the_simulation(
    tmp_path: Path, one_thread: None, method: str
) -> None:
    """Of MP-FedCL the pool of prototypes as well, which is not hidden."""
    settings = (*METHOD, "waits.collect_s=120")  # every sum is of all four
    directory = make_federation(tmp_path / "net", method=method, settings=settings, rounds=2)
    async with Killable(directory) as net:
        await net.start()
        await net.wait_for_height(5)
        await net.check_agreement()
        if method == "mpfedcl":
            await check_answers(net, tmp_path)
        for name in net.running:
            assert await net.stop(name) == 0
        with SqliteStore.open(net.get_data_dir("node0"), net.genesis, readonly=True) as store:
            final = store.get_block(5)
            assert final is not None
            data = store.get_blob(final.block.header.aggregate)
            sent = [
                {kind_name(ref.kind) for ref in contribution.payloads}
                for stored in store.blocks(2, 2)
                for contribution in stored.block.contributions
            ]
        for name in net.names:
            told = await asyncio.to_thread(
                run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir(name)
            )
            assert told.code == 0, told.err
    assert sent == [{"masked"} if method == "fedavg" else {"masked", "prototypes"}] * 4
    run = net.genesis.run
    config = SimulationConfig(method=run.method, input=run.input, clients=4, rounds=2, seed=1)
    by_name = {member.name: member.key for member in net.genesis.state.members}
    simulated = simulate(config, ids=[by_name[name] for name in net.names])
    aggregate = drop_masked(decode_arrays(data, len(data)))
    assert aggregate is not None
    assert hashlib.sha256(encode_arrays(aggregate)).digest() == simulated.aggregate_digests[-1]
    assert {name.split("/")[0] for name in aggregate} == ({"model"} if method == "fedavg" else {"model", "prototypes"})
