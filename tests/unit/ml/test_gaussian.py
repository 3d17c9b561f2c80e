"""Noise on a grid: as much as is claimed, and with last bits that say nothing of what is behind it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.gaussian import GRID_BITS, add_noise
from ml.secret_stream import SecretStream
from ml.seeding import derive_key

NOISE, LENGTH = 2.0, 0.7


def make_stream(number: int = 1) -> SecretStream:
    return SecretStream(derive_key(number))


def find_lost_bits(values: Tensor) -> Tensor:
    """What is left of values beside the grid that noise is added on, or would be."""
    grid = 2.0 ** (math.frexp(NOISE * LENGTH)[1] - GRID_BITS)
    return values - grid * (values / grid).round()


@pytest.mark.parametrize("secret", [0.0, 0.1, 1 / 3])
def test_whatever_the_sums_are_what_comes_out_lies_on_one_grid(secret: float) -> None:
    sums = torch.full((5000,), secret, dtype=torch.float64)
    assert not find_lost_bits(add_noise(sums, NOISE, LENGTH, make_stream())).any()
    plain = sums + NOISE * LENGTH * make_stream().draw_normals(5000, torch.device("cpu"))
    assert find_lost_bits(plain).abs().min() >= 0
    assert find_lost_bits(plain).any()  # these bits are another set's for each secret


def test_as_much_noise_is_added_as_is_claimed_and_a_hair_more() -> None:
    sums = torch.linspace(-3, 3, 400_000, dtype=torch.float64).reshape(400, 1000)
    added = add_noise(sums, NOISE, LENGTH, make_stream()) - sums
    assert added.shape == sums.shape
    assert added.std().item() / (NOISE * LENGTH) == pytest.approx(1, abs=5 / math.sqrt(2 * sums.numel()))
    assert abs(added.mean().item()) < 5 * NOISE * LENGTH / math.sqrt(sums.numel())
    assert torch.equal(sums, torch.linspace(-3, 3, 400_000, dtype=torch.float64).reshape(400, 1000))


def test_a_sum_that_is_shifted_along_the_grid_is_shifted_as_it_is() -> None:
    grid = 2.0 ** (math.frexp(NOISE * LENGTH)[1] - GRID_BITS)
    sums = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one, other = (add_noise(sums + shift, NOISE, LENGTH, make_stream()) for shift in (0, 12345 * grid))
    assert torch.equal(other - one, torch.full((5000,), 12345 * grid, dtype=torch.float64))


@pytest.mark.parametrize("noise", [1e-9, 1e-300, 1e6])
def test_any_noise_gives_finite_numbers(noise: float) -> None:
    sums = torch.tensor([0.5, -3.0], dtype=torch.float64)
    hidden = add_noise(sums, noise, 1.0, make_stream())
    assert (hidden - sums).abs().max().item() < 10 * noise + 1e-15
