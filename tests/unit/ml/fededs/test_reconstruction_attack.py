"""The reconstruction attack: measures against their definitions, a decoder where it must succeed and where it cannot,
and the benchmark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.fededs.reconstruction_attack import (
    MAX_PSNR,
    Scaling,
    compute_matched,
    compute_psnr,
    compute_ssim,
    fit_affine,
    train_decoder,
)
from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, use_threads
from ml.specs.architectures import complete_model
from node.cli import main
from node.experiments.reconstruct import Attack, Reconstruction, explain, run_reconstruct_bench
from node.experiments.reconstruct_plot import lay_out

SCORES = {"psnr", "ssim", "told_apart"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with use_threads(1):
        yield


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(numpy_rng("images", seed).random(shape, dtype=np.float32))


# ---- the measures


def test_psnr_is_the_decibels_between_range_and_error() -> None:
    x = torch.zeros(3, 1, 2, 2)
    y = torch.stack([torch.full((1, 2, 2), 0.1), torch.tensor([[[0.2, 0.0], [0.0, 0.0]]]), torch.zeros(1, 2, 2)])
    assert compute_psnr(x, y, 1.0).tolist() == pytest.approx([20.0, 20.0, MAX_PSNR], abs=1e-5)
    assert compute_psnr(255 * x, 255 * y, 255.0)[0].item() == pytest.approx(20.0, abs=1e-5)
    assert compute_psnr(x, y, 2.0)[0].item() == pytest.approx(20 + 20 * math.log10(2), abs=1e-5)


def compute_ssim_slowly(x: NDArray[np.float64], y: NDArray[np.float64], data_range: float) -> float:
    """Eq. (13) of Wang et al. window by window, with the weighted moments of Eqs. (14) to (16) as they are written."""
    places = np.arange(11) - 5
    weights = np.exp(-(places[:, None] ** 2 + places[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    values = []
    for top in range(x.shape[0] - 10):
        for left in range(x.shape[1] - 10):
            a, b = x[top : top + 11, left : left + 11], y[top : top + 11, left : left + 11]
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
            cov = (weights * (a - mean_a) * (b - mean_b)).sum()
            values.append(
                (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
            )
    return float(np.mean(values))


@pytest.mark.parametrize("data_range", [1.0, 3.0])
def test_ssim_is_what_its_definition_gives_window_by_window(data_range: float) -> None:
    x, y = draw(4, 2, 14, 13), draw(4, 2, 14, 13, seed=2)
    y[1] = 0.7 * x[1] + 0.3 * y[1]
    y[2] = 1 - x[2]
    slowly = [
        np.mean([compute_ssim_slowly(a, b, data_range) for a, b in zip(one, other, strict=True)])
        for one, other in zip(x.double().numpy(), y.double().numpy(), strict=True)
    ]
    assert compute_ssim(x, y, data_range).tolist() == pytest.approx(slowly, abs=1e-9)
    assert slowly[2] < 0 < slowly[1]


def test_ssim_of_an_image_with_itself_is_one() -> None:
    x = draw(3, 3, 11, 20)
    assert compute_ssim(x, x, 1.0).tolist() == pytest.approx([1.0] * 3, abs=1e-12)


def test_ssim_of_two_constants_is_their_luminance_term() -> None:
    a, b = 0.25, 0.75
    x, y = torch.full((1, 1, 16, 16), a), torch.full((1, 1, 16, 16), b)
    expected = (2 * a * b + 1e-4) / (a**2 + b**2 + 1e-4)
    assert compute_ssim(x, y, 1.0).item() == pytest.approx(expected, abs=1e-9)


def test_ssim_refuses_images_smaller_than_its_window() -> None:
    with pytest.raises(ValueError, match="at least 11x11 pixels, got 10x12"):
        compute_ssim(draw(1, 1, 10, 12), draw(1, 1, 10, 12), 1.0)


def test_only_images_nearest_to_their_own_original_are_told_apart() -> None:
    x = torch.tensor([0.0, 0.4, 1.0]).view(3, 1, 1, 1).expand(3, 1, 2, 2)
    assert compute_matched(x, x) == 1.0
    assert compute_matched(x * 0.7, x) == pytest.approx(2 / 3)  # 0.28 is nearest to 0.4, 0.7 is nearest to 0.4 or 1
    assert compute_matched(x.mean(0, keepdim=True).expand_as(x), x) == pytest.approx(1 / 3)
    assert compute_matched(x.flip(0), x) == pytest.approx(1 / 3)


# ---- the attacker


def test_an_affine_map_is_found_for_each_channel() -> None:
    x = draw(20, 2, 4, 4)
    factors, offsets = torch.tensor([2.0, -0.5]).view(1, 2, 1, 1), torch.tensor([-1.0, 3.0]).view(1, 2, 1, 1)
    factor, offset = fit_affine((x - offsets) / factors, x)
    torch.testing.assert_close(factor, factors)
    torch.testing.assert_close(offset, offsets)


def decode(encrypted: Tensor, x: Tensor, num_pairs: int, *, steps: int = 60) -> Tensor:
    scaling = Scaling.measure(encrypted)
    decoder = train_decoder(
        scaling.apply(encrypted[:num_pairs]),
        x[:num_pairs],
        width=4,
        steps=steps,
        batch_size=16,
        lr=0.01,
        rng=numpy_rng("decoder", 1),
    )
    return decoder.decode(encrypted[num_pairs:], scaling)


def test_a_decoder_undoes_a_local_transformation_and_gets_nothing_of_noise() -> None:
    x = torch.nn.functional.interpolate(draw(48, 1, 4, 4), scale_factor=3, mode="bilinear")
    inverted = 7 - 5 * x + 2 * x.roll(1, 3)  # negative, at another scale, with a ghost
    recovered = decode(inverted, x, 32)
    assert compute_matched(recovered, x[32:]) == 1.0
    assert compute_ssim(recovered, x[32:], 1.0).mean() > 0.8
    nothing = decode(draw(48, 1, 12, 12, seed=3), x, 32)
    assert compute_matched(nothing, x[32:]) < 0.5
    assert compute_psnr(nothing, x[32:], 1.0).mean() + 5 < compute_psnr(recovered, x[32:], 1.0).mean()


def test_a_decoder_is_the_same_for_the_same_seed_and_leaves_torchs_generator_alone() -> None:
    x = draw(8, 1, 8, 8)
    before = torch.get_rng_state()
    first, second = decode(1 - x, x, 4, steps=2), decode(1 - x, x, 4, steps=2)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


# ---- the benchmark


def bench(
    layers: tuple[str, ...] = ("identity",), *, size: int = 16, repeats: int = 1, attack: Attack, **settings: Any
) -> Reconstruction:
    method = {"name": "fededs", "unet_width": 2, "warmup_epochs": 1, "encryptor_epochs": 1}
    config = SimulationConfig(
        method=method | settings.pop("method", {}),
        model=complete_model({"name": "cnn_cifar"}),
        input={"shape": [1, size, size], "resize": [size, size]},
        partition="iid",
        clients=2,
        **{"shots": 4, **settings},
    )
    return run_reconstruct_bench(config, attack, layers=layers, repeats=repeats, report=lambda _: None)


QUICK = Attack(pairs=(4, 500), encryptors=1, steps=2, width=2)


def test_each_layer_and_attack_has_its_scores_and_the_same_seed_gives_them_again() -> None:
    layers = ("gaussian", "identity")
    made = bench(layers, attack=QUICK, method={"share_dtype": "uint8"})
    assert made.figures["job"]["samples"] == {"victim": 40, "attacker": 40, "held_out": 20}
    assert list(made.figures["layers"]) == list(layers)
    assert list(made.figures["layers"]["gaussian"]["attacks"]) == [
        "mean image",
        "mean of the class",
        "x' as it is",
        "no pairs",
        "4 pairs",
        "20 pairs",
    ]
    for found in made.figures["layers"].values():
        assert 0 <= found["labels_shown"] <= 1
        for scores in found["attacks"].values():
            assert scores.keys() == SCORES
            assert all(math.isfinite(spread["median"]) for spread in scores.values())
        assert found["attacks"]["mean image"]["told_apart"]["median"] <= 1 / 20
    assert [panel.title for panel in made.panels] == [f"layer {layer}" for layer in layers]
    assert list(made.panels[0].rows) == ["original", "shared", "no pairs", "4 pairs", "20 pairs"]
    assert json.loads(json.dumps(made.figures)) == made.figures
    again = bench(layers[:1], attack=QUICK, method={"share_dtype": "uint8"})
    assert again.figures["layers"]["gaussian"] == made.figures["layers"]["gaussian"]


@pytest.mark.long
def test_known_pairs_open_a_set_and_samples_stay_beside_what_was_shared_of_them() -> None:
    """That pairs are pairs: out of order, a decoder could not tell one sample from another."""
    attack = Attack(pairs=(16,), encryptors=1, steps=300)
    method = {"unet_width": 8, "warmup_epochs": 5, "encryptor_epochs": 10}
    found = bench(("gaussian", "identity"), attack=attack, method=method, shots=None).figures["layers"]
    for layer, least in (("gaussian", 0.1), ("identity", 0.8)):
        assert found[layer]["labels_shown"] > 0.5  # a tenth, were labels and samples out of order
        told = {name: scores["told_apart"]["median"] for name, scores in found[layer]["attacks"].items()}
        psnr = {name: scores["psnr"]["median"] for name, scores in found[layer]["attacks"].items()}
        assert told["359 pairs"] > max(least, told["16 pairs"], told["mean of the class"])
        assert psnr["359 pairs"] > psnr["16 pairs"]
        assert psnr["359 pairs"] > psnr["mean of the class"] > psnr["mean image"]


def describe(**told: float) -> dict[str, Any]:
    return {
        "attacks": {
            name.strip("_").replace("_", " "): {"told_apart": {"median": share}} for name, share in told.items()
        }
    }


def test_the_meaning_says_what_was_found_and_no_more() -> None:
    opened = explain("gaussian", describe(no_pairs=0.02, _16_pairs=0.25, _64_pairs=0.5, _359_pairs=0.9))
    assert "who knows 16 of a site's samples recovers 25% of the others" in opened
    assert "who knows 359 90%, and who knows none 2% by this attack: this is obfuscation, not encryption" in opened
    closed = explain("gaussian", describe(no_pairs=0.01, _16_pairs=0.01, _359_pairs=0.05))
    assert closed.endswith("that is what a first attempt gets, and no proof that another gets no more")


def test_a_picture_has_white_between_its_samples() -> None:
    rows = [np.zeros((2, 1, 16, 16), np.float32), np.full((2, 1, 16, 16), 0.5, np.float32)]
    tiles = lay_out(rows)
    assert tiles.shape == (33, 33)
    assert (tiles[16] == 1).all()
    assert (tiles[:, 16] == 1).all()
    assert (tiles[:16, :16] == 0).all()
    assert (tiles[17:, 17:] == 0.5).all()
    assert lay_out([np.zeros((1, 4, 16, 16), np.float32)]).shape == (16, 16, 3)


# ---- the command line


SMALL = ["--size", "16", "--shots", "2", "--epochs", "1", "--steps", "1", "--unet-width", "1", "--pairs", "2"]
SMALL += ["--encryptors", "1", "--set", "warmup_epochs=1"]


def test_bench_reconstruct_prints_one_json_object_or_a_table_and_draws(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "recovered.png"
    assert main(["experiment", "reconstruct", *SMALL, "--layers", "diag", "--png", str(picture)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err.splitlines() == ["measuring layer diag, seed 1 …"]
    assert [line.split()[0] for line in lines[:5]] == ["machine", "torch", "set", "attacker", "recovered"]
    assert [line[:18].strip() for line in lines if line.rstrip().endswith("%")][-2:] == ["2 pairs", "10 pairs"]
    assert lines[-1].startswith("It means: with layer diag")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["experiment", "reconstruct", *SMALL, "--layers", "identity", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["job"]["method"]["encryptor_epochs"] == 1
    assert list(figures["layers"]) == ["identity"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--size 8", "--size: expected at least 11 pixels, SSIM's window (got 8x8)"),
        ("--size 18", "multiples of 4"),
        ("--layers gauss", "--layers: expected some of gaussian, orthogonal, diag, conv1x1, identity (got 'gauss')"),
        ("--pairs 4,x", "--pairs: expected whole numbers from 1 on, as in 16,64 (got '4,x')"),
        ("--set layer=diag", "--set layer: expected --layers instead"),
        ("--set share=false", "share: expected true"),
        (
            "--set input.normalize=agreed",
            "--set input.normalize: expected auto, which measures here what members would",
        ),
        ("--set unet_widht=3", "unet_widht"),
        ("--shots 1", "--data: expected a site of 16 samples at least (got 10)"),
        ("--png /nowhere/x.png", "--png: /nowhere/x.png: cannot be written"),
    ],
)
def test_bench_reconstruct_refuses_what_cannot_be_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert main(["experiment", "reconstruct", *SMALL, "--layers", "diag", *arguments.split()]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
