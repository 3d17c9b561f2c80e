"""FedEDS on real nodes: sets of several MiB are shared once, and whoever died, came late or lost one gets it yet."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from chain.beacon import compute_beacon
from chain.store.sqlite import SqliteStore
from ml.payload import CHUNK_BYTES, KINDS
from ml.simulation.run import SimulationConfig, simulate
from node.addresses import parse_address
from support.faults.relay import Relay, relaying
from support.federation.dial_out import dial_by_relays
from support.federation.real_nodes import WAIT_S, Federation, Statuses, make_federation, paused, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.outer]

NODES = ("node0", "node1", "node2", "node3")
VICTIM, OTHERS = NODES[-1], NODES[:-1]
ROUNDS, SEED, PARTITION = 4, 1, "iid"  # the sharing round and three, past the end of the annealing
MODEL = "cnn_cifar"
SETTINGS = {
    "unet_width": 4,
    "warmup_epochs": 1,
    "encryptor_epochs": 1,
    "local_epochs": 2,
    "anneal_to": 2,
    "keep_sets": "true",
    "input.shape": "[3,32,32]",  # 360 samples each: sets of 5.5 MB
    "waits.collect_s": 120,
    "keep_heights": 10,  # models of 3.5 MB too, for the audit of all heights
}
CRAWLING_BYTES_PER_S = 40 * 1024  # too slow for anybody's patience: each pull breaks off, and the next begins
SLOW_BYTES_PER_S = 320 * 1024  # a quarter of a minute for a set
BESIDE_BYTES = CHUNK_BYTES // 2  # of handshakes, frames and messages, while some sets are pulled


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def list_settings(settings: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in settings.items())


def ask(net: Federation, name: str, *command: object) -> Any:
    """The object that a command prints of a stopped node's files."""
    done = run_command(*command, "--json", "--data-dir", net.get_data_dir(name))
    assert done.code == 0, done.err
    return json.loads(done.out)


async def read_transfers(net: Federation, name: str) -> list[dict[str, Any]]:
    """What `fednode status --json` shows of them."""
    shown = await asyncio.to_thread(run_command, "status", "--json", "--config", net.nodes[name].node.config_file)
    assert shown.code == 0, shown.err
    transfers: list[dict[str, Any]] = json.loads(shown.out)["transfers"]
    return transfers


def get_coming(now: Statuses) -> dict[str, dict[str, Any]]:
    """The victim's pulls of sets under way, by digest."""
    transfers = now[VICTIM]["transfers"]
    return {pull["digest"]: pull for pull in transfers if pull["incoming"] and pull["kind"] == "encrypted_set"}


def list_partials(net: Federation, name: str) -> dict[str, int]:
    """The size of each blob that is only partly here, by its digest."""
    parts = net.get_data_dir(name).rglob("*.part")
    return {part.name.partition(".")[0]: part.stat().st_size for part in parts}


def get_blob(net: Federation, name: str, digest: str) -> Path:
    return net.get_data_dir(name) / "blobs" / digest[:2] / digest


async def wait_for_files(net: Federation, files: Sequence[Path]) -> None:
    await net.wait_for(lambda _: all(file.is_file() for file in files), f"{len(files)} blobs in place")


# ---- a node dies while it pulls


async def test_a_node_that_dies_while_it_pulls_sets_goes_on_where_it_was_and_shares_its_own(tmp_path: Path) -> None:
    directory = make_federation(
        tmp_path / "net",
        num_nodes=len(NODES),
        method="fededs",
        model=MODEL,
        partition=PARTITION,
        rounds=ROUNDS,
        seed=SEED,
        settings=list_settings(SETTINGS),
        i_understand=True,
    )
    net = Federation(directory)
    servers = [parse_address(net.nodes[name].node.address) for name in OTHERS]
    async with relaying(servers, bytes_per_s=CRAWLING_BYTES_PER_S) as relays, net:
        dial_by_relays(net, VICTIM, dict(zip(OTHERS, relays, strict=True)))
        sizes, held = await kill_while_it_pulls(net, relays)
        await wait_for_sets(net, sizes, held, relays)
        await net.wait_for_height(ROUNDS)
        assert await net.check_agreement() == ROUNDS
        blocks = await net.read_chain(VICTIM)
        told = read_resumed(net, VICTIM)
    assert [block["num_contributions"] for block in blocks] == [0] + [len(NODES)] * ROUNDS
    assert sorted(told) == sorted(f"{size / 1e6:.1f} of {sizes[digest] / 1e6:.1f} MB" for digest, size in held.items())
    for name in NODES:
        report = ask(net, name, "chain", "verify", "--deep", "--require-all")
        assert (report["ok"], report["recomputed"], report["not_held"]) == (True, ROUNDS, [])
    assert simulate_the_same(net) == [block["aggregate"] for block in blocks[1:]]


async def kill_while_it_pulls(net: Federation, relays: Sequence[Relay]) -> tuple[dict[str, int], dict[str, int]]:
    """SIGKILL for the victim, which has parts of others' sets and has not shared its own: their sizes by digest, and
    what it has of them."""
    await net.start()
    await net.wait_for(lambda now: now[VICTIM]["worker_pid"] is not None, f"{VICTIM}'s worker")
    with paused(await net.get_worker(VICTIM)):
        now = await net.wait_for(lambda now: len(get_coming(now)) == len(OTHERS), f"pulls of all sets by {VICTIM}")
        sizes = {digest: int(pull["total_bytes"]) for digest, pull in get_coming(now).items()}
        await check_both_ends(net)
        for relay in relays:
            relay.bytes_per_s = SLOW_BYTES_PER_S
        await net.wait_for(
            lambda now: max((int(pull["bytes"]) for pull in get_coming(now).values()), default=0) >= CHUNK_BYTES,
            f"a chunk of a set at {VICTIM}",
        )
        assert (await net.get_status(VICTIM))["phase"] == "train"
        await net.kill(VICTIM)
    held = {digest: size for digest, size in list_partials(net, VICTIM).items() if size}
    assert held
    assert all(size % CHUNK_BYTES == 0 and size < sizes[digest] for digest, size in held.items())
    return sizes, held


async def check_both_ends(net: Federation) -> None:
    """One and the same pull of the victim's is to be seen at both its ends, as the set of another."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        coming, *going = await asyncio.gather(*(read_transfers(net, name) for name in (VICTIM, *OTHERS)))
        pulls = {(pull["peer_name"], pull["digest"]): pull for pull in coming if pull["incoming"]}
        served = {
            (name, sent["digest"]): sent
            for name, transfers in zip(OTHERS, going, strict=True)
            for sent in transfers
            if not sent["incoming"] and sent["peer_name"] == VICTIM
        }
        if both := pulls.keys() & served.keys():
            break
        assert time.monotonic() < deadline_s, f"coming {pulls}, going {served}"
    for key in both:
        assert pulls[key]["kind"] == served[key]["kind"] == "encrypted_set"
        assert pulls[key]["author_name"] == served[key]["author_name"] in OTHERS
        assert 0 <= int(pulls[key]["bytes"]) < int(pulls[key]["total_bytes"]) == int(served[key]["total_bytes"])


async def wait_for_sets(net: Federation, sizes: dict[str, int], held: dict[str, int], relays: Sequence[Relay]) -> None:
    """The victim is started again and gets all of what it lacked, and no more."""
    for relay in relays:
        relay.bytes_per_s, relay.passed = None, 0
    await net.start(VICTIM)
    await wait_for_files(net, [get_blob(net, VICTIM, digest) for digest in sizes])
    lacked = sum(sizes.values()) - sum(held.values())
    assert lacked <= sum(relay.passed for relay in relays) < lacked + BESIDE_BYTES
    assert (await net.get_status(VICTIM))["height"] == 0  # nothing else has come yet


def read_resumed(net: Federation, name: str) -> list[str]:
    """How far each pull was that did not begin from nothing, as the log has it."""
    log = net.nodes[name].log_file.read_text()
    return re.findall(r"encrypted set of \w+ from \w+  began at ((?!0\.0 )[\d.]+ of [\d.]+ MB)", log)


def simulate_the_same(net: Federation) -> list[str]:
    """The aggregates of a simulation with the same beacons."""
    genesis = net.genesis
    members = sorted(genesis.state.members, key=lambda member: member.name)
    with SqliteStore.open(net.get_data_dir(VICTIM), genesis, readonly=True) as store:
        stored = [store.get_block(height) for height in range(ROUNDS)]
    beacons = [compute_beacon(each.block) for each in stored if each is not None]
    config = SimulationConfig(
        method=dict(genesis.run.method),
        model=dict(genesis.run.model),
        input=dict(genesis.run.input),
        partition=PARTITION,
        clients=len(NODES),
        rounds=ROUNDS,
        seed=SEED,
    )
    simulated = simulate(
        config,
        ids=[member.key for member in members],
        beacons=lambda height: beacons[height - 1],
    )
    return [digest.hex() for digest in simulated.aggregate_digests]


# ---- a node lacks sets when it trains

LACKING = {
    "unet_width": 2,
    "warmup_epochs": 1,
    "encryptor_epochs": 1,
    "local_epochs": 1,
    "m": 0,  # lambda_dis stays what it is: every round trains on sets
    "draw": "batch",  # and on those of all others
    "input.shape": "[1,32,32]",
    "share_collect_s": 10,
}
LATE = VICTIM


@pytest_asyncio.fixture
async def sharing(tmp_path: Path) -> AsyncIterator[Federation]:
    """Three of four have shared their sets, and train on them for as long as they run. The fourth was never there."""
    directory = make_federation(
        tmp_path / "net",
        num_nodes=len(NODES),
        method="fededs",
        partition=PARTITION,
        rounds=0,
        seed=SEED,
        settings=list_settings(LACKING),
        i_understand=True,
    )
    async with Federation(directory) as net:
        await net.start(*OTHERS)
        await net.wait_for_height(2)
        yield net


def find_sets(net: Federation, name: str) -> dict[str, tuple[str, int]]:
    """Author, and size, of each set of block 1 by its digest, as a stopped node has it."""
    members = {member.key: member.name for member in net.genesis.state.members}
    with SqliteStore.open(net.get_data_dir(name), net.genesis, readonly=True) as store:
        stored = store.get_block(1)
    assert stored is not None
    return {
        ref.digest.hex(): (members[contribution.author], ref.size)
        for contribution in stored.block.contributions
        for ref in contribution.payloads
        if ref.kind == KINDS["encrypted_set"]
    }


def read_round(net: Federation, name: str, height: int) -> dict[str, Any]:
    """What a stopped node kept of a round."""
    with SqliteStore.open(net.get_data_dir(name), net.genesis, readonly=True) as store:
        record = store.get_round(height)
    assert record is not None, f"{name} has no record of round {height}"
    return dict(record)


@pytest.mark.long
async def test_a_node_that_joins_late_fetches_the_sets_of_those_who_shared_and_trains_on_them(
    sharing: Federation,
) -> None:
    await sharing.start(LATE)
    height = await sharing.wait_for_contribution(LATE, 2)
    await sharing.wait_for(lambda now: now[LATE]["applied_round"] >= height, f"the record of round {height}")
    assert await sharing.check_agreement() >= height
    assert sorted(await sharing.read_contributors(LATE, 1)) == sorted(OTHERS)
    await sharing.stop(LATE)
    sets = find_sets(sharing, LATE)
    for digest, (_, size) in sets.items():
        assert size > CHUNK_BYTES
        assert sha256(get_blob(sharing, LATE, digest).read_bytes()).hexdigest() == digest
    assert read_round(sharing, LATE, height)["train"]["sets"] == len(sets) == len(OTHERS)
    assert ask(sharing, LATE, "chain", "verify", "--deep")["ok"]


@pytest.mark.long
async def test_a_set_that_was_lost_is_fetched_again_from_whoever_is_there(sharing: Federation) -> None:
    """Its author is not."""
    author, loser, *_ = OTHERS
    await sharing.start(LATE)
    await sharing.wait_for_contribution(LATE, 2)
    await sharing.stop(loser)
    (lost,) = [digest for digest, (name, _) in find_sets(sharing, loser).items() if name == author]
    await sharing.kill(author)
    get_blob(sharing, loser, lost).unlink()
    await sharing.start(loser)
    await wait_for_files(sharing, [get_blob(sharing, loser, lost)])
    after = (await sharing.get_status(loser))["height"]
    height = await sharing.wait_for_contribution(loser, after)
    await sharing.wait_for(lambda now: now[loser]["applied_round"] >= height, f"the record of round {height}")
    assert author not in sharing.running
    await sharing.stop(loser)
    assert sha256(get_blob(sharing, loser, lost).read_bytes()).hexdigest() == lost
    assert read_round(sharing, loser, height)["train"]["sets"] == len(OTHERS) - 1  # all but its own
    log = sharing.nodes[loser].log_file.read_text()
    assert re.search(rf"encrypted set of {author} from (?!{author})node\d  done", log)
