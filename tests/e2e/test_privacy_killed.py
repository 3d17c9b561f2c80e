"""A site that hides samples and is killed, put back, given other samples and another run: at no moment does its account
say less epsilon than its own contributions on the chain come to, added up here by their weights and their runs."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chain.store.sqlite import SqliteStore
from ml.accountant import Release, Told, compute_epsilon
from node.config.yaml_source import dump_yaml, read_yaml
from node.training.privacy_ledger import read_told
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e

SEED = 36
MOST_S = 0.5  # from when a node answers, or has made some blocks, until it is killed
LOOKED_AT = 8  # of so many kills of the daemon one is looked at by epsilon, which takes seconds to add up
DELTA = 1e-5
BATCH = 32
NAME = "node0"
SETTINGS = ("dp_noise=2", "local_iterations=5", "weights=samples")
NEXT_RUN = ("--set", "dp_noise=1", "--set", "local_iterations=3", "--rounds", 100_000, "--continue")


def add_up_chain(net: Federation) -> Told:
    """What the site's contributions on its stopped node's chain have told: each a phase on as many samples as its
    weight says, by the run in force."""
    told = Told()
    with SqliteStore.open(net.get_data_dir(NAME), net.genesis, readonly=True) as store:
        for stored in store.blocks(1, store.head_height):
            for contribution in stored.block.contributions:
                method = store.get_state(stored.block.height - 1).run.method
                steps, noise = int(method["local_iterations"]), float(method["dp_noise"])
                told.add(Release(steps, BATCH / contribution.weight, noise))
    return told


def read_account_file(net: Federation) -> Told:
    return read_told(net.get_data_dir(NAME) / "privacy.json")


def check_phases(net: Federation) -> tuple[Told, Told]:
    """The account of a stopped node, and what its chain shows: of that each step and each phase is in the account."""
    told, shown = read_account_file(net), add_up_chain(net)
    assert told.phases >= shown.phases
    for how, steps in shown.steps.items():
        assert told.steps[how] >= steps, f"{how}: {told.steps} for {shown.steps}"
    assert told.guessable == 0
    return told, shown


def check_epsilon(net: Federation, what: str) -> None:
    """Epsilon of a stopped node is no less than what its chain comes to, and is what its operator is told."""
    told, shown = check_phases(net)
    epsilon, least = compute_epsilon(told, DELTA), compute_epsilon(shown, DELTA)
    print(f"{what}: told {epsilon:.2f} in {told.phases} phases; the chain shows {least:.2f} in {shown.phases}")
    assert epsilon >= least
    asked = run_command("privacy", "-c", net.nodes[NAME].node.config_file, "--rounds", 1, "--json")
    assert asked.code == 0, asked.err
    assert json.loads(asked.out)["told"]["epsilon"] == epsilon


async def contribute(net: Federation, num: int = 2) -> None:
    """Has the site start, where it is down, and contribute so many times."""
    await net.start()
    for _ in range(num):
        await net.wait_for_contribution(NAME, (await net.get_status(NAME))["height"])


async def kill_worker(net: Federation) -> bool:
    """False where there is none at this moment."""
    worker: int | None = (await net.get_status(NAME)).get("worker_pid")
    if worker is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    return True


def change_data(net: Federation, **values: Any) -> None:
    """Deals other samples to the stopped site."""
    file = net.nodes[NAME].node.config_file
    config = read_yaml(file).value
    config["data"]["partition"] |= values
    config["data"]["partition"].pop("sha256", None)
    file.write_text(dump_yaml(config), encoding="utf-8")


async def kill_at_random(net: Federation, num: int, file: Path, old: Path) -> None:
    """Kills the worker or the daemon so many times; `old` becomes the account that knew of the first contribution."""
    rng = random.Random(SEED)
    killed = {"worker": 0, "daemon": 0}
    told, shown, is_kept = Told(), Told(), False
    for _ in range(num):
        await net.start()
        if rng.random() < 0.75:
            await net.wait_for_height((await net.get_status(NAME))["height"] + rng.randrange(1, 4))
        await asyncio.sleep(rng.uniform(0.0, MOST_S))
        if rng.random() < 0.5 and await kill_worker(net):
            killed["worker"] += 1
            continue
        await net.kill(NAME)
        killed["daemon"] += 1
        told, shown = check_phases(net)
        if killed["daemon"] % LOOKED_AT == 0:
            check_epsilon(net, f"killed {killed}")
        if not is_kept and shown.phases > 0:
            shutil.copy(file, old)
            is_kept = True
    print(f"killed {killed}: {told.phases} phases counted, {shown.phases} contributions")
    assert min(killed.values()) >= num // 4
    assert is_kept


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [pytest.param(8, marks=pytest.mark.outer), pytest.param(60, marks=pytest.mark.long)])
async def test_epsilon_is_never_less_than_the_chain_shows(tmp_path: Path, kills: int) -> None:
    directory = make_federation(
        tmp_path / "net", num_nodes=1, method="fedavg", settings=SETTINGS, rounds=0, difficulty=16, partition="iid"
    )
    file, old = directory / "data" / NAME / "privacy.json", tmp_path / "old.json"
    async with Federation(directory) as net:

        async def go_on(what: str, num: int = 2) -> None:
            await contribute(net, num)
            await net.kill(NAME)
            check_epsilon(net, what)

        await kill_at_random(net, kills, file, old)
        await go_on("after the kills")
        shutil.copy(old, file)
        await go_on("an older account was put back")
        file.unlink()
        await go_on("the account was gone")

        await contribute(net)
        asked = await asyncio.to_thread(
            run_command, "propose", "run", *NEXT_RUN, "--yes", "-c", net.nodes[NAME].node.config_file
        )
        assert asked.code == 0, asked.err
        await net.wait_for(lambda now: now[NAME]["run"] == 2, "the second run")
        await go_on("two runs", 4)
        shutil.copy(old, file)
        await go_on("an account of the first run was put back in the second")

        change_data(net, shots=10)
        await go_on("on fewer samples", 4)
        rates = {rate for rate, _ in add_up_chain(net).steps}
        assert len(rates) == 2
        shutil.copy(old, file)
        change_data(net, shots=60)
        await go_on("an account of other samples was put back")
        assert len({rate for rate, _ in add_up_chain(net).steps} - rates) == 1
