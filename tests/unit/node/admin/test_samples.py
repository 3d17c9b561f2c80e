"""The samples of one request for predictions, and those that a node refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data.inference_files import InferenceFile
from ml.payload import encode_arrays
from node.admin import samples
from node.admin.samples import decode_samples, encode_batch, get_max_samples, get_top, make_batches
from node.errors import InvalidRequest

GREY = (1, 4, 5)
BATCHES = list[list[tuple[str, int, int]]]


def make_file(name: str, count: int, shape: tuple[int, int, int] = GREY, dtype: Any = np.uint8) -> InferenceFile:
    return InferenceFile(Path(name), np.zeros((count, *shape), dtype), tuple(range(count)))


def cut(files: list[InferenceFile], max_samples: int) -> BATCHES:
    batches = make_batches(files, GREY, max_samples)
    return [[(str(piece.file.path), piece.start, piece.stop) for piece in batch] for batch in batches]


def test_files_share_requests_and_large_ones_are_cut() -> None:
    files = [make_file("a", 2), make_file("b", 3), make_file("c", 9)]
    assert cut(files, 5) == [[("a", 0, 2), ("b", 0, 3)], [("c", 0, 5)], [("c", 5, 9)]]


def test_what_is_not_alike_goes_apart() -> None:
    files = [make_file("a", 1), make_file("b", 1, (1, 8, 8)), make_file("c", 1, dtype=np.float32), make_file("d", 1)]
    assert cut(files, 5) == [[("a", 0, 1)], [("b", 0, 1)], [("c", 0, 1)], [("d", 0, 1)]]


def test_a_request_is_not_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_BYTES", 2048)  # of which an encoding's header is given half
    batches = cut([make_file("a", 70), make_file("b", 1)], 1000)
    assert batches == [[("a", 0, 51)], [("a", 51, 70), ("b", 0, 1)]]


def test_an_image_too_large_to_send_is_fitted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_BYTES", 2048)
    [[piece]] = make_batches([make_file("a", 1, (3, 40, 50))], GREY, 5)
    assert (piece.x.shape, str(piece.x.dtype)) == ((1, *GREY), "float32")


def test_what_was_encoded_is_decoded() -> None:
    x = np.arange(40, dtype=np.uint8).reshape(2, *GREY)
    [batch] = make_batches([InferenceFile(Path("a"), x[:1]), InferenceFile(Path("b"), x[1:])], GREY, 5)
    assert np.array_equal(decode_samples(encode_batch(batch), GREY, 2), x)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "samples: encoding too short: expected at least 8 bytes, got 0"),
        (b"\xff" * 64, "samples: header length: expected "),
        (bytes(17 << 20), f"samples: encoding too long: expected at most {16 << 20} bytes, got {17 << 20}"),
        (encode_arrays({"y": np.zeros((1, *GREY), np.uint8)}), "samples: expected one array x, got y"),
        (encode_arrays({}), "samples: expected one array x, got none"),
        (encode_arrays({"x": np.zeros((4, *GREY), np.uint8)}), "samples: expected at most 3 in one request, got 4"),
        (encode_arrays({"x": np.zeros((4, 0, 4, 5), np.uint8)}), "samples: expected at most 3 in one request, got 4"),
        (
            encode_arrays({"x": np.zeros((4, 5), np.uint8)}),
            "samples: expected uint8 or float32 [N, C, H, W], got uint8",
        ),
        (encode_arrays({"x": np.zeros((1, 1, 4, 5), np.int64)}), "samples: expected uint8 or float32 [N, C, H, W]"),
        (encode_arrays({"x": np.zeros((0, *GREY), np.uint8)}), "samples: expected at least one sample"),
        (encode_arrays({"x": np.zeros((1, 4, 4, 5), np.uint8)}), "samples: expected images that can be made [1, 4, 5]"),
        (encode_arrays({"x": np.full((1, *GREY), np.nan, np.float32)}), "samples: sample 0: expected finite numbers"),
    ],
)
def test_hostile_and_wrong_bytes_are_refused_by_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        decode_samples(data, GREY, 3)


def test_how_many_samples_go_into_a_request_depends_on_what_they_become() -> None:
    assert get_max_samples((1, 8, 8), 10, 3) == 2048
    assert get_max_samples((3, 224, 224), 10, 3) == (64 << 20) // (4 * 3 * 224 * 224)
    assert get_max_samples((1, 8, 8), 1000, 100) == (1 << 15) // 100
    assert get_max_samples((1, 8, 8), 65_536, 1) == 256
    assert get_max_samples((3, 4096, 4096), 10, 3) == 1


def test_three_classes_are_told_of_unless_more_or_fewer_are_asked_for() -> None:
    assert [get_top(0, 10), get_top(5, 10), get_top(99, 10), get_top(0, 2)] == [3, 5, 10, 2]
