"""Torch's own generator, which dropout draws from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

States = tuple[Tensor, ...]  # of the CPU's generator, and of a GPU's


@contextmanager
def given_back(device: torch.device) -> Iterator[None]:
    """Restores the generators of the CPU and of `device` on exit, whatever was drawn within."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_torch(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of `device`. torch.manual_seed takes longer than a step: it also records the
    seed, with the stack it came from, for every kind of device that is absent."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def get_states(device: torch.device) -> States:
    """Returns the states of the generators of the CPU and of `device`."""
    return (torch.get_rng_state(), *((torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()))


@contextmanager
def going_on(states: list[States], i: int, device: torch.device) -> Iterator[None]:
    """Draws within from the i-th of `states`, and stores the new state there on exit."""
    torch.set_rng_state(states[i][0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[i][1], device)
    yield
    states[i] = get_states(device)
