"""Each reader of bytes from outside under bytes nobody meant: the kept corpus, and changes of it that Hypothesis makes.

The campaign (`make fuzz`) goes further with the same checks; these few are quick, and the same in every run.
"""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.corpus import FOUND, read_corpus
from fuzz.targets import TARGETS

SLOW = {"yaml", "config", "dropped", "parquet", "hf"}  # what PyYAML reads, or a library from a file, takes milliseconds
REFUSED = {"config/options", "parquet/others", "hf/others"}  # seeds that are read, and then do not fit
ROOM_BYTES = 1 << 20  # that a reader may take beyond a multiple of what it reads

every_target = pytest.mark.parametrize("name", TARGETS)
places = st.integers(0, 9999)  # in ten thousandths of the length
numbers = st.sampled_from([0, 1, 2, 3, 7, 8, 127, 128, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
written = st.one_of(
    st.binary(max_size=8),
    st.builds(
        lambda n, size, order: (n % 256**size).to_bytes(size, order),
        numbers,
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from(["big", "little"]),
    ),
    numbers.map(lambda n: str(n).encode()),
)
edits = st.lists(st.tuples(places, st.integers(0, 9), written), min_size=1, max_size=4)


def edit(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    changed = bytearray(data)
    for place, cut, put in changes:
        at = place * (len(changed) + 1) // 10_000
        changed[at : at + cut] = put
    return bytes(changed)


@every_target
def test_the_kept_seeds_are_what_the_script_makes(name: str) -> None:
    kept = {file: data for file, data in read_corpus(name).items() if not file.startswith(FOUND)}
    made, again = TARGETS[name].seeds(), "write them anew with: python -m tests.fuzz corpus"
    assert kept.keys() == made.keys(), again
    for file, data in kept.items():
        assert TARGETS[name].is_same(data, made[file]), f"{file}: {again}"


@every_target
def test_the_kept_corpus_holds(name: str) -> None:
    for file, data in read_corpus(name).items():
        taken = TARGETS[name].check(data)
        assert taken or file.startswith(FOUND) or f"{name}/{file}" in REFUSED, file


@every_target
def test_changed_objects_are_taken_as_they_are_or_refused(name: str) -> None:
    seeds = list(read_corpus(name).values())
    words = [word.encode() for word in TARGETS[name].words]
    changes = edits
    if words:
        changes = st.lists(
            st.tuples(places, st.integers(0, 9), written | st.sampled_from(words)), min_size=1, max_size=4
        )

    @settings(derandomize=True, database=None, max_examples=30 if name in SLOW else 80)
    @given(st.sampled_from(seeds), changes)
    def check(seed: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        TARGETS[name].check(edit(seed, changes))

    check()


@every_target
def test_arbitrary_bytes_are_taken_as_they_are_or_refused(name: str) -> None:
    @settings(derandomize=True, database=None, max_examples=20 if name in SLOW else 40)
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        TARGETS[name].check(data)

    check()


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - SLOW - {"genesis"}))
def test_a_large_number_anywhere_takes_no_room(name: str) -> None:
    """Any length or count that the bytes may hold is checked before anything is made of that size."""
    target = TARGETS[name]
    target.check(next(iter(target.seeds().values())))  # whatever is loaded on the first use
    tracemalloc.start()
    try:

        @settings(derandomize=True, database=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
        @given(st.sampled_from(list(target.seeds().values())), places, st.sampled_from([2, 4, 8]))
        def check(seed: bytes, place: int, size: int) -> None:
            at = place * (len(seed) + 1) // 10_000
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            target.check(seed[:at] + b"\x7f" + b"\xff" * (size - 1) + seed[at + size :])
            assert tracemalloc.get_traced_memory()[1] - before < ROOM_BYTES + 64 * len(seed)

        check()
    finally:
        tracemalloc.stop()
