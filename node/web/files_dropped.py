"""Files dropped on the page: their samples, as the admin call takes them. A file is parsed on a thread, and kept for no
longer than that."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from starlette.requests import Request

from chain.run import Run
from chain.schema import quote
from ml.data.base import InputFormat
from ml.data.inference_files import read_inference_file
from ml.data.readers.images import SUFFIXES
from ml.errors import DataError
from node.admin.samples import MAX_BYTES, encode_batch, get_max_samples, make_batches
from node.errors import InvalidRequest

KINDS = (".npz", ".csv", *sorted(SUFFIXES))


async def read_dropped(request: Request, run: Run) -> bytes:
    """The samples of the file in the body of a request, which `run` takes. Raises InvalidRequest."""
    suffix = Path(request.query_params.get("name", "")).suffix.lower()
    if suffix not in KINDS:
        raise InvalidRequest(f"name: expected a file whose name ends in {', '.join(KINDS)}, got {quote(suffix)}")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BYTES:
            raise InvalidRequest(f"expected a file of at most {MAX_BYTES} bytes")
    return await asyncio.to_thread(_read, bytes(data), suffix, run)


def _read(data: bytes, suffix: str, run: Run) -> bytes:
    wanted = InputFormat.from_mapping(run.input)
    with tempfile.TemporaryDirectory(prefix="fednode-page-") as folder:
        path = Path(folder) / f"dropped{suffix}"
        path.write_bytes(data)
        try:
            file = read_inference_file(path, wanted.shape, run.classes, task=run.task, table=wanted.table)
        except DataError as error:
            raise InvalidRequest(str(error).replace(f"{folder}/", "")) from error
    most = get_max_samples(wanted.shape, len(run.classes), 0, 2)
    if len(file) > most:
        raise InvalidRequest(f"expected at most {most} samples in one file, got {len(file)}")
    return encode_batch(next(make_batches([file], wanted.shape, most)))
