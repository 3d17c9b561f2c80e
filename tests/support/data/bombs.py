"""Files of few bytes that unpack to many, one of each kind that is read."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

MIB = 1 << 20
_ZEROS = bytes(MIB)


def write_archive(mib: int, shape: tuple[int, ...] | None = None) -> bytes:
    """Returns an .npz whose array has so many bytes, all of them present."""
    head = io.BytesIO()
    npy.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape or (mib, 1024, 1024)})
    return _pack("x.npy", head.getvalue(), mib)


def write_long_header(mib: int) -> bytes:
    """Returns an .npz whose array has a header of so many bytes."""
    return _pack("x.npy", npy.magic(2, 0) + struct.pack("<I", mib * MIB), mib)


def _pack(name: str, begin: bytes, mib: int) -> bytes:
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w", force_zip64=True) as member,
    ):
        member.write(begin)
        for _ in range(mib):
            member.write(_ZEROS)
    return packed.getvalue()


def write_picture(width: int, height: int) -> bytes:
    """Returns a PNG in colour, black all over."""

    def write(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, row = zlib.compressobj(1), bytes(1 + 3 * width)
    rows = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + write(b"IHDR", head) + write(b"IDAT", rows) + write(b"IEND", b"")


# ---- on disk, by format; the samples of each take 48 MiB or more


def write_npz(path: Path) -> Path:
    (path / "a.npz").write_bytes(write_archive(48))
    with zipfile.ZipFile(path / "a.npz", "a") as archive, archive.open("y.npy", "w") as member:
        npy.write_array(member, np.arange(48) % 2)
    return path / "a.npz"


def write_idx(path: Path) -> Path:
    count = 48 * 1024
    with gzip.open(path / "train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, count, 32, 32))
        for _ in range(48):
            file.write(_ZEROS)
    with gzip.open(path / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(count))
    return path


def write_svhn(path: Path) -> Path:
    from scipy.io import savemat

    arrays = {"X": np.zeros((32, 32, 3, 16 * 1024), np.uint8), "y": np.ones((16 * 1024, 1), np.uint8)}
    savemat(path / "train_32x32.mat", arrays, do_compression=True)
    return path


def write_parquet(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ones = pa.array(np.zeros(6 << 20))
    table = pa.table({"a": ones, "label": pa.array(np.zeros(6 << 20, np.int8))})
    pq.write_table(table, path / "a.parquet", compression="zstd")
    return path / "a.parquet"


def write_hf(path: Path) -> Path:
    import pyarrow as pa

    table = pa.table({"a": np.zeros(6 << 20), "label": np.zeros(6 << 20, np.int8)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(path / "data.arrow", table.schema, options=options) as writer:
        writer.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return path


def write_csv(path: Path) -> Path:
    (path / "a.csv").write_text("a,label\n" + "1,0\n" * (1 << 19))
    return path / "a.csv"


def write_imagefolder(path: Path) -> Path:
    for name in ("cat", "dog"):
        (path / name).mkdir()
        (path / name / "a.png").write_bytes(write_picture(4096, 4096))
    return path


WRITERS = {
    "npz": write_npz,
    "idx": write_idx,
    "svhn": write_svhn,
    "parquet": write_parquet,
    "hf": write_hf,
    "csv": write_csv,
    "imagefolder": write_imagefolder,
}
