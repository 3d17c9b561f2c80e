"""The device that this suite is about: `make test-gpu` has a GPU, `make test-gpu DEVICE=cpu` runs what a CPU can."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from ml.training.loop import Engine


@pytest.fixture(scope="session")
def device() -> str:
    name = os.environ.get("FEDNODE_TEST_DEVICE", "cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here: make test-gpu DEVICE=cpu runs the half that needs none")
    return name


@pytest.fixture
def cuda(device: str) -> str:
    """For what only a GPU can show."""
    if not device.startswith("cuda"):
        pytest.skip(f"needs a CUDA device, and this run is of {device}")
    return device


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products in full float32, so that what differs from a CPU is the order of sums and nothing else."""
    monkeypatch.setattr(Engine, "get_precision", lambda self, place, model: "fp32")
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
