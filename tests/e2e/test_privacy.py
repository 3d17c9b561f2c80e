"""A federation that hides samples: real nodes keep account of what they have told, through `kill -9` and a restore, and
one whose budget is spent sends nothing more while all go on. And a site that hides itself alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from chain.block import Digest
from chain.store.sqlite import SqliteStore
from ml.accountant import Release, Told, compute_epsilon
from ml.payload import Array, decode_arrays
from node.config.genesis_file import load_genesis
from node.training.privacy_ledger import read_told
from support.federation.real_nodes import Federation, ask_stopped, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

SETTINGS = ("dp_noise=2", "local_iterations=5", "waits.collect_s=10")  # so that a block has also who is slow
BUDGET = 2.0


async def count_contributions(net: Federation, name: str) -> int:
    """How many blocks hold one of this node."""
    height = (await net.get_status(name))["height"]
    return sum([name in await net.read_contributors(name, each) for each in range(1, height + 1)])


async def test_a_site_tells_no_more_than_its_budget_and_counts_through_kill_9(tmp_path: Path) -> None:
    net = Federation(make_federation(tmp_path / "net", num_nodes=4, method="dfpl", settings=SETTINGS, rounds=0))
    config = net.directory / "node3.yaml"
    text = config.read_text()
    assert "\ntraining:\n" in text
    config.write_text(text.replace("\ntraining:\n", f"\ntraining:\n  privacy_budget: {BUDGET}\n"))
    files = {name: net.get_data_dir(name) / "privacy.json" for name in net.names}
    async with net:
        await net.start()
        last = await net.wait_for_contribution("node3", 0)
        log = net.nodes["node3"].log_file
        while "the privacy budget is spent: epsilon is" not in log.read_text():
            last += 1
            await net.wait_for_height(last)
        spent = read_told(files["node3"])
        assert 0 < compute_epsilon(spent, 1e-5) <= BUDGET
        assert await count_contributions(net, "node3") <= spent.phases
        shown = await net.get_status("node3")
        while shown["privacy"]["epsilon"] is None:
            await net.wait_for_height(shown["height"] + 1)
            shown = await net.get_status("node3")
        privacy = shown["privacy"]
        assert (privacy["phases"], privacy["budget"], privacy["delta"]) == (spent.phases, BUDGET, 1e-5)
        assert 0 < privacy["epsilon_phases"] <= spent.phases
        assert 0 < privacy["epsilon"] <= BUDGET

        await net.kill("node0")
        before = read_told(files["node0"])
        await net.start("node0")
        height = (await net.get_status("node0"))["height"]
        again = await net.wait_for_contribution("node0", height)
        await net.wait_for_height(again + 2)
        assert read_told(files["node3"]) == spent
        assert "node3" not in await net.read_contributors("node1", again + 1)
        assert await net.check_agreement() > again
        num_sent = await count_contributions(net, "node0")
    after = read_told(files["node0"])
    assert after.phases > before.phases
    assert after.phases >= num_sent  # and not the fewer that came after the restart
    report = ask_stopped(net.directory, 1, "chain", "verify", "--deep")
    assert report["ok"]
    told = ask_stopped(net.directory, 0, "runs", "report", "--no-verify")["privacy"]
    assert (told["noise"], told["phases"], told["delta"]) == (2.0, after.phases, 1e-5)
    assert told["epsilon"] == pytest.approx(compute_epsilon(after, 1e-5))
    page = tmp_path / "report.html"
    assert run_command("runs", "report", "-o", page, "--no-verify", "--data-dir", files["node0"].parent).code == 0
    assert f"{told['epsilon']:.2f}, of {after.phases} local phases" in page.read_text()
    assert json.loads(files["node0"].read_text())["prototypes"] == [[5.0, after.phases]]


async def test_a_node_put_back_from_an_old_backup_says_no_less_than_it_had_told(tmp_path: Path) -> None:
    net = Federation(make_federation(tmp_path / "net", num_nodes=4, method="dfpl", settings=SETTINGS, rounds=0))
    config, data_dir = net.directory / "node3.yaml", net.get_data_dir("node3")
    file = tmp_path / "node3.tar"
    async with net:
        await net.start()
        await net.wait_for_height(await net.wait_for_contribution("node3", 0))
        done = run_command("backup", file, "-c", config)
        assert done.code == 0, done.err
        held = json.loads(run_command("privacy", "-c", config, "--rounds", 1, "--json").out)["told"]
        await net.wait_for_height(await net.wait_for_contribution("node3", held["phases"] + 4))
        await net.kill("node3")
        before = json.loads(run_command("privacy", "-c", config, "--rounds", 1, "--json").out)["told"]
        assert before["epsilon"] > held["epsilon"]
        shutil.rmtree(data_dir)
        done = run_command("restore", file, "-c", config)
        assert done.code == 0, done.err
        behind = read_told(data_dir / "privacy.json")
        assert behind.phases < before["phases"]

        await net.start("node3")
        height = max(status["height"] for status in (await net.get_statuses()).values())
        await net.wait_for_height(height + 1)
        after = json.loads(run_command("privacy", "-c", config, "--rounds", 1, "--json").out)["told"]
        assert after["epsilon"] >= before["epsilon"]
        await net.wait_for_contribution("node3", height + 2)
        num_sent = await count_contributions(net, "node3")
        assert read_told(data_dir / "privacy.json").phases >= num_sent
        await net.check_agreement()
    log = net.nodes["node3"].log_file.read_text()
    assert log.count("The account of what this site has told lacked") >= 1


async def test_one_site_hides_itself_in_a_run_without_noise(tmp_path: Path) -> None:
    noise, clip = 0.5, 0.2
    net = Federation(make_federation(tmp_path / "net", num_nodes=4, method="fedavg", settings=SETTINGS[1:], rounds=0))
    config = net.directory / "node3.yaml"
    own = f"privacy: {{dp_update_noise: {noise}, dp_update_clip: {clip}}}"
    config.write_text(config.read_text().replace("\ntraining:\n", f"\ntraining:\n  {own}\n"))
    async with net:
        await net.start()
        height = await net.wait_for_contribution("node3", 2)
        await net.wait_for_height(height + 1)
        await net.check_agreement()
        shown = json.loads(run_command("privacy", "-c", config, "--rounds", 1, "--json").out)
        assert (shown["update_noise"], shown["is_own"]) == (noise, True)
        assert shown["told"]["phases"] >= 2
        told = Told.of([Release.of_update(noise)] * shown["told"]["phases"])
        assert shown["told"]["epsilon"] == compute_epsilon(told, 1e-5)
        other = run_command("privacy", "-c", net.directory / "node0.yaml")
        assert other.code == 1
        assert "expected a run that hides samples" in other.err
        assert not get_file(net, "node0").exists()
    genesis = load_genesis(net.directory / "genesis.yaml").genesis
    with SqliteStore.open(net.get_data_dir("node0"), genesis, readonly=True) as store:
        block, before = store.get_block(height), store.get_block(height - 1)
        assert block is not None
        assert before is not None
        common = read_model(store, before.block.header.aggregate, "model/")
        spread = {
            each.author: np.std(read_model(store, each.payloads[0].digest) - common)
            for each in block.block.contributions
        }
    hidden = spread.pop(next(member.key for member in genesis.state.members if member.name == "node3"))
    assert hidden == pytest.approx(noise * clip, rel=0.1)  # of some thousand numbers
    assert max(spread.values()) < 0.3 * hidden
    report = ask_stopped(net.directory, 1, "chain", "verify", "--deep")
    assert report["ok"]  # and nobody has found anything wrong with it
    page = ask_stopped(net.directory, 3, "runs", "report", "--no-verify")["privacy"]
    assert (page["noise"], page["clip"], page["hides_sites"], page["own_from"]) == (noise, clip, True, 1)


def get_file(net: Federation, name: str) -> Path:
    return net.get_data_dir(name) / "privacy.json"


def read_model(store: SqliteStore, digest: Digest, prefix: str = "") -> Array:
    """All numbers of a model in a blob."""
    data = store.get_blob(digest)
    arrays = decode_arrays(data, len(data))
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays) if name.startswith(prefix)])
