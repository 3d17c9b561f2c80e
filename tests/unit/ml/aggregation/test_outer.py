"""Outer optimisers: numbers done by hand, and that bytes hang on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from ml.aggregation.outer import LARGEST, OPTIMIZERS, OuterSettings, begin_moments, step_outer
from ml.payload import Array


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def test_momentum_and_nesterov_go_as_by_hand() -> None:
    """x 1, m 2, v 1 at beta1 0.9 and lr 0.5: v' = 0.9 + 1 = 1.9."""
    x, (v1,) = step_outer(f32(1), f32(2), [f32(1)], OuterSettings("momentum", 0.5, 0.9))
    assert (x.tolist(), v1.tolist()) == (f32(1.95).tolist(), f32(1.9).tolist())
    x, (v1,) = step_outer(f32(1), f32(2), [f32(1)], OuterSettings("nesterov", 0.5, 0.9))
    assert (x.tolist(), v1.tolist()) == (f32(2.355).tolist(), f32(1.9).tolist())  # 1 + 0.5 (1 + 0.9 * 1.9)


def test_adam_and_yogi_go_as_by_hand() -> None:
    """x 1, m 3, so d 2; v1 1, v2 1 at beta1 0.5, beta2 0.75: v1' = 0.5 + 1 = 1.5."""
    adam = OuterSettings("adam", 0.1, 0.5, 0.75, 0.5)
    x, (v1, v2) = step_outer(f32(1), f32(3), [f32(1), f32(1)], adam)
    assert (v1.tolist(), v2.tolist()) == ([1.5], [1.75])  # 0.75 * 1 + 0.25 * 4
    assert x.tolist() == f32(1 + 0.1 * 1.5 / (1.75**0.5 + 0.5)).tolist()
    yogi = OuterSettings("yogi", 0.1, 0.5, 0.75, 0.5)
    x, (v1, v2) = step_outer(f32(1, 1), f32(3, 1.5), [f32(1, 1), f32(1, 1)], yogi)
    assert v2.tolist() == [2, 0.9375]  # 1 + 0.25 * 4, and of d 0.5: 1 - 0.25 * 0.25
    assert x.tolist() == f32(1 + 0.1 * 1.5 / (2**0.5 + 0.5), 1 + 0.1 * 0.75 / (0.9375**0.5 + 0.5)).tolist()


def test_no_memory_and_the_whole_way_is_the_rules_own_model() -> None:
    made = f32(-3, 0.5, 1e-9)
    x, _ = step_outer(f32(0, 0.25, 0), made, [f32(5, 5, 5)], OuterSettings("momentum", 1.0, 0.0))
    assert x.tolist() == made.tolist()


def test_the_second_moment_begins_at_eps_squared() -> None:
    assert [m.tolist() for m in begin_moments(f32(7), OuterSettings("adam", 0.1, 0.9, 0.99, 0.5))] == [[0], [0.25]]
    assert [m.tolist() for m in begin_moments(f32(7), OuterSettings("nesterov", 0.1, 0.9))] == [[0]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_blocks_change_no_byte_and_all_numbers_stay_finite(optimizer: str) -> None:
    rng = np.random.default_rng(3)
    before, made = (rng.standard_normal((7, 11)).astype(np.float32) for _ in range(2))
    before[0, 0], made[0, 0] = LARGEST, -LARGEST
    settings = OuterSettings(optimizer, 1000.0, 0.9, 0.99, 1e-8)
    whole = part = before, begin_moments(before, settings)
    for _ in range(3):
        whole = step_outer(whole[0], made, whole[1], settings)
        part = step_outer(part[0], made, part[1], settings, block_elements=5)
    for one, other in zip([whole[0], *whole[1]], [part[0], *part[1]], strict=True):
        assert one.tobytes() == other.tobytes()
        assert one.shape == (7, 11)
        assert np.isfinite(one).all()
