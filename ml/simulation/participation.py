"""The clients of a simulation that take part in a round, where `participation` is below 1."""

from __future__ import annotations

from ml.seeding import numpy_rng


def draw_present(participation: float, num_clients: int, seed: int, height: int) -> tuple[int, ...]:
    """Their places, at least one: by the seed, whatever the method. At 1 they are all."""
    if participation == 1:
        return tuple(range(num_clients))
    num = max(1, round(participation * num_clients))
    return tuple(sorted(map(int, numpy_rng(seed, "present", height).permutation(num_clients)[:num])))
