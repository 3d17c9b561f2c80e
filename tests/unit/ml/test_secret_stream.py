"""The stream of secret numbers: the cipher's own words, and what is made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ml.secret_stream import SecretStream

CPU = torch.device("cpu")


def test_words_are_the_key_stream_of_aes() -> None:
    """Of a key and a counter of zeros, the known answer of AES-256 (NIST, AESAVS)."""
    words = SecretStream(bytes(32)).draw_words(2)
    assert words.tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_drawn_in_parts_words_are_the_same_and_no_two_streams_have_any_in_common() -> None:
    whole = SecretStream(bytes(32)).draw_words(300_000)
    stream = SecretStream(bytes(32))
    parts = [stream.draw_words(count) for count in (1, 0, 131_071, 131_073, 37_855)]
    assert np.array_equal(whole, np.concatenate(parts))
    drawn = np.concatenate([whole, *(SecretStream.fresh().draw_words(1000) for _ in range(5))])
    assert len(np.unique(drawn)) == len(drawn)


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="key: expected 32 bytes, got 8"):
        SecretStream(bytes(8))


def test_chances_are_spread_evenly_from_0_to_below_1() -> None:
    values = SecretStream(bytes(32)).random(200_000)
    assert 0 <= values.min() < 1e-4
    assert 1 - 1e-4 < values.max() < 1
    counts = np.bincount((values * 100).astype(int), minlength=100)
    squared = float(((counts - 2000) ** 2 / 2000).sum())
    assert squared < 99 + 5 * math.sqrt(2 * 99)  # chi-squared of 99 degrees
    assert len(set(values.tolist())) == len(values)


def test_normal_numbers_are_normal_and_none_goes_with_another() -> None:
    count = 1_000_001
    z = SecretStream(bytes(32)).draw_normals(count, CPU)
    assert (z.dtype, z.shape) == (torch.float64, (count,))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean().item() - moment) < 5 * math.sqrt(variance / count)
    for lag in (1, count // 2, count // 2 + 1):  # of a pair, too
        assert abs((z[lag:] * z[:-lag]).mean().item()) < 5 / math.sqrt(count - lag)
    in_order = z.sort().values
    expected = torch.arange(1, count + 1) / count
    distance = (torch.special.ndtr(in_order) - expected).abs().max().item()
    assert distance < 2 / math.sqrt(count)  # Kolmogorov and Smirnov: a real one is with a chance of 0.9993


def test_there_may_be_none() -> None:
    assert SecretStream.fresh().draw_normals(0, CPU).shape == (0,)
