"""Inversion: scores by hand, an embedding that must be undone, prototypes that say nothing, and the command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, use_threads
from node.cli import main
from node.experiments.leaks.inversion import (
    DECODER,
    MATCHED,
    MEAN,
    compare,
    compute_chance,
    decode,
    invert,
    match,
    run_inversion_bench,
    score,
)
from node.experiments.leaks.played import Played, list_embeddings, play


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with use_threads(1):
        yield


def make_config(method: str = "dfpl", rounds: int = 2) -> SimulationConfig:
    return SimulationConfig(method={"name": method}, partition="iid", clients=2, rounds=rounds)


# ---- the scores


def test_an_image_is_told_where_the_nearest_sample_is_the_sites() -> None:
    image, own = torch.tensor([[[0.0]]]), torch.tensor([[[[3.0]]], [[[-1.0]]]])
    nearest, is_told = compare(image, own, torch.tensor([[[[2.0]]]]))
    assert (nearest.item(), is_told) == (-1.0, True)
    assert not compare(image, own, torch.tensor([[[[0.5]]]]))[1]
    assert not compare(image, own, torch.tensor([[[[1.0]]]]))[1]  # as near as the site's


def test_the_sites_own_samples_are_told_and_held_out_ones_are_not() -> None:
    played = play(make_config(), 1)
    own, others = played.site.state.data.train, played.held_out
    by_class = [torch.nonzero(own.y == c)[0, 0] for c in range(10)]
    assert score(played, own.x[torch.stack(by_class)]) == {"psnr": 100.0, "told": 1.0}
    strangers = torch.stack([others.x[others.y == c][0] for c in range(10)])
    assert score(played, strangers)["told"] == 0.0
    assert compute_chance(played) == pytest.approx(10 / (10 + len(others)))


# ---- what an attacker does


def test_a_decoder_undoes_an_embedding_that_keeps_everything() -> None:
    x = torch.from_numpy(numpy_rng("images").random((120, 1, 2, 2), dtype=np.float32))
    turned = x.flatten(1) @ torch.tensor(
        [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0] * 3 + [1.0], [2.0, 0, 0, 0]]
    )
    decoded = decode(turned[:100], x[:100], turned[100:], seed=1)
    assert decoded.shape == (20, 1, 2, 2)
    assert (decoded - x[100:]).abs().mean() < 0.05  # 0.25 by the mean image
    assert torch.equal(decoded, decode(turned[:100], x[:100], turned[100:], seed=1))


def test_matching_leads_to_the_prototype_and_moves_what_the_embedding_does_not_see_not_at_all() -> None:
    begin = torch.tensor([[[[0.0, 0.3]]]])
    found = match(lambda x: x[:, 0, :, 0], torch.tensor([[1.0]]), begin, scale=1.0)
    assert found[0, 0, 0].tolist() == pytest.approx([1.0, 0.3], abs=0.02)


def put(played: Played, seed: int) -> Played:
    """With noise in the place of what the site sent, as far from 0 as that was."""
    sent = played.last.payloads["prototypes"]
    vectors = sent["prototypes"]
    noise = numpy_rng("noise", seed).random(vectors.shape, np.float32) * 2 * vectors.mean()
    payloads = {**played.last.payloads, "prototypes": {**sent, "prototypes": noise}}
    return dataclasses.replace(played, sent=[dataclasses.replace(played.last, payloads=payloads)])


def test_a_prototype_of_one_sample_gives_that_sample_back_and_noise_gives_nothing() -> None:
    told: dict[str, list[float]] = {"sent": [], "noise": []}
    for seed in (1, 2):
        played = play(dataclasses.replace(make_config("mpfedcl", rounds=10), seed=seed), 1)
        (model,) = list_embeddings(played).values()
        images = invert(played, model, seed)
        scores = {attack: score(played, recovered) for attack, recovered in images.items()}
        assert scores[MATCHED]["psnr"] > scores[MEAN]["psnr"] + 2
        assert scores[DECODER]["psnr"] > scores[MEAN]["psnr"] + 1
        told["sent"].append(scores[MATCHED]["told"])
        told["noise"].append(score(played, invert(put(played, seed), model, seed)[MATCHED])["told"])
    assert np.mean(told["sent"]) > 0.4  # of guesses 0.03
    assert np.mean(told["noise"]) < 0.2


# ---- the bench and the command


@pytest.mark.outer
def test_the_same_seed_gives_the_same_figures_and_a_panel_for_each_embedding() -> None:
    first, again = (
        run_inversion_bench(make_config(rounds=1), sizes=(1, 3), repeats=1, report=lambda _: None) for _ in range(2)
    )
    assert first.figures["attacks"] == again.figures["attacks"]
    assert list(first.figures["attacks"]) == [
        "mean of the class",
        "dfpl, own model: decoder",
        "dfpl, own model: matched",
        "dfpl, the site's model: decoder",
        "dfpl, the site's model: matched",
        "mpfedcl: decoder",
        "mpfedcl: matched",
    ]
    assert [panel.title for panel in first.panels] == ["dfpl, own model", "dfpl, the site's model", "mpfedcl"]
    rows = first.panels[-1].rows
    assert list(rows) == ["nearest of 1", "back, of 1", "nearest of 3", "back, of 3"]
    assert {images.shape for images in rows.values()} == {(6, 1, 8, 8)}


@pytest.mark.outer
def test_the_command_prints_a_table_or_one_json_object_and_draws(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "back.png"
    asked = ["experiment", "attack", "inversion", "--sizes", "1", "--rounds", "1", "--repeats", "1"]
    assert main([*asked, "--png", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-8][:37].strip() == "a guess"
    assert lines[-8].split()[-1] == "3%"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*asked, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["attacks"]["mpfedcl: matched"]["1"].keys() == {"psnr", "told"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--png /nowhere/x.png", "--png: /nowhere/x.png: cannot be written"),
        ("--sizes 0", "--sizes: expected different whole numbers from 1 on"),
    ],
)
def test_the_command_refuses_what_cannot_be_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert main(["experiment", "attack", "inversion", "--rounds", "1", *arguments.split()]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
