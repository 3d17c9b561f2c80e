"""A run of real nodes that patience ends: at one height for all, whoever was killed there or came late."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ml.payload import encode_arrays
from node.admin.client import AdminClient
from node.pb import admin_pb2 as pb
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FIRST = ("node0", "node1", "node2")


async def test_patience_ends_a_run_at_one_height_for_the_killed_and_the_late(tmp_path: Path) -> None:
    directory = make_federation(
        tmp_path / "net",
        num_nodes=4,
        rounds=30,
        method="fedavg",
        partition="iid",
        settings=(
            "local_iterations=10",
            "lr=0.5",
            "data.val=0.2",
            "select.by=loss",
            "select.patience=1",
            "select.min_delta=0.1",
        ),
    )
    async with Federation(directory) as net:
        await net.start(*FIRST)
        await net.wait_for(lambda now: any(s["selected"]["stopped"] for s in now.values()), "the end by patience")
        await net.kill("node1")
        await net.start("node1")
        await net.wait_for(lambda now: all(now[name]["done"] for name in FIRST), "the height that closes the run")
        await net.start("node3")
        statuses = await net.wait_for(
            lambda now: all(s["done"] and s.get("applied_round") == s["selected"]["stopped"] for s in now.values()),
            "the late one at the end",
        )
        last = await net.check_agreement()
        (selected,) = {json.dumps(s["selected"], sort_keys=True) for s in statuses.values()}
        found = json.loads(selected)
        assert 0 < found["best_round"] < found["stopped"] == last - 1 < 30
        assert statuses["node0"]["applied_round"] == found["stopped"]
        samples = encode_arrays({"x": np.zeros((2, 1, 8, 8), np.uint8)})
        for asked, number in (("", found["best_round"]), ("newest", found["stopped"])):
            said = await net.ask("node0", _ask_about(samples, asked))
            assert (said.applied_round, said.is_best) == (number, asked == "")
    digests = dict[str, str]()
    for name in net.names:
        place = net.get_data_dir(name)
        verified = run_command("chain", "verify", "--deep", "--data-dir", place)
        assert verified.code == 0, verified.err
        info = json.loads(run_command("model", "info", "--round", "newest", "--json", "--data-dir", place).out)
        assert (info["applied_round"], info["is_best"]) == (found["stopped"], False)
        best = json.loads(run_command("model", "info", "--json", "--data-dir", place).out)
        shown = (best["applied_round"], best["is_best"])
        late = (found["stopped"], False)  # it was away then, and has neither that model nor the round's aggregate
        assert (name, shown) == (name, (found["best_round"], True) if name in FIRST else late)
        digests[name] = best["sha256"]
        own = statuses[name]["own_best"]
        assert own["by"] == "loss"
        kept = json.loads(run_command("model", "info", "--round", "own-best", "--json", "--data-dir", place).out)
        assert (name, kept["applied_round"]) == (name, own["round"])
    assert len({digests[name] for name in FIRST}) == 1


def _ask_about(samples: bytes, round_: str) -> Callable[[AdminClient], pb.PredictReply]:
    return lambda admin: admin.predict(samples, 1, 60.0, round_=round_)
