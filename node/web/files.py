"""The files of the page: read once from the package, and served with a policy that lets them load nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

FOLDER = "page"
INDEX = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

# The headers of every answer. Nothing may be loaded from elsewhere, run inline, framed, or written as markup.
SAFETY = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    kind: str
    tag: str


class PageFiles:
    """Serves the files of the page, each by its path, and the index without one."""

    def __init__(self) -> None:
        self._files = {path: _read(file) for path, file in _walk(files("node.web") / FOLDER, "")}
        self._files[""] = self._files[INDEX]

    def __repr__(self) -> str:
        return f"PageFiles({len(self._files)})"

    async def answer(self, request: Request) -> Response:
        file = self._files.get(request.path_params.get("path", ""))
        if file is None:
            return Response("not found\n", 404, media_type="text/plain")
        headers = {"Content-Type": file.kind, "ETag": file.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers)


def _walk(folder: Traversable, above: str) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{above}{each.name}/")
        elif any(each.name.endswith(kind) for kind in _KINDS):
            yield f"{above}{each.name}", each


def _read(file: Traversable) -> _File:
    data = file.read_bytes()
    kind = next(kind for suffix, kind in _KINDS.items() if file.name.endswith(suffix))
    return _File(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
