"""The clients of a simulation that take part in a round, where `participation` is below 1."""

from __future__ import annotations

from ml.seeding import numpy_rng


def draw_present(participation: float, num_clients: int, seed: int, height: int) -> tuple[int, ...]:
    """Returns the places of the clients that take part, at least one. They depend on seed and height, not on the
    method. At a `participation` of 1 all take part."""
    if participation == 1:
        return tuple(range(num_clients))
    num = max(1, round(participation * num_clients))
    return tuple(sorted(map(int, numpy_rng(seed, "present", height).permutation(num_clients)[:num])))
