"""The word of a site's operator to lend its own model, from a shell, over HTTP and from Python: never unasked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from fednode.client import Client
from node.admin import client as admin_client
from node.training.checkpoint import CHECKPOINTS, Checkpoint, Checkpoints, Phase, get_run_dir
from support.federation.asked import ask_json, make_config, running
from support.federation.asked import run_command as run
from support.federation.recording import PATIENCE_S

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


def leave_own_model(tmp_path: Path) -> None:
    """As training leaves it after the first round."""
    checkpoints = Checkpoints(get_run_dir(make_config(tmp_path).node.data_dir / CHECKPOINTS, 1))
    checkpoints.save(Checkpoint(1, Phase.APPLIED, {"model/w": np.zeros(1)}))
    checkpoints.close()


async def test_a_site_lends_by_its_operators_last_word_and_never_unasked(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1, n=4, load=lambda: make_config(tmp_path)) as one:
        await one.net.wait_for_height(1)
        refused = await run(capsys, one, "propose", "evaluation", "--lend", "--yes", code=1)
        assert "lend: this site's own model after round 1 is not kept here" in refused
        leave_own_model(tmp_path)
        draft = await run(capsys, one, "propose", "evaluation", "--may-lend", "--dry-run")
        assert "sends the weights of its own model of run 1, round 1 to all members and observers" in draft
        proposed = await ask_json(capsys, one, "propose", "evaluation", "--may-lend", "--yes")
        terms = json.loads(proposed["terms"])["run"]
        assert (terms["rounds"], terms["method"]["lend"], terms["method"]["only_lent"]) == (2, True, True)
        assert not proposed["lends_here"]
        change = proposed["id"]
        again = await run(capsys, one, "propose", "evaluation", "--lend", "--yes", code=2)
        assert "this change is open already" in again
        assert not (await ask_json(capsys, one, "proposals", "show", change))["lends_here"]
        assert not (await ask_json(capsys, one, "approve", change, "--yes"))["lends_here"]
        assert (await ask_json(capsys, one, "approve", change, "--yes", "--lend"))["lends_here"]
        assert "this site's own model, to all members and observers" in await run(
            capsys, one, "proposals", "show", change
        )
        refused = await run(capsys, one, "approve", change, "--yes", "--lend", "--no-train", code=2)
        assert "a site that lends takes part" in refused
        assert not (await ask_json(capsys, one, "approve", change, "--yes"))["lends_here"]
        with Client(one.path) as node:
            assert (await asyncio.to_thread(lambda: node.approve(change, lend=True)))["lends_here"]
            assert not (await asyncio.to_thread(lambda: node.approve(change)))["lends_here"]
            unasked = await asyncio.to_thread(lambda: node.propose("evaluation", lend=True, min_samples=70))
            assert not unasked["lends_here"]
        lent = await run(capsys, one, "propose", "evaluation", "--lend", "--min-samples", "60", "--yes")
        assert "By this you send the weights of this site's own model to all members and observers." in lent
        assert "lent " in lent


async def test_nothing_is_lent_by_other_changes(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1, n=4) as one:
        await one.net.wait_for_height(1)
        words = ("propose", "set", "keep_heights=7", "--yes")
        change = (await ask_json(capsys, one, *words))["id"]
        said = await run(capsys, one, "approve", change, "--yes", "--lend", code=1)
        assert "nothing is lent by this change" in said
