"""Any samples, made into what any model takes: 0..1, grey or colour, of its size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ml.data import get_default_input, load_dataset
from ml.data.augment import augment
from ml.data.fit_input import fit, reduce
from ml.errors import DataError
from ml.models import build_model
from ml.specs.architectures import ARCHITECTURES

DIGITS = {"format": "digits"}


def test_bytes_become_0_to_1_and_floats_stay() -> None:
    x = np.array([0, 51, 255], np.uint8).reshape(1, 3, 1, 1).repeat(2, 2)
    assert fit(x, (3, 2, 1))[0, :, 0, 0] == pytest.approx([0, 0.2, 1])
    floats = np.array([[[[-3.5, 7]]]], np.float32)
    assert fit(floats, (1, 1, 2)) is floats or np.shares_memory(fit(floats, (1, 1, 2)), floats)


def test_grey_of_colour_is_its_luma_and_colour_of_grey_is_grey() -> None:
    pixels = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8)
    x = pixels.reshape(4, 3, 1, 1).repeat(2, 2)
    grey = fit(x, (1, 2, 1))
    assert grey[:, 0, 0, 0] == pytest.approx([0.299, 0.587, 0.114, 1.0])
    back = fit(grey, (3, 2, 1))
    assert np.array_equal(back[:, 0], grey[:, 0])
    assert np.array_equal(back[:, 2], grey[:, 0])


def test_growing_interpolates_and_shrinking_averages() -> None:
    x = np.array([[0, 1]], np.float32).reshape(1, 1, 1, 2).repeat(2, 2)
    assert fit(x, (1, 2, 4))[0, 0, 0] == pytest.approx([0, 0.25, 0.75, 1])
    stripes = np.tile(np.array([0, 1], np.float32), 32).reshape(1, 1, 1, 64).repeat(64, 2)
    assert fit(stripes, (1, 8, 8))[:, :, :, 1:-1] == pytest.approx(0.5, abs=0.01)  # every other pixel would be all 0


def test_what_is_too_large_is_reduced_by_a_whole_factor_to_the_mean_of_what_falls_together() -> None:
    x = np.array([[0, 2, 10, 20, 9], [4, 6, 30, 40, 9], [9, 9, 9, 9, 9]], np.uint8).reshape(1, 1, 3, 5)
    assert reduce(x, 15) is x
    reduced = reduce(x, 4)
    assert (reduced.dtype, reduced.tolist()) == (np.dtype(np.uint8), [[[[3, 25]]]])
    half = reduce(x.astype(np.float32) / np.float32(4), 16)
    assert (half.dtype, half.tolist()) == (np.dtype(np.float32), [[[[0.75, 6.25]]]])
    wide = np.arange(16, dtype=np.uint8).reshape(1, 1, 1, 16)
    assert reduce(wide, 4).shape == (1, 1, 1, 8)  # not as small as that, but never less than a row


def test_values_beyond_0_to_1_are_not_cut() -> None:
    x = np.array([[-2, 3]], np.float32).reshape(1, 1, 1, 2).repeat(2, 2)
    assert fit(x, (1, 2, 4))[0, 0, 0] == pytest.approx([-2, -0.75, 1.75, 3])


@pytest.mark.parametrize(
    ("shape", "wanted", "message"),
    [
        ((4, 8, 8), (1, 8, 8), "the data's images come in 4 channels, got 1"),
        ((1, 8, 8), (2, 8, 8), "the data's images come in 1 or 3 channels, got 2"),
        ((7, 1, 1), (1, 28, 28), r"expected \[7, 1, 1\], the data's own features, got \[1, 28, 28\]"),
    ],
)
def test_what_cannot_be_fitted_is_said(shape: Any, wanted: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^input.shape: {message}"):
        fit(np.zeros((2, *shape), np.uint8), wanted)


@given(st.integers(0, 20), st.integers(2, 9), st.integers(2, 9), st.integers(1, 9), st.integers(1, 9))
def test_every_sample_is_fitted_by_itself(num: int, height: int, width: int, new_height: int, new_width: int) -> None:
    x = np.random.default_rng(num).integers(0, 256, (num, 3, height, width), np.uint8)
    whole = fit(x, (1, new_height, new_width))
    assert whole.shape == (num, 1, new_height, new_width)
    if num:
        assert fit(x[num // 2 :], (1, new_height, new_width)) == pytest.approx(whole[num // 2 :], abs=1e-6)
        assert 0 <= whole.min() <= whole.max() <= 1


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_digits_suit_every_architecture(name: str) -> None:
    model = {"name": name}
    input_ = get_default_input(DIGITS, model)
    train, _ = load_dataset(DIGITS, input_)
    assert list(train.shape) == input_["shape"]
    logits = build_model(model, tuple(input_["shape"]), 10).eval()(torch.tensor(train.x[:2]))
    assert logits.shape == (2, 10)


@pytest.mark.parametrize("name", ["resnet18", "cnn_cifar", "vgg11"])
def test_digits_come_in_colour_where_a_model_is_to_have_it(name: str) -> None:
    train, _ = load_dataset(DIGITS, {"shape": [3, 32, 32]})
    assert build_model({"name": name}, (3, 32, 32), 10).eval()(torch.tensor(train.x[:2])).shape == (2, 10)


# ---- augmentation, of x_BCHW with one pixel lit in each image


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_images(num: int = 64) -> torch.Tensor:
    x = torch.zeros(num, 3, 12, 12)
    x[:, :, 5, 2] = torch.tensor([0.1, 0.2, 0.3])
    return x


def test_flipping_mirrors_about_half_of_the_images_left_to_right() -> None:
    x = make_images()
    flipped = augment(x, "flip", generator())
    is_mirrored = flipped[:, 0, 5, 9] > 0
    assert torch.equal(flipped[is_mirrored], x[is_mirrored].flip(3))
    assert torch.equal(flipped[~is_mirrored], x[~is_mirrored])
    assert 16 <= int(is_mirrored.sum()) <= 48


def test_cropping_shifts_each_image_by_up_to_four_pixels_in_all_channels_alike() -> None:
    shifted = augment(make_images(), "crop", generator())
    assert shifted.shape == (64, 3, 12, 12)
    places = set()
    for image in shifted:
        lit = image[0].nonzero().tolist()
        if lit:
            row, column = lit[0]
            assert abs(row - 5) <= 4
            assert abs(column - 2) <= 4
            assert image[:, row, column].tolist() == pytest.approx([0.1, 0.2, 0.3])
            places.add((row, column))
    assert len(places) > 10


@pytest.mark.parametrize("kind", ["flip", "crop", "flip_crop"])
def test_the_generator_alone_decides(kind: str) -> None:
    x = make_images()
    assert torch.equal(augment(x, kind, generator()), augment(x, kind, generator()))
    assert not torch.equal(augment(x, kind, generator()), augment(x, kind, generator(2)))
    assert torch.equal(x, make_images())


def test_no_augmentation_changes_nothing() -> None:
    x = make_images()
    assert augment(x, "none", generator()) is x
