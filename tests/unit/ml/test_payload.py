"""Named arrays and their one encoding: its layout, round trips, and bytes that are refused."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ml.errors import PayloadError
from ml.payload import (
    BLOCK_ELEMENTS,
    CHUNK_BYTES,
    KINDS,
    Array,
    ArraySchema,
    ArraySpec,
    compute_chunk_digests,
    compute_encoded_bytes,
    count_chunks,
    decode_arrays,
    encode_arrays,
    iter_blocks,
    iter_encoded,
    kind_code,
    kind_name,
    map_arrays,
    validate_arrays,
)

LIMIT = 1 << 20

names = st.text(st.sampled_from("abcXYZ019_./-"), min_size=1, max_size=12)
dtypes = st.sampled_from(["<f2", "<f4", "<f8", "<i8", "|u1"])
any_array = dtypes.flatmap(lambda d: npst.arrays(d, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
any_arrays = st.dictionaries(names, any_array, max_size=4)


def container(header: str, data: bytes = b"", *, pad: bool = True) -> bytes:
    """Bytes in the safetensors layout under a header written by hand."""
    text = header.encode()
    text += b" " * (-len(text) % 8 if pad else 0)
    return len(text).to_bytes(8, "little") + text + data


def entry(name: str, begin: int, end: int, dtype: str = "U8", shape: str = "4") -> str:
    return f'"{name}":{{"data_offsets":[{begin},{end}],"dtype":"{dtype}","shape":[{shape}]}}'


def test_the_layout_is_a_length_a_sorted_header_and_the_data_in_name_order() -> None:
    data = encode_arrays({"b": np.array([1.0], np.float32), "a": np.array([[2, 3]], np.int64)})
    header = '{"a":{"data_offsets":[0,16],"dtype":"I64","shape":[1,2]},'
    header += '"b":{"data_offsets":[16,20],"dtype":"F32","shape":[1]}}'
    padded = header + " " * (-len(header) % 8)
    assert data[:8] == len(padded).to_bytes(8, "little")
    assert data[8 : 8 + len(padded)].decode() == padded
    assert data[8 + len(padded) :] == bytes([2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3F])


def test_no_arrays_have_an_encoding_too() -> None:
    assert encode_arrays({}) == container("{}")
    assert decode_arrays(container("{}"), LIMIT) == {}


@settings(deadline=None)
@given(any_arrays)
def test_decoding_gives_back_what_was_encoded_bit_for_bit(arrays: dict[str, Array]) -> None:
    data = encode_arrays(arrays)
    decoded = decode_arrays(data, len(data))
    assert list(decoded) == sorted(arrays)
    for name, array in arrays.items():
        assert decoded[name].dtype == array.dtype
        assert decoded[name].shape == array.shape
        assert decoded[name].tobytes() == array.tobytes()  # NaNs keep their bits
        assert not decoded[name].flags.writeable
    assert encode_arrays(decoded) == data
    assert compute_encoded_bytes({name: (str(a.dtype), a.shape) for name, a in arrays.items()}) == len(data)


@settings(deadline=None)
@given(any_arrays)
def test_the_safetensors_library_reads_our_bytes(arrays: dict[str, Array]) -> None:
    read = safetensors.numpy.load(encode_arrays(arrays))
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in read.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    }


def test_what_the_safetensors_library_writes_is_another_form_and_refused() -> None:
    data = safetensors.numpy.save({"a": np.arange(4, dtype=np.float32)})
    with pytest.raises(PayloadError):
        decode_arrays(data, LIMIT)


def test_memory_layout_and_byte_order_do_not_show_in_the_bytes() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = encode_arrays({"x": x})
    assert encode_arrays({"x": np.asfortranarray(x)}) == plain
    assert encode_arrays({"x": x.astype(">f4")}) == plain
    assert encode_arrays({"x": np.repeat(x, 2, axis=1)[:, ::2]}) == plain


def test_aligned_arrays_are_views_and_others_copies_that_cannot_be_written_either() -> None:
    data = encode_arrays({"a": np.zeros(3, np.uint8), "b": np.ones(4, np.float32), "c": np.ones(8, np.uint8)})
    decoded = decode_arrays(data, LIMIT)
    whole = np.frombuffer(data, np.uint8)
    assert np.shares_memory(decoded["a"], whole)
    assert np.shares_memory(decoded["c"], whole)
    assert not np.shares_memory(decoded["b"], whole)  # begins at byte 3
    assert decoded["b"].flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        decoded["b"][0] = 2
    with pytest.raises(ValueError, match="read-only"):
        decode_arrays(bytearray(data), LIMIT)["a"][0] = 2


@settings(deadline=None)
@given(any_arrays)
def test_the_pieces_of_an_encoding_are_its_bytes(arrays: dict[str, Array]) -> None:
    assert b"".join(map(bytes, iter_encoded(arrays))) == encode_arrays(arrays)


def test_an_array_is_handed_out_as_it_lies_in_memory() -> None:
    x = np.arange(6, dtype=np.float32)
    x.flags.writeable = False
    _, piece = iter_encoded({"x": x})
    assert np.shares_memory(np.frombuffer(piece, np.float32), x)


@pytest.mark.parametrize("total", [5000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])
def test_each_mebibyte_of_an_encoding_has_a_digest(total: int) -> None:
    arrays: dict[str, Array] = {"z": np.arange(3.0), "x": np.zeros(total, np.uint8)}
    arrays["x"] = np.random.default_rng(0).integers(0, 256, 2 * total - len(encode_arrays(arrays)), np.uint8)
    data = encode_arrays(arrays)
    assert len(data) == total
    expected = [hashlib.sha256(data[at : at + CHUNK_BYTES]).digest() for at in range(0, len(data), CHUNK_BYTES)]
    digests = compute_chunk_digests(arrays)
    assert digests.dtype == np.uint8
    assert digests.shape == (count_chunks(total), 32)
    assert [row.tobytes() for row in digests] == expected


def test_chunks_are_counted_up() -> None:
    assert [count_chunks(n) for n in (1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)] == [1, 1, 2, 3]


# ---- files


def test_arrays_are_read_from_a_file_without_being_held(tmp_path: Path) -> None:
    arrays = {"x": np.arange(1 << 20, dtype=np.float32), "y": np.ones((3, 2), np.float32)}
    data = encode_arrays(arrays)
    (tmp_path / "set").write_bytes(data)
    del arrays["x"]
    tracemalloc.start()
    try:
        mapped = map_arrays(tmp_path / "set", len(data))
        assert mapped["x"][-1] == (1 << 20) - 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert encode_arrays(mapped) == data
    (tmp_path / "set").unlink()  # as retention may, while a round still reads it
    assert mapped["x"][7] == 7
    with pytest.raises(ValueError, match="read-only"):
        mapped["x"][0] = 1


@pytest.mark.parametrize("data", [b"", bytes(8), container("{}") + b"x"])
def test_a_file_of_other_bytes_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(data)
    with pytest.raises(PayloadError):
        map_arrays(tmp_path / "set", LIMIT)


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(container("{}"))
    with pytest.raises(PayloadError, match="at most 15 bytes, got 16"):
        map_arrays(tmp_path / "set", 15)


@pytest.mark.parametrize("array", [np.array(["x"]), np.array([1j]), np.array([True]), np.array([1], np.int32)])
def test_only_the_known_dtypes_are_encoded(array: Array) -> None:
    with pytest.raises(PayloadError, match="'x': expected one of float16"):
        encode_arrays({"x": array})


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a b", "ä", "a" * 129, "a\n"])
def test_only_plain_names_are_encoded(name: str) -> None:
    with pytest.raises(PayloadError, match="array name"):
        encode_arrays({name: np.zeros(1, np.uint8)})


A = entry("a", 0, 4)
HOSTILE = {
    "nothing": b"",
    "half a length": bytes(7),
    "no header": bytes(8),
    "a header of 2^63 bytes": (1 << 63).to_bytes(8, "little") + bytes(16),
    "a header of 2^31 bytes": (1 << 31).to_bytes(8, "little") + bytes(16),
    "a header beyond the end": (64).to_bytes(8, "little") + bytes(16),
    "a header that is not padded": container("{" + A + "}", bytes(4), pad=False),
    "a header padded too far": container("{" + A + "}" + " " * 8, bytes(4)),
    "a header padded with tabs": container("{" + A + "}\t", bytes(4)),
    "a space in front": container(" {" + A + "}", bytes(4)),
    "a space inside": container("{" + A.replace(",", ", ") + "}", bytes(4)),
    "not an object": container("[]"),
    "text after the object": container("{" + A + "}{}", bytes(4)),
    "an open object": container("{" + A, bytes(4)),
    "a comma too many": container("{" + A + ",}", bytes(4)),
    "nested brackets": container("[" * 100_000),
    "metadata": container('{"__metadata__":{"k":"v"},' + A + "}", bytes(4)),
    "empty metadata": container('{"__metadata__":{}}'),
    "keys in another order": container('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', bytes(4)),
    "names in another order": container("{" + entry("b", 0, 4) + "," + entry("a", 4, 8) + "}", bytes(8)),
    "a name twice": container("{" + A + "," + entry("a", 4, 8) + "}", bytes(8)),
    "data in another order": container("{" + entry("a", 4, 8) + "," + entry("b", 0, 4) + "}", bytes(8)),
    "an escaped name": container("{" + entry("\\u0061", 0, 4) + "}", bytes(4)),
    "a leading zero": container("{" + entry("a", 0, 4, shape="04") + "}", bytes(4)),
    "a negative dimension": container("{" + entry("a", 0, 4, shape="-4") + "}", bytes(4)),
    "an unknown dtype": container("{" + entry("a", 0, 4, "BF16", "2") + "}", bytes(4)),
    "a bool": container("{" + entry("a", 0, 4, "BOOL") + "}", bytes(4)),
    "nine dimensions": container("{" + entry("a", 0, 1, shape="1,1,1,1,1,1,1,1,1") + "}", bytes(1)),
    "an end before the begin": container("{" + entry("a", 4, 0) + "}", bytes(4)),
    "a gap": container("{" + A + "," + entry("b", 5, 9) + "}", bytes(9)),
    "an overlap": container("{" + A + "," + entry("b", 3, 7) + "}", bytes(7)),
    "a begin that is not 0": container("{" + entry("a", 1, 5) + "}", bytes(5)),
    "too little data": container("{" + A + "}", bytes(3)),
    "too much data": container("{" + A + "}", bytes(5)),
    "data without an array": container("{}", bytes(8)),
    "a size that is not the shape's": container("{" + entry("a", 0, 4, shape="5") + "}", bytes(4)),
    "a petabyte": container("{" + entry("a", 0, 10**15, shape=str(10**15)) + "}", bytes(4)),
    "a product past 2^64": container("{" + entry("a", 0, 0, shape=f"{1 << 32},{1 << 32}") + "}"),
    "an array of 2^80 hidden by a zero": container("{" + entry("a", 0, 0, shape=f"0,{1 << 40},{1 << 40}") + "}"),
    "a number of 100 digits": container("{" + entry("a", 0, 4, shape="9" * 100) + "}", bytes(4)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_bytes_that_we_would_not_write_are_refused_without_allocating_what_they_claim(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError):
            decode_arrays(data, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(data) + 65536
    finally:
        tracemalloc.stop()


def test_bytes_over_the_limit_are_refused_before_they_are_read() -> None:
    data = encode_arrays({"a": np.zeros(4, np.uint8)})
    with pytest.raises(PayloadError, match=f"at most {len(data) - 1} bytes, got {len(data)}"):
        decode_arrays(data, len(data) - 1)


def decode_or_refuse(data: bytes) -> None:
    try:
        arrays = decode_arrays(data, LIMIT)
    except PayloadError:
        return
    assert encode_arrays(arrays) == data


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_canonical(data: bytes) -> None:
    decode_or_refuse(data)


@settings(deadline=None)
@given(st.text(st.sampled_from('{}[]":,0123456789abdeosfthpyUF32I64_ '), max_size=120), st.binary(max_size=16))
def test_random_headers_are_refused_or_canonical(header: str, data: bytes) -> None:
    decode_or_refuse(container(header, data))


@settings(max_examples=300, deadline=None)
@given(any_arrays, st.data())
def test_mutated_encodings_are_refused_or_canonical(arrays: dict[str, Array], data: st.DataObject) -> None:
    mutated = bytearray(encode_arrays(arrays))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "swap"])):
            case "flip":
                mutated[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del mutated[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                mutated[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case _:
                other = data.draw(st.integers(0, len(mutated) - 1))
                mutated[at], mutated[other] = mutated[other], mutated[at]
        if not mutated:
            break
    decode_or_refuse(bytes(mutated))


def test_every_flipped_bit_changes_what_is_decoded_or_is_refused() -> None:
    arrays: dict[str, Array] = {"a": np.arange(3, dtype=np.float32), "b": np.array([7], np.int64)}
    data = encode_arrays(arrays)
    before = {name: a.tobytes() for name, a in arrays.items()}
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            after = {name: a.tobytes() for name, a in decode_arrays(bytes(flipped), LIMIT).items()}
        except PayloadError:
            continue
        assert after != before


def test_the_header_is_json() -> None:
    data = encode_arrays({"a/b.c-d_0": np.zeros((2, 0, 3), np.float64)})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header == {"a/b.c-d_0": {"data_offsets": [0, 0], "dtype": "F64", "shape": [2, 0, 3]}}


def test_kinds_have_fixed_codes_and_unknown_ones_are_refused() -> None:
    assert [kind_code(name) for name in KINDS] == list(range(1, 15))
    assert all(kind_name(kind_code(name)) == name for name in KINDS)
    with pytest.raises(PayloadError, match="did you mean 'prototypes'"):
        kind_code("prototype")
    with pytest.raises(PayloadError, match="unknown payload kind 0"):
        kind_name(0)


SCHEMA = ArraySchema({"ids": ArraySpec("int64", ("n",)), "rows": ArraySpec("float32", ("n", 2))}, {"n": (1, 3)})


def fitting(n: int = 2) -> dict[str, Array]:
    return {"ids": np.arange(n, dtype=np.int64), "rows": np.zeros((n, 2), np.float32)}


def test_a_symbolic_dimension_takes_any_size_in_its_bounds() -> None:
    def fits(n: int) -> bool:
        try:
            validate_arrays(fitting(n), SCHEMA)
        except PayloadError:
            return False
        return True

    assert [n for n in range(6) if fits(n)] == [1, 2, 3]


def test_the_byte_limit_of_a_schema_is_its_largest_encoding() -> None:
    assert len(encode_arrays(fitting(3))) == SCHEMA.max_bytes
    tight = ArraySchema(SCHEMA.arrays, SCHEMA.bounds, max_bytes=SCHEMA.max_bytes - 8)
    validate_arrays(fitting(2), tight)
    with pytest.raises(PayloadError, match="payload too long"):
        validate_arrays(fitting(3), tight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "'rows' is missing"),
        ({"row": np.zeros(1, np.float32)}, "'row' is not expected: did you mean 'rows'"),
        ({"ids": np.arange(2, dtype=np.uint8)}, "'ids': expected dtype int64, got uint8"),
        ({"rows": np.zeros((2, 2), np.float64)}, "'rows': expected dtype float32, got float64"),
        ({"rows": np.zeros((2, 2, 1), np.float32)}, r"'rows': expected shape \[n, 2\], got \[2, 2, 1\]"),
        ({"rows": np.zeros((2, 3), np.float32)}, r"'rows': expected shape \[n, 2\], n = 2, got \[2, 3\]"),
        ({"rows": np.zeros((3, 2), np.float32)}, r"'rows': expected shape \[n, 2\], n = 2, got \[3, 2\]"),
        ({"ids": np.arange(4), "rows": np.zeros((4, 2), np.float32)}, "'ids': expected 1 <= n <= 3, got 4"),
        ({"ids": np.arange(0), "rows": np.zeros((0, 2), np.float32)}, "'ids': expected 1 <= n <= 3, got 0"),
        ({"rows": np.array([[0, 0], [0, np.nan]], np.float32)}, "'rows': expected finite"),
        ({"rows": np.array([[0, 0], [-np.inf, 0]], np.float32)}, "'rows': expected finite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in (fitting() | change).items() if array is not None}
    with pytest.raises(PayloadError, match=message):
        validate_arrays(arrays, SCHEMA)


RANGED = ArraySchema(
    {
        "steps": ArraySpec("int64", ("n",), (1, 1 << 40)),
        "share": ArraySpec("float64", ("n",), (0.0, 0.5)),
        "weights": ArraySpec("float32", ("n",)),
        "counts": ArraySpec("int64", ("n",)),
    },
    {"n": (0, 3)},
)
IN_RANGE: dict[str, Array] = {
    "steps": np.array([1, 1 << 40]),
    "share": np.array([-0.0, 0.5]),
    "weights": np.array([-100, 100], np.float32),
    "counts": np.array([-(1 << 62), 1 << 62]),  # nothing is said of these
}


def test_numbers_at_the_ends_of_their_range_fit() -> None:
    validate_arrays(IN_RANGE, RANGED, max_abs=100.0)
    validate_arrays({name: array[:0] for name, array in IN_RANGE.items()}, RANGED, max_abs=100.0)
    with pytest.raises(PayloadError, match="'weights'"):
        validate_arrays(IN_RANGE, RANGED, max_abs=99.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": np.array([0, 7])}, "'steps': expected numbers from 1 to 1099511627776, got 0"),
        ({"steps": np.array([1, (1 << 40) + 1])}, "'steps': .*, got 1099511627777"),
        ({"share": np.array([-5e-324, 0])}, "'share': expected numbers from 0 to 0.5, got -4.94066e-324"),
        ({"share": np.array([0, 0.51])}, "'share': .*, got 0.51"),
        ({"share": np.array([0, np.nan])}, "'share': expected finite"),
        ({"weights": np.array([0, 100.00001], np.float32)}, "'weights': expected numbers from -100 to 100, got 100"),
        ({"weights": np.array([-1e38, 0], np.float32)}, r"'weights': .*, got -1e\+38"),
        ({"weights": np.array([np.inf, 0], np.float32)}, "'weights': expected finite"),
    ],
)
def test_a_number_out_of_range_is_refused_and_floats_have_that_of_the_run(
    change: dict[str, Array], message: str
) -> None:
    with pytest.raises(PayloadError, match=message):
        validate_arrays(IN_RANGE | change, RANGED, max_abs=100.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_without_a_limit_any_finite_number_fits(dtype: str) -> None:
    schema = ArraySchema({"x": ArraySpec(dtype, (2,))})
    most = np.finfo(dtype).max
    validate_arrays({"x": np.array([-most, most], dtype)}, schema)
    with pytest.raises(PayloadError, match="'x': expected finite"):
        validate_arrays({"x": np.array([0, np.nan], dtype)}, schema)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3 * BLOCK_ELEMENTS + 7, dtype=np.float32),
        np.arange(4 * BLOCK_ELEMENTS, dtype=np.float32).reshape(2, -1)[:, ::2],
        np.arange(2 * BLOCK_ELEMENTS, dtype=np.float32).reshape(64, -1).T,
        np.zeros((), np.float32),
        np.zeros((3, 0), np.float32),
        np.zeros((0, 3), np.float32).T,
    ],
)
def test_blocks_have_every_number_once_and_no_more_than_fit(array: Array) -> None:
    blocks = [block.copy() for block in iter_blocks(array)]
    assert all(0 < block.size <= BLOCK_ELEMENTS for block in blocks)
    assert sorted(np.concatenate([np.zeros(0), *blocks])) == sorted(array.reshape(-1))


@pytest.mark.parametrize("at", [0, BLOCK_ELEMENTS, -1])
def test_one_number_is_looked_for_in_all_blocks_with_memory_for_one(at: int) -> None:
    x = np.zeros((16 * BLOCK_ELEMENTS, 2), np.float32)
    schema = ArraySchema({"x": ArraySpec("float32", x.shape)})
    tracemalloc.start()
    try:
        validate_arrays({"x": x}, schema)
        assert tracemalloc.get_traced_memory()[1] < 4 * BLOCK_ELEMENTS
    finally:
        tracemalloc.stop()
    x[at] = np.nan
    with pytest.raises(PayloadError, match="'x': expected finite"):
        validate_arrays({"x": x}, schema)
