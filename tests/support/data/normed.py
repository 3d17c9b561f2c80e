"""A small network with batch norm, for methods that are of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_normed(num_classes: int = 10) -> dict[str, Any]:
    """Describes `user_models.make_small` of one channel, as a genesis does."""
    return {
        "name": "support.data.user_models:make_small",
        "args": {"width": 4},
        "parameters": {
            "scale": [4],
            "conv.weight": [4, 1, 3, 3],
            "conv.bias": [4],
            "norm.weight": [4],
            "norm.bias": [4],
            "fc.weight": [num_classes, 4],
            "fc.bias": [num_classes],
        },
        "buffers": {"norm.running_mean": [4], "norm.running_var": [4]},
        "embedding": 4,
        "layers": [4],
        "classifier": ["fc.weight", "fc.bias"],
        "plugin": {"name": "support", "version": "", "sha256": "0" * 64},
    }


def fit_model(method: str, model: Mapping[str, Any], num_classes: int = 10) -> Mapping[str, Any]:
    """Returns the model, or one with batch norm for the method that needs it."""
    return describe_normed(num_classes) if method == "fedbn" else model
