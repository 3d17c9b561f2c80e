"""Torch's own generator, which dropout draws from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def given_back(device: torch.device) -> Iterator[None]:
    """Whatever is drawn within, the generators of the CPU and of `device` are as they were afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_torch(seed: int, device: torch.device) -> None:
    """Seeds both. torch.manual_seed takes longer than a step: it also notes the seed, with the stack it came from, for
    every kind of device there is not."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
