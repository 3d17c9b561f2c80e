"""Files dropped on the page: reads their samples, as the admin call takes them.

A stranger's file may unpack to more than this machine's memory, or exploit a fault in a decoder. So this process never
decodes it: a process of its own does, with little memory and time (`decoding_child`), and the file is deleted
afterwards.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request

from chain.run import Run
from chain.schema import quote
from ml.data.inference_files import InferenceFile
from ml.data.readers.images import SUFFIXES
from node.admin.asking import Labelled
from node.admin.samples import MAX_BYTES
from node.errors import InvalidRequest
from node.host.child import make_command
from node.web.decoding_child import DECODE_S, SAMPLES, Decoded

KINDS = (".npz", ".csv", *sorted(SUFFIXES))
STOP_S = 5.0  # added to the child's time, for its start
_PIECE_BYTES = 1 << 16
_MAX_WORDS_BYTES = 1 << 20  # of a child's line about rows and columns


class DroppedFiles:
    """Reads the files dropped on one node's page: several are received at a time, and one is decoded. `data` says how
    the site's own files are read."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._turn = asyncio.Lock()

    async def read(self, request: Request, run: Run, by: str | None = None) -> InferenceFile:
        """Returns the samples of the file in a request's body, as `run` takes them, with their cells of the column
        `by`. Raises InvalidRequest."""
        name = Path(request.query_params.get("name", "")).name
        suffix = Path(name).suffix.lower()
        if suffix not in KINDS:
            raise InvalidRequest(f"name: expected a file whose name ends in {', '.join(KINDS)}, got {quote(suffix)}")
        with tempfile.TemporaryDirectory(prefix="fednode-page-") as folder:
            path = Path(folder) / f"dropped{suffix}"
            num_bytes = 0
            with path.open("wb") as file:
                async for piece in request.stream():
                    num_bytes += len(piece)
                    if num_bytes > MAX_BYTES:
                        raise InvalidRequest(f"expected a file of at most {MAX_BYTES} bytes")
                    file.write(piece)
            async with self._turn:
                said = await _decode(path, run, self._data, by)
        if said[:1] == SAMPLES:
            return Decoded.read(said[1:]).to_file(Path(name))
        text = said[1:].decode(errors="replace") or "it takes more memory or time than a file is given"
        raise InvalidRequest(f"{path.name}: {text.replace(f'{path}: ', '').replace(f'{folder}/', '')}")


async def _decode(path: Path, run: Run, data: Mapping[str, Any], by: str | None) -> bytes:
    """Returns the output of a child that decodes the file, nothing where the child was killed. If cancelled, it kills
    the child. Raises InvalidRequest."""
    process = await asyncio.create_subprocess_exec(
        *make_command("node.web.decoding_child", str(path)), stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    assert process.stdin is not None  # noqa: S101 - it is a PIPE
    assert process.stdout is not None  # noqa: S101
    terms = {
        "input": run.input,
        "classes": list(run.classes),
        "task": run.task,
        "labels": run.labels,
        "data": data,
        "default_label": Labelled.for_files(data).default,
        "by": by,
    }
    try:
        async with asyncio.timeout(DECODE_S + STOP_S):
            process.stdin.write(json.dumps(terms).encode())
            process.stdin.close()
            said = bytearray()
            while piece := await process.stdout.read(_PIECE_BYTES):
                said += piece
                if len(said) > _MAX_WORDS_BYTES + MAX_BYTES:
                    raise InvalidRequest(f"expected samples of at most {MAX_BYTES} bytes")
            return bytes(said)
    except TimeoutError as error:
        raise InvalidRequest(f"{path.name}: not decoded within {DECODE_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
