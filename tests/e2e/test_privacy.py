"""A federation that hides samples: real nodes keep account of what they have told, through `kill -9`, and one whose
budget is spent sends nothing more while all go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.accountant import compute_epsilon
from node.training.privacy_ledger import read_told
from support.federation.real_nodes import Federation, ask_stopped, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SETTINGS = ("dp_noise=2", "local_iterations=5")
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
