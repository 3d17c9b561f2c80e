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


def name_device(device: str) -> str:
    """The device by its own name. Raises MlError where it is not there."""
    import torch

    from ml.clients.build import get_device

    place = get_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def describe_torch(device: torch.device, threads: int) -> dict[str, Any]:
    """The library's version, how many threads it has, and the device by its own name."""
    import torch

    return {"torch": torch.__version__, "threads": threads, "device": name_device(str(device))}
