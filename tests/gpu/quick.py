"""Methods with little local work."""

from __future__ import annotations

from typing import Any

MLP = {"name": "mlp", "hidden": [64, 32]}


def make_quick(name: str, **settings: Any) -> dict[str, Any]:
    """FedEDS counts epochs, and its encryptor's are the longest; the others take `settings`."""
    if name == "fededs":
        settings = {"local_epochs": 2, "warmup_epochs": 2, "encryptor_epochs": 1, "unet_width": 2}
    return {"name": name, **settings}
