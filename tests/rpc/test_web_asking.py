"""Files dropped on a node's page: what the model says of their samples, and what its answers are worth."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from node.admin.asking import Labelled
from node.admin.judging import evaluate_node
from node.admin.tokens import Role
from node.web.asking import RESAMPLES
from support.federation.asked_over_http import serving_page

API = "/api/v1"
CALL_S = 60.0


def pack(**arrays: NDArray[np.generic]) -> bytes:
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # type: ignore[arg-type]
    return archive.getvalue()


async def test_a_dropped_file_is_predicted(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        shape = page.one.context.genesis.run.input["shape"]
        archive = pack(x=np.zeros((2, *shape), np.float32))
        key = page.open(Role.PREDICT)
        answer = await page.post(f"{API}/predict?name=two.npz&prior=1", archive, key=key)
        assert (answer.code, len(answer.json["predictions"])) == (200, 2), answer.json
        assert (answer.json["rows"], answer.json["expected"], answer.json["columns"]) == ([0, 1], None, [])
        classes = page.one.context.genesis.run.classes
        for said in answer.json["predictions"]:
            assert {one["class"] for one in said["top"]} == set(classes)
        for wrong in ("x", "nan", "-1", "1e9"):
            refused = f"{API}/predict?name=two.npz&prior={wrong}"
            assert (await page.post(refused, archive, key=key)).code == 400, wrong


async def test_a_labelled_file_is_evaluated_as_the_command_does(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        run, rng = page.one.context.genesis.run, np.random.default_rng(2)
        x = rng.random((30, *run.input["shape"]), np.float32)
        y = rng.integers(0, len(run.classes), 30)
        data, key = pack(x=x, y=y), page.open(Role.PREDICT)
        (tmp_path / "own.npz").write_bytes(data)
        told = (await page.post(f"{API}/predict?name=own.npz&round=newest", data, key=key)).json
        assert told["expected"] == [run.classes[label] for label in y]
        answer = await page.post(f"{API}/evaluate?name=own.npz&round=newest", data, key=key)
        expected = await page.one.ask(
            lambda node: evaluate_node(
                node, [tmp_path / "own.npz"], Labelled(), resamples=RESAMPLES, timeout_s=CALL_S, round_="newest"
            )
        )
        told = replace(expected, answer_by=None).to_record()  # which the page reads in the configuration
        assert (answer.code, answer.json) == (200, json.loads(json.dumps(told)))


async def test_what_cannot_be_evaluated_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        shape, key = page.one.context.genesis.run.input["shape"], page.open(Role.PREDICT)
        bare, labelled = pack(x=np.zeros((2, *shape))), pack(x=np.zeros((2, *shape), np.float32), y=np.array([0, 1]))
        for asked, data, said in (
            ("name=a.npz", pack(x=np.zeros((2, *shape), np.float32)), "a.npz: expected a label for each sample"),
            ("name=a.npz&by=sex", labelled, "expected a table, which has a column 'sex'"),
            ("name=a.npz&by=sex&cuts=40,old", labelled, "cuts: expected numbers, as in 40,60"),
            ("name=a.npz&calibrated=maybe", labelled, "calibrated: expected true or false"),
            ("name=a.npz&round=third", labelled, "round: expected newest, best, own-best or a number"),
            ("name=a.exe", bare, "name: expected a file"),
        ):
            answer = await page.post(f"{API}/evaluate?{asked}", data, key=key)
            assert (answer.code, said in answer.json["error"]) == (400, True), answer.json
        assert (await page.post(f"{API}/evaluate?name=a.npz", labelled, key=page.open(Role.READ))).code == 403
        assert (await page.post(f"{API}/predict?name=a.npz&round=best", labelled, key=key)).code == 404
