"""Measured figures: many values of one thing in a few, and what they depend on besides the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def describe_spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the median, the least and the greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def read_clock(device: torch.device) -> float:
    """Returns the time in seconds, once the device has finished its queued work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def name_device(device: str) -> str:
    """Returns the device by its own name. Raises MlError where it is missing."""
    import torch

    from ml.clients.build import get_device

    place = get_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def describe_torch(device: torch.device, threads: int) -> dict[str, Any]:
    """Returns torch's version, its number of threads, and the device by its own name."""
    import torch

    return {"torch": torch.__version__, "threads": threads, "device": name_device(str(device))}
