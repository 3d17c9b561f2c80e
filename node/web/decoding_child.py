"""The decoding child: decodes the samples of one file that was dropped on the page, and ends.

    argument   the file
    in         JSON: input, classes and task of the run, how the site's own files are read, the column of labels if
               there is one, and the column that groups rows
    out        `+`, a line of JSON about the rows and the bytes of the samples' array; or `-` and why there are none

It takes no more memory than `MEMORY_BYTES` beside its program, which does without torch: a picture is reduced by whole
steps. Before that, the unpacked size is limited by the most that a request may hold.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ml.data.base import InputFormat, Samples
from ml.data.cells import to_label
from ml.data.fit_input import reduce
from ml.data.inference_files import DEFAULT_LABEL, InferenceFile, Most, read_inference_file
from ml.data.memory import limit_memory
from ml.data.source import DataSource
from ml.errors import DataError
from ml.payload import decode_arrays, encode_arrays
from node.admin.samples import MAX_BYTES, NAME, get_max_samples, get_room_bytes

UNPACKED_BYTES = 48 << 20  # of one file: three times a request's limit, as a file may hold pixels as wider numbers
MEMORY_BYTES = 4 * UNPACKED_BYTES  # four copies: decoded, turned, in order, encoded
DECODE_S = 20  # of processor time
SAMPLES, REFUSED = b"+", b"-"


class Decoded(NamedTuple):
    """The samples in a file, and the other fields of an `InferenceFile`, in a form that fits JSON."""

    samples: bytes
    passed_over: Sequence[str] = ()
    num_empty: Sequence[int] | None = None
    num_columns: int = 0
    rows: Sequence[int] | None = None
    labels: Sequence[Any] | None = None
    columns: Sequence[str] = ()
    by: Sequence[str] | None = None

    @classmethod
    def of(cls, file: InferenceFile, x: Samples) -> Self:
        """Takes the fields of a file, and its samples `x` as they are sent."""
        return cls(
            encode_arrays({NAME: x}),
            file.passed_over,
            None if file.num_empty is None else file.num_empty.tolist(),
            file.num_columns,
            file.rows,
            None if file.labels is None else file.labels.tolist(),
            file.columns,
            None if file.by is None else [*map(to_label, file.by)],
        )

    def to_file(self, path: Path) -> InferenceFile:
        """Returns the file that was received as `path`."""
        return InferenceFile(
            path,
            decode_arrays(self.samples, MAX_BYTES)[NAME],
            None if self.rows is None else tuple(self.rows),
            None if self.labels is None else np.array(self.labels),
            tuple(self.passed_over),
            None if self.num_empty is None else np.array(self.num_empty, np.int64),
            self.num_columns,
            tuple(self.columns),
            self.by,
        )

    def encode(self) -> bytes:
        return json.dumps(self[1:]).encode() + b"\n" + self.samples

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Reads what `encode` wrote."""
        line, _, samples = data.partition(b"\n")
        return cls(samples, *json.loads(line))


def decode(path: Path, terms: Mapping[str, Any]) -> Decoded:
    """Decodes the samples in a file for a run of these terms. Raises DataError."""
    wanted, classes = InputFormat.from_mapping(terms["input"]), tuple(terms["classes"])
    most = Most(get_max_samples(wanted.shape, len(classes), 0, 2), UNPACKED_BYTES)
    file = read_inference_file(
        path,
        wanted.shape,
        classes,
        default_label=terms.get("default_label", DEFAULT_LABEL),
        task=terms["task"],
        table=wanted.table,
        meaning=terms.get("labels"),
        source=DataSource.for_files(terms.get("data", {})),
        by=terms.get("by"),
        most=most,
    )
    most.validate_count(len(file), str(path))
    x: Samples = reduce(file.x, get_room_bytes())
    if x.nbytes > get_room_bytes():
        raise DataError(f"{path}: expected samples of at most {get_room_bytes()} bytes, got {x.nbytes}")
    return Decoded.of(file, x)


def main() -> int:
    terms = json.load(sys.stdin.buffer)
    _load_decoders()
    limit_memory(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CPU, (DECODE_S, DECODE_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        said = SAMPLES + decode(Path(sys.argv[1]), terms).encode()
    except DataError as error:
        said = REFUSED + str(error).encode()
    except MemoryError:
        said = REFUSED + b"it takes more memory than a file is given"
    except Exception as error:  # noqa: BLE001 (the edge: a decoder may raise anything on such bytes)
        said = REFUSED + f"cannot be decoded: {type(error).__name__}".encode()
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
    return 0


def _load_decoders() -> None:
    """Loads the decoders before the limits hold, so that loading them does not count against the file."""
    try:
        from PIL import Image
    except ImportError:  # then the reader of pictures refuses them
        return
    Image.init()


if __name__ == "__main__":
    sys.exit(main())
