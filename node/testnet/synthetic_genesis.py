"""A genesis without files, for federations that exist in one process and are measured there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id

INITIAL_MODEL = b"nothing is trained"


def make_genesis(keys: Sequence[SigningKey], *, difficulty: int, target_ms: int, **overrides: Any) -> Genesis:
    """Its members are `keys`, its initial model is INITIAL_MODEL, and its difficulty stays. An override replaces a
    whole field of genesis.yaml. Raises GenesisError."""
    mapping = {
        "protocol": 1,
        "chain_name": "idle",
        "created_at": "2026-01-01T00:00:00Z",
        "members": [{"key": encode_id(key.id), "name": f"node{i}"} for i, key in enumerate(keys)],
        "method": {"name": "local"},
        "model": {"name": "mlp", "hidden": [1]},
        "classes": ["0", "1"],
        "input": {"shape": [1, 1, 1], "resize": None, "mean": [0.0], "std": [1.0]},
        "initial_model": hashlib.sha256(INITIAL_MODEL).hexdigest(),
        "rounds": 0,
        "quorum": "bft",
        "profile": "local",
        "pow": {"difficulty": difficulty, "min": difficulty, "max": difficulty, "target_ms": target_ms},
        "limits": {"max_weight": 1, "payload_mib": 1},
    }
    return Genesis.from_mapping(mapping | overrides)


def make_prototype_genesis(num_members: int, *, seed: int, difficulty: int) -> tuple[Genesis, list[SigningKey]]:
    """Of members who share prototypes of digits with dfpl, and their keys in the order of their ids: all of it the
    same for the same seed."""
    private = [hashlib.sha256(f"member {i} of seed {seed}".encode()).digest() for i in range(num_members)]
    keys = sorted((SigningKey.from_private_bytes(raw) for raw in private), key=lambda key: key.id)
    genesis = make_genesis(
        keys,
        difficulty=difficulty,
        target_ms=50,
        method={"name": "dfpl"},
        model={"name": "mlp", "hidden": [64, 32]},
        classes=[str(digit) for digit in range(10)],
        input={"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]},
    )
    return genesis, keys
