"""Measured figures: many values of one thing in a few, and what they depend on besides the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def describe_spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def read_clock(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def describe_torch(device: torch.device, threads: int) -> dict[str, Any]:
    """The library's version, how many threads it has, and the device by its own name."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"torch": torch.__version__, "threads": threads, "device": name}
