"""The decoding child: samples of a file in little memory, or why not."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.payload import decode_arrays
from node.admin.samples import MAX_BYTES
from node.host.child import make_command
from node.web.decoding_child import MEMORY_BYTES, UNPACKED_BYTES, Decoded, decode
from support.data.bombs import MIB, write_archive, write_long_header, write_picture

PICTURES = {"input": {"shape": [3, 8, 8]}, "classes": ["a", "b"], "task": "classification"}
TABLE = {"input": {"shape": [2, 1, 1]}, "classes": ["a", "b"], "task": "classification"}
PROGRAM_MIB = 64  # Python, numpy and Pillow
STARTER = """  # a child counts what held it before it began, and this process is large
import resource, subprocess, sys
subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


def decode_apart(path: Path, data: bytes, terms: dict[str, Any] = PICTURES) -> tuple[bytes, int]:
    """The words of a child about a file, and the MiB that it held at most."""
    path.write_bytes(data)
    command = make_command("node.web.decoding_child", str(path))
    done = subprocess.run(
        [sys.executable, "-S", "-c", STARTER, *command],
        input=json.dumps(terms).encode(),
        capture_output=True,
        check=True,
    )
    return done.stdout, int(done.stderr) // 1024


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.npz", write_archive(300), "expected at most 48 MiB unpacked, got 300 MiB"),
        ("a.npz", write_archive(300, (300 * 1024, 32, 32)), "expected at most 2048 samples in one file, got 307200"),
        ("a.npz", write_long_header(300), "expected a header of at most 10000 bytes, got 314572800"),
        ("a.png", write_picture(8192, 8192), "expected at most 12582912 pixels, got 8192x8192"),
        ("a.png", b"\x89PNG no picture", "not a readable image"),
    ],
    ids=["array", "samples", "header", "picture", "none"],
)
@pytest.mark.slow
def test_what_unpacks_to_more_is_refused_and_never_unpacked(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    said, mib = decode_apart(tmp_path / name, data)
    assert said[:1] == b"-"
    assert why in said.decode()
    assert mib < PROGRAM_MIB + 32


@pytest.mark.slow
def test_rows_are_counted_as_they_are_read_and_their_memory_is_bounded(tmp_path: Path) -> None:
    said, _ = decode_apart(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * (4 * MIB), TABLE)
    assert b"expected at most 2048 rows, got more" in said
    said, mib = decode_apart(tmp_path / "b.csv", b"," * (15 * MIB) + b"\n" + b"," * (15 * MIB), TABLE)
    assert said[:1] == b"-"
    assert mib < PROGRAM_MIB + MEMORY_BYTES // MIB


@pytest.mark.slow
def test_a_large_picture_comes_reduced(tmp_path: Path) -> None:
    said, mib = decode_apart(tmp_path / "a.png", write_picture(4032, 3024))
    assert said[:1] == b"+"
    x = decode_arrays(Decoded.read(said[1:]).samples, MAX_BYTES)["x"]
    assert (x.dtype, x.shape) == (np.dtype(np.uint8), (1, 3, 1512, 2016))
    assert mib < PROGRAM_MIB + MEMORY_BYTES // MIB


def test_samples_are_those_of_the_file(tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    np.savez_compressed(tmp_path / "a.npz", x=x)
    assert np.array_equal(decode_arrays(decode(tmp_path / "a.npz", PICTURES).samples, MAX_BYTES)["x"], x)
    one = io.BytesIO()
    np.savez(one, x=x[0])
    (tmp_path / "b.npz").write_bytes(one.getvalue())
    assert decode_arrays(decode(tmp_path / "b.npz", PICTURES).samples, MAX_BYTES)["x"].shape == (1, 3, 8, 8)
    (tmp_path / "a.csv").write_text("f,g\n1,2\n3,4\n")
    assert decode_arrays(decode(tmp_path / "a.csv", TABLE).samples, MAX_BYTES)["x"].reshape(-1).tolist() == [1, 2, 3, 4]


def test_the_columns_of_a_table_are_matched_by_name_and_what_is_filled_is_told(tmp_path: Path) -> None:
    input_: Any = TABLE["input"]
    table = {**TABLE, "input": {**input_, "columns": [{"name": "g"}, {"name": "f"}], "missing": "zero"}}
    (tmp_path / "a.csv").write_text("f,id,g\n1,x,2\n3,y,\n")
    decoded = decode(tmp_path / "a.csv", table)
    assert decode_arrays(decoded.samples, MAX_BYTES)["x"].reshape(-1).tolist() == [2, 1, 0, 3]
    assert (decoded.passed_over, decoded.num_empty, decoded.num_columns) == (("id",), [0, 1], 2)
    sent = Decoded(decoded.samples, ["id"], [0, 1], 2, [2, 3], None, ["f", "id", "g"])
    assert Decoded.read(decoded.encode()) == sent


def test_the_file_comes_through_with_its_labels_and_the_column_that_groups_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f,sex,kind,g\n1,m,b,2\n3, f,a,4\n")
    input_: Any = TABLE["input"]
    columns = {"input": {**input_, "columns": [{"name": "f"}, {"name": "g"}]}}
    decoded = decode(tmp_path / "a.csv", {**TABLE, **columns, "default_label": "kind", "by": "sex"})
    file = Decoded.read(decoded.encode()).to_file(Path("own.csv"))
    assert file.labels is not None
    assert (file.path, file.rows, file.labels.tolist(), file.by) == (Path("own.csv"), (2, 3), [1, 0], ["m", "f"])
    assert (file.x.reshape(-1).tolist(), file.columns) == ([1, 2, 3, 4], ("f", "sex", "kind", "g"))
    assert file.passed_over == ("sex",)
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 3, 8, 8), np.uint8), y=np.array([1, 0]))
    archive = Decoded.read(decode(tmp_path / "b.npz", PICTURES).encode()).to_file(Path("b.npz"))
    assert archive.labels is not None
    assert (archive.rows, archive.labels.tolist(), archive.num_empty, archive.by) == ((0, 1), [1, 0], None, None)


def test_a_table_is_read_by_the_signs_of_the_sites_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f;g\n1,5;2\n1.000,25;4\n")
    data = {"csv": {"separator": ";", "decimal": ",", "thousands": "."}, "columns": {}, "path": "own.csv"}
    decoded = decode(tmp_path / "a.csv", {**TABLE, "data": data})
    assert decode_arrays(decoded.samples, MAX_BYTES)["x"].reshape(-1).tolist() == [1.5, 2, 1000.25, 4]


def test_it_loads_neither_torch_nor_a_server() -> None:
    program = (
        "import sys, node.web.decoding_child; print([n for n in ('torch', 'grpc', 'starlette') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_what_is_sent_is_less_than_what_may_be_unpacked() -> None:
    assert MAX_BYTES < UNPACKED_BYTES < MEMORY_BYTES
