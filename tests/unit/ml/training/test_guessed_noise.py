"""An attack that takes noise off: from what a site has sent alone it finds the seed of a generator that keeps 32 bits
of it, as earlier releases had. Of noise from a secret stream it finds nothing.

Prototypes are sums of embeddings with five times as much noise. Those that a candidate's noise looks like are its own:
a row of d numbers and the noise of another seed have a product of deviation 1 for rows of unit length, the right one
has some root of d.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from ml.secret_stream import SecretStream
from ml.training.private import PrototypePrivacy

NOISE, CLIP, CLASSES, LENGTH = 5.0, 1.0, 4, 64
SAMPLES = 20  # of each class
CERTAIN = 8.0  # deviations that no wrong seed of a million comes to


def make_sums() -> Tensor:
    """The sums of each class of embeddings at the length that they may have."""
    rows = torch.randn(CLASSES, SAMPLES, LENGTH, dtype=torch.float64).abs() + torch.rand(CLASSES, 1, LENGTH)
    sums: Tensor = (rows / rows.norm(dim=2, keepdim=True)).sum(1)
    return sums


def draw_as_before(seed: int) -> Tensor:
    """The noise of earlier releases."""
    return torch.randn((CLASSES, LENGTH), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def send_as_before(sums: Tensor, seed: int) -> Tensor:
    means = (sums + NOISE * CLIP * draw_as_before(seed)) / SAMPLES
    sent: Tensor = means * (CLIP / means.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return sent


def send(sums: Tensor) -> Tensor:
    return PrototypePrivacy(NOISE, CLIP, SecretStream.fresh()).average(sums, torch.full((CLASSES,), SAMPLES))


def find_seed(sent: Tensor, candidates: Iterable[int]) -> int | None:
    """The candidate whose noise is in what was sent."""
    directions = sent / sent.norm(dim=1, keepdim=True) / math.sqrt(CLASSES)
    generator, noise = torch.Generator(), torch.empty((CLASSES, LENGTH), dtype=torch.float64)
    best, found = CERTAIN, None
    for seed in candidates:
        noise.normal_(generator=generator.manual_seed(seed))
        if (score := float(torch.tensordot(directions, noise))) > best:
            best, found = score, seed
    return found


def narrow(seed: int, bits: int) -> range:
    """All seeds that are as this one but for its lowest bits, as far as a generator keeps them."""
    first = (seed & 0xFFFFFFFF) >> bits << bits
    return range(first, first + (1 << bits))


def compute_cosine(sent: Tensor, sums: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(sent, sums, dim=1).mean())


def check_attack(bits: int) -> None:
    sums, seed = make_sums(), secrets.randbits(63)
    before = send_as_before(sums, seed)
    found = find_seed(before, narrow(seed, bits))
    assert found == seed & 0xFFFFFFFF
    noise = draw_as_before(found)
    scales = (before * noise).sum(1) / (noise * noise).sum(1)  # of noise in what was cut to its length
    assert compute_cosine(before - scales[:, None] * noise, sums) > compute_cosine(before, sums) + 0.2
    assert find_seed(send(sums), narrow(seed, bits)) is None


def test_a_generator_for_a_cpu_keeps_32_bits_of_its_seed() -> None:
    seed = secrets.randbits(31) << 32 | secrets.randbits(32)
    assert torch.equal(draw_as_before(seed), draw_as_before(seed & 0xFFFFFFFF))


def test_the_seed_of_earlier_noise_is_found_and_noise_from_a_secret_stream_stays() -> None:
    check_attack(12)


@pytest.mark.outer
def test_of_a_million_seeds_that_of_earlier_noise_is_found_and_none_of_a_secret_stream() -> None:
    check_attack(20)
