"""Seeds by purpose: they never change, never collide, and take numbers, text and bytes only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.seeding import derive_seed, numpy_rng

parts = st.lists(st.one_of(st.integers(), st.text(max_size=8), st.binary(max_size=8)), max_size=4)


def test_seeds_never_change_between_versions() -> None:
    assert derive_seed(1, "model") == 348_328_922_145_775_944
    assert derive_seed(derive_seed(1, "client", 0), "train", 3) == 1_240_467_279_672_738_647


@settings(deadline=None)
@given(parts, parts)
def test_different_parts_have_different_seeds(one: list[int | str | bytes], other: list[int | str | bytes]) -> None:
    same = [(type(p), p) for p in one] == [(type(p), p) for p in other]
    assert (derive_seed(*one) == derive_seed(*other)) == same
    assert 0 <= derive_seed(*one) < 1 << 63


def test_parts_do_not_run_into_each_other() -> None:
    seeds = [derive_seed("ab"), derive_seed("a", "b"), derive_seed("b", "a"), derive_seed(b"ab"), derive_seed()]
    seeds += [derive_seed(1), derive_seed("1"), derive_seed(-1), derive_seed(1, 0), derive_seed(10)]
    assert len(set(seeds)) == len(seeds)


def test_a_bool_is_not_taken_for_a_number() -> None:
    with pytest.raises(TypeError, match="got bool"):
        derive_seed(True)


def test_a_float_is_refused() -> None:
    with pytest.raises(TypeError, match="got float"):
        derive_seed(0.5)  # type: ignore[arg-type]  # the refusal is what is tested


def test_generators_repeat_and_do_not_depend_on_each_other() -> None:
    first = numpy_rng(7, "batches", 1)
    first.random(100)
    assert numpy_rng(7, "batches", 2).random() == numpy_rng(7, "batches", 2).random()
    assert numpy_rng(7, "batches", 1).random() != numpy_rng(7, "batches", 2).random()
