"""Masks: they cancel in the sum of those they were made for, whoever is missing, and nothing else shows what is behind
them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from ml.aggregation.fixed_point import Integers
from ml.aggregation.masks import (
    BLOCK_ELEMENTS,
    SEED_BYTES,
    add_mask,
    add_vectors,
    commit,
    list_opened,
    mask_vector,
    unmask,
)
from support.data.contributions import author

SEED = bytes(range(32))
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1

Opened = list[tuple[bytes, list[bytes]]]


def share(one: bytes, other: bytes) -> bytes:
    """The seed of two members, or of one with itself."""
    return hashlib.sha256(b"".join(sorted([one, other]))).digest()


def hide(values: Integers, me: bytes, roster: Sequence[bytes]) -> Integers:
    return mask_vector(values, me, share(me, me), [(other, share(me, other)) for other in roster if other != me])


def open_all(roster: Sequence[bytes], summed: Sequence[bytes]) -> Opened:
    return [(me, [share(me, other) for other in list_opened(me, roster, summed)]) for me in summed]


def vector(*values: int) -> Integers:
    return np.array(values, np.int64)


def stream(seed: bytes, num_elements: int) -> Integers:
    """The key stream by its definition: each counter, big-endian, encrypted alone."""
    cipher = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    blocks = [cipher.update(i.to_bytes(16, "big")) for i in range((num_elements + 1) // 2)]
    return np.frombuffer(b"".join(blocks)[: 8 * num_elements], "<i8")


# ---- they cancel


@st.composite
def sums(draw: st.DrawFn) -> tuple[list[bytes], list[bytes], list[Integers]]:
    """A roster, those of it that are in a sum, and their vectors."""
    roster = [author(i) for i in range(draw(st.integers(1, 6)))]
    summed = draw(st.lists(st.sampled_from(roster), min_size=1, unique=True))
    number = st.integers(LOWEST, HIGHEST) | st.sampled_from([LOWEST, HIGHEST, -1, 0, 1])
    size = draw(st.integers(0, 5))
    return roster, summed, [vector(*draw(st.lists(number, min_size=size, max_size=size))) for _ in summed]


@given(sums())
def test_all_masks_cancel_once_those_in_the_sum_have_opened(
    given: tuple[list[bytes], list[bytes], list[Integers]],
) -> None:
    roster, summed, vectors = given
    total = add_vectors([hide(values, me, roster) for me, values in zip(summed, vectors, strict=True)])
    bare = unmask(total, roster, open_all(roster, summed))
    expected = [sum(column) % 2**64 for column in zip(*(values.tolist() for values in vectors), strict=True)]
    assert [value % 2**64 for value in bare.tolist()] == expected
    assert bare.dtype == np.int64


def test_of_four_members_any_sum_opens_by_hand() -> None:
    roster = [author(i) for i in range(4)]
    vectors = {me: vector(10**i, -i) for i, me in enumerate(roster)}
    for size in (1, 2, 3, 4):
        for summed in combinations(roster, size):
            total = add_vectors([hide(vectors[me], me, roster) for me in summed])
            expected = sum((vectors[me] for me in summed), vector(0, 0))
            assert total.tolist() != expected.tolist()
            assert unmask(total, roster, open_all(roster, summed)).tolist() == expected.tolist()


def test_a_sum_goes_round_at_two_to_the_64() -> None:
    assert add_vectors([vector(HIGHEST, LOWEST, -1), vector(1, LOWEST, 1)]).tolist() == [LOWEST, 0, 0]


def test_a_vector_longer_than_a_block_is_masked_as_one() -> None:
    size = 2 * BLOCK_ELEMENTS + 3
    masked = np.zeros(size, np.int64)
    add_mask(masked, SEED)
    for start in (0, BLOCK_ELEMENTS - 2, 2 * BLOCK_ELEMENTS - 2):
        window = slice(start, start + 5)
        assert masked[window].tolist() == stream(SEED, size)[window].tolist()
    add_mask(masked, SEED, subtract=True)
    assert not masked.any()


def test_vectors_that_are_masked_or_taken_off_are_left_as_they_were() -> None:
    roster, values = [author(0), author(1)], vector(1, 2, 3)
    values.flags.writeable = False
    hidden = [hide(values, me, roster) for me in roster]
    for one in hidden:
        one.flags.writeable = False  # as what is decoded from bytes
    total = add_vectors(hidden)
    total.flags.writeable = False
    assert unmask(total, roster, open_all(roster, roster)).tolist() == [2, 4, 6]


# ---- what a mask is


def test_a_mask_is_the_key_stream_of_aes_256_in_counter_mode() -> None:
    masked = vector(0, 0, 0, 0)
    add_mask(masked, SEED)
    assert masked.tolist() == stream(SEED, 4).tolist()
    assert masked.astype("<i8").tobytes().hex() == (
        "f29000b62a499fd0a9f39a6add2e7780f05d76ae4ab99fe5a6f69b3148c2363d"  # as OpenSSL's command has it
    )
    shifted = vector(5, HIGHEST, LOWEST, -7)
    add_mask(shifted, SEED)
    wanted = [(mask + value) % 2**64 for mask, value in zip(masked.tolist(), [5, HIGHEST, LOWEST, -7], strict=True)]
    assert [value % 2**64 for value in shifted.tolist()] == wanted


def test_of_two_members_the_one_with_the_lower_key_adds_what_the_other_subtracts() -> None:
    low, high = author(1), author(2)
    nothing, pair = vector(0, 0, 0), stream(share(low, high), 3)
    with_own = [stream(share(me, me), 3) for me in (low, high)]
    assert (hide(nothing, low, [low, high]) - with_own[0]).tolist() == pair.tolist()
    assert (hide(nothing, high, [low, high]) - with_own[1]).tolist() == (-pair).tolist()


@pytest.mark.parametrize("num_bytes", [0, 16, 31, 33])
def test_a_seed_of_another_length_is_refused(num_bytes: int) -> None:
    with pytest.raises(ValueError, match="expected 32 bytes"):
        add_mask(vector(0), bytes(num_bytes))


def test_a_member_opens_its_own_seed_and_those_with_members_not_in_the_sum_in_order() -> None:
    a, b, c, d = roster = [author(i) for i in range(4)]
    assert list_opened(b, roster, [b, d]) == [b, a, c]
    assert list_opened(b, roster, roster) == [b]


@pytest.mark.parametrize("change", [lambda seeds: seeds[:-1], lambda seeds: [*seeds, SEED]])
def test_seeds_too_few_or_too_many_are_an_error(change: Callable[[list[bytes]], list[bytes]]) -> None:
    roster = [author(i) for i in range(3)]
    opened = open_all(roster, roster[:2])
    opened[0] = (opened[0][0], change(opened[0][1]))
    with pytest.raises(ValueError, match="zip"):
        unmask(vector(1, 2), roster, opened)


# ---- what a commitment is


def test_a_commitment_is_the_tagged_hash_of_the_seed_and_of_no_other() -> None:
    assert commit(SEED) == hashlib.sha256(b"fn1.mask".ljust(16, b"\0") + SEED).digest()
    others = [SEED[:i] + bytes([SEED[i] ^ 1]) + SEED[i + 1 :] for i in range(SEED_BYTES)]
    assert len({commit(seed) for seed in [SEED, *others]}) == 33


# ---- what is behind a mask does not show

SIZE = 8192
ROSTER = [author(i) for i in range(4)]
ME = ROSTER[1]
SMALL = np.arange(SIZE, dtype=np.int64) % 7 - 3  # as a model's numbers, most of whose bytes are 0 or 255
OTHERS = [(other, share(ME, other)) for other in ROSTER if other != ME]


def only_own() -> Integers:
    return mask_vector(SMALL, ME, share(ME, ME), [])


def only_pairs() -> Integers:
    masked = hide(SMALL, ME, ROSTER)
    add_mask(masked, share(ME, ME), subtract=True)
    return masked


def all_but_one() -> Integers:
    """As whoever knows two of the three pairs' seeds, and the member's own, sees it."""
    masked = only_pairs()
    add_mask(masked, OTHERS[0][1])  # of the lower key, which was subtracted
    add_mask(masked, OTHERS[1][1], subtract=True)
    return masked


def compute_chi_square(values: Integers) -> float:
    """Of how often each byte occurs: 255 of bytes that are all alike likely, give or take 23."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    expected = 8 * SIZE / 256
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("hidden", [lambda: hide(SMALL, ME, ROSTER), only_own, only_pairs, all_but_one])
def test_behind_any_mask_that_is_not_known_a_vector_looks_like_noise(hidden: Callable[[], Integers]) -> None:
    masked = hidden()
    assert 140 < compute_chi_square(masked) < 370 < compute_chi_square(SMALL)
    assert not (masked == SMALL).any()
    assert abs(np.corrcoef(masked.astype(np.float64), SMALL)[0, 1]) < 0.06


@pytest.mark.parametrize("which", [0, 1])
def test_a_sum_with_one_wrong_seed_is_noise(which: int) -> None:
    """Another own seed, or another of a member that is not in the sum."""
    summed = ROSTER[:3]
    total = add_vectors([hide(SMALL, me, ROSTER) for me in summed])
    opened = open_all(ROSTER, summed)
    assert (unmask(total, ROSTER, opened) == 3 * SMALL).all()
    opened[2][1][which] = SEED
    wrong = unmask(total, ROSTER, opened)
    assert not (wrong == 3 * SMALL).any()
    assert 140 < compute_chi_square(wrong) < 370


def test_a_sum_that_one_has_not_opened_is_noise() -> None:
    total = add_vectors([hide(SMALL, me, ROSTER) for me in ROSTER])
    wrong = total.copy()
    for me in ROSTER[:3]:
        add_mask(wrong, share(me, me), subtract=True)
    assert not (wrong == 4 * SMALL).any()
    assert 140 < compute_chi_square(wrong) < 370
