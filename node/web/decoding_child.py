"""The decoding child: makes samples of one file that somebody dropped on the page, and ends.

    argument   the file
    in         JSON: input, classes and task of the run, and how the site's own files are written
    out        `+`, a line of JSON about the rows and the samples, as a request for predictions has them; or `-` and why
               there are none

It takes no more memory than `MEMORY_BYTES` beside its program, in which there is no torch: a picture is reduced by
whole steps. What it unpacks is bounded before that, by what a request may have.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from ml.data.base import InputFormat, Samples
from ml.data.fit_input import reduce
from ml.data.inference_files import InferenceFile, Most, read_inference_file
from ml.data.memory import limit_memory
from ml.data.source import DataSource
from ml.errors import DataError
from node.admin.samples import encode_batch, get_max_samples, get_room_bytes, make_batches

UNPACKED_BYTES = 48 << 20  # of one file: three times what can be sent, as pixels may come as wider numbers
MEMORY_BYTES = 4 * UNPACKED_BYTES  # decoded, turned, in order, encoded
DECODE_S = 20  # of a processor
SAMPLES, REFUSED = b"+", b"-"


class Decoded(NamedTuple):
    """The samples in a file, the columns of a table that the run does not name, and how many cells of each row are
    empty, of the `num_columns` that it does name; none of what is no table."""

    samples: bytes
    passed_over: Sequence[str] = ()
    num_empty: Sequence[int] = ()
    num_columns: int = 0

    def encode(self) -> bytes:
        return json.dumps(self[1:]).encode() + b"\n" + self.samples

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The inverse of `encode`."""
        line, _, samples = data.partition(b"\n")
        return cls(samples, *json.loads(line))


def decode(path: Path, terms: Mapping[str, Any]) -> Decoded:
    """The samples in a file for a run of these terms. Raises DataError."""
    wanted, classes = InputFormat.from_mapping(terms["input"]), tuple(terms["classes"])
    most = Most(get_max_samples(wanted.shape, len(classes), 0, 2), UNPACKED_BYTES)
    file = read_inference_file(
        path,
        wanted.shape,
        classes,
        task=terms["task"],
        table=wanted.table,
        meaning=terms.get("labels"),
        source=DataSource.for_files(terms.get("data", {})),
        most=most,
    )
    most.validate_count(len(file), str(path))
    x: Samples = reduce(file.x, get_room_bytes())
    if x.nbytes > get_room_bytes():
        raise DataError(f"{path}: expected samples of at most {get_room_bytes()} bytes, got {x.nbytes}")
    [batch] = make_batches([InferenceFile(path, x)], wanted.shape, most.num_samples)
    empty = [] if file.num_empty is None else file.num_empty.tolist()
    return Decoded(encode_batch(batch), file.passed_over, empty, file.num_columns)


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
    except Exception as error:  # noqa: BLE001 (the edge: whatever a decoder makes of such bytes)
        said = REFUSED + f"cannot be decoded: {type(error).__name__}".encode()
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
    return 0


def _load_decoders() -> None:
    """Loads what is loaded when it is first used, which is not the file's to pay for."""
    try:
        from PIL import Image
    except ImportError:  # then no picture is read, and its reader says so
        return
    Image.init()


if __name__ == "__main__":
    sys.exit(main())
