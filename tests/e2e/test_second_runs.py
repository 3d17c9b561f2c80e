"""Second runs on real nodes: one that shares samples, and one that begins from a model of many megabytes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from ml.clients.build import make_initial_aggregate
from ml.models import resolve_model
from ml.payload import CHUNK_BYTES, encode_arrays
from node.addresses import parse_address
from node.config.yaml_source import dump_yaml, read_yaml
from support.faults.relay import relaying
from support.federation.dial_out import dial_by_relays
from support.federation.operators import wait_until_open, wait_until_over
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
DIFFICULTY = 4096
SHARING = {"name": "fededs", "unet_width": 4, "warmup_epochs": 1, "encryptor_epochs": 1, "share_max": 100}
HIDDEN = [2500, 2500]  # an MLP of 26 MB: more than a gRPC message and than a chunk
SLOW_BYTES_PER_S = 2 << 20


async def say(net: Federation, name: str, *words: object) -> str:
    """What this node's operator is told; AssertionError where it is refused."""
    done = await asyncio.to_thread(run_command, *words, "-c", net.nodes[name].node.config_file)
    assert done.code == 0, f"{name}: fednode {words}: {done.err}{done.out}"
    return done.out


async def propose_run(net: Federation, name: str, *words: object) -> str:
    told: dict[str, Any] = json.loads(await say(net, name, "propose", "run", *words, "--yes", "--json"))
    change: str = told["id"]
    return change


async def approve(net: Federation, name: str, change: str, *words: str) -> None:
    await wait_until_open(net, change, name)
    await say(net, name, "approve", change, "--yes", *words)


async def wait_until_done(net: Federation, *names: str) -> None:
    wanted = names or net.running
    await net.wait_for(lambda now: all(now[name]["done"] for name in wanted), "the end of the run")


def change_config(net: Federation, name: str, section: str, **values: Any) -> None:
    """Writes settings into a stopped node's configuration."""
    file = net.nodes[name].node.config_file
    config = read_yaml(file).value
    config[section] = {**config.get(section, {}), **values}
    file.write_text(dump_yaml(config), encoding="utf-8")


async def stop_and_verify(net: Federation) -> None:
    for name in net.running:
        assert await net.stop(name) == 0
    for name in net.names:
        done = await asyncio.to_thread(run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir(name))
        assert done.code == 0, f"{name}: {done.err}{done.out}"


@pytest.mark.long
async def test_a_second_run_shares_samples_of_those_sites_alone_that_approved_it(tmp_path: Path) -> None:
    """The approval on the chain is the acknowledgement; who approves without training shares nothing."""
    rounds = 3  # the sharing round and two
    directory = make_federation(tmp_path / "net", method="fedavg", rounds=1, difficulty=DIFFICULTY, partition="iid")
    async with Federation(directory) as net:
        for name in net.names:
            change_config(net, name, "consensus", join_runs="ask")
        await net.start()
        await wait_until_done(net)
        run = tmp_path / "run.yaml"
        run.write_text(dump_yaml({"method": SHARING}))
        change = await propose_run(net, "node0", run, "--rounds", rounds, "--continue")
        shown = await say(net, "node1", "proposals", "show", change[:8])
        assert "fededs" in shown
        await approve(net, "node3", change, "--no-train")
        for name in ("node1", "node2"):
            await approve(net, name, change)
        await wait_until_over(net, change)
        await wait_until_done(net)
        why = "this site votes and does not train: run 2, whose method shares transformed samples, was approved here"
        logs = {name: net.nodes[name].log_file.read_text() for name in net.names}
        assert [name for name, log in logs.items() if why in log] == ["node3"], logs["node3"]
        for height in range(3, 3 + rounds):  # the first round is block 1, and the change block 2
            assert sorted(await net.read_contributors("node0", height)) == ["node0", "node1", "node2"]
        assert await net.check_agreement() == 2 + rounds
        told = await say(net, "node0", "runs", "show", "2")
        assert "fededs" in told
        await stop_and_verify(net)


def write_model(place: Path, genesis: Genesis) -> bytes:
    """A large model for the data of the run in genesis."""
    run = genesis.run
    model = {"name": "mlp", "hidden": HIDDEN}
    data = encode_arrays(make_initial_aggregate(model, run.input["shape"], len(run.classes), 2))
    place.write_bytes(data)
    return data


def has_vote(net: Federation, name: str, height: int) -> bool:
    """Whether a stopped node has voted at a height."""
    with SqliteStore.open(net.get_data_dir(name), net.genesis, readonly=True) as store:
        return bool(store.get_votes(height))


@pytest.mark.long
async def test_a_run_begins_from_a_large_model_once_a_quorum_has_it(tmp_path: Path) -> None:
    """Of four one is down, and one gets it slowly: until it has all of it, it does not vote, and no block comes."""
    limits = ("limits.payload_mib=64", "local_iterations=1", "waits.collect_s=60")
    spec = {"method": "fedavg", "rounds": 1, "difficulty": DIFFICULTY, "partition": "iid", "settings": limits}
    net = Federation(make_federation(tmp_path / "net", **spec))
    model = write_model(tmp_path / "large.safetensors", net.genesis)
    assert len(model) > 6 * CHUNK_BYTES
    digest = hashlib.sha256(model).hexdigest()
    others = ("node0", "node1")
    servers = [parse_address(net.nodes[name].node.address) for name in others]
    async with relaying(servers, bytes_per_s=SLOW_BYTES_PER_S) as relays, net:
        dial_by_relays(net, "node2", dict(zip(others, relays, strict=True)))
        await net.start()
        await wait_until_done(net)
        await net.kill("node3")
        begins = ("--initial", tmp_path / "large.safetensors", "--set", f"model.hidden={json.dumps(HIDDEN)}")
        change = await propose_run(net, "node0", *begins, "--rounds", 1)
        for name in ("node1", "node2"):
            await approve(net, name, change)
        blob = net.get_data_dir("node2") / "blobs" / digest[:2] / digest
        now = await net.wait_for(lambda _: any(relay.passed > CHUNK_BYTES for relay in relays), "a part of the model")
        assert not blob.exists()
        assert {status["height"] for status in now.values()} == {1}
        await net.kill("node2")
        assert not has_vote(net, "node2", 2)
        for relay in relays:
            relay.bytes_per_s = None
        await net.start("node2", "node3")
        await wait_until_over(net, change)
        assert blob.read_bytes() == model
        await wait_until_done(net)
        assert await net.check_agreement() == 3
        assert len(await net.read_contributors("node0", 3)) >= 3
        await stop_and_verify(net)


@pytest.mark.long
async def test_a_second_run_trains_a_model_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose configuration does not allow it votes, and does not train."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))  # as a user has it: the module is no part of fednode
    directory = make_federation(tmp_path / "net", method="fedavg", rounds=1, difficulty=DIFFICULTY, partition="iid")
    async with Federation(directory) as net:
        for name in ("node0", "node1", "node2"):
            change_config(net, name, "training", plugins=["support"])
        run = net.genesis.run
        named = {"name": "support.data.user_models:make_small"}  # and with its parameters, as genesis new writes it
        model = resolve_model(named, run.input["shape"], len(run.classes))
        initial = tmp_path / "small.safetensors"
        initial.write_bytes(encode_arrays(make_initial_aggregate(model, run.input["shape"], len(run.classes), 2)))
        terms = tmp_path / "run.yaml"
        terms.write_text(dump_yaml({"model": model}))
        await net.start()
        await wait_until_done(net)
        change = await propose_run(net, "node0", terms, "--initial", initial, "--rounds", 2)
        for name in ("node1", "node2"):
            await approve(net, name, change)
        await wait_until_over(net, change)
        await net.wait_for_height(4)
        for height in (3, 4):
            assert sorted(await net.read_contributors("node0", height)) == ["node0", "node1", "node2"]
        assert await net.check_agreement() == 4
        await stop_and_verify(net)
