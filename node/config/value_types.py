"""The types of single values in node.yaml: addresses, ids, paths, digests, each checked as it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from chain.errors import InvalidKey
from chain.schema import MAX_NAME_CHARS
from chain.signing import decode_id
from node.addresses import parse_address, validate_dialled
from node.unseen import escape_unseen

MAX_SOCKET_PATH_BYTES = 107  # sun_path of unix(7) holds 108 with its closing zero


def _validate_listen(text: str) -> str:
    parse_address(text)
    return text


def _validate_id(text: str) -> str:
    try:
        decode_id(text)
    except InvalidKey as error:
        raise ValueError(f"expected a node id ({error})") from error
    return text


def _validate_display_name(text: str) -> str:
    member_id, equals, name = text.partition("=")
    if not equals:
        raise ValueError("expected id=name")
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable() or escape_unseen(name) != name:
        raise ValueError(f"expected a name of 1 to {MAX_NAME_CHARS} characters that show")
    return _validate_id(member_id) + equals + name


def _validate_peer(text: str) -> str:
    peer, at, address = text.partition("@")
    if not at:
        raise ValueError("expected id@host:port")
    _validate_id(peer)
    validate_dialled(address)
    return text


def _validate_device(text: str) -> str:
    index = text.removeprefix("cuda:")
    if text not in ("auto", "cpu", "cuda") and not (text.startswith("cuda:") and index.isascii() and index.isdigit()):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return text


def _validate_threads(value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("expected auto or a number of threads, at least 1")
    return value


def _resolve(path: Path, info: ValidationInfo) -> Path:
    if str(path) in ("", ".") or "\0" in str(path):
        raise ValueError("expected a path")
    base: Path = (info.context or {}).get("directory", Path.cwd())
    try:
        return Path(os.path.normpath(base / path.expanduser()))
    except RuntimeError as error:
        raise ValueError("expected a path below a home that is known") from error


def _validate_socket(path: Path) -> Path:
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"expected a socket path of at most {MAX_SOCKET_PATH_BYTES} bytes in full, which {path} is not ({length})"
        )
    return path


def _validate_proxy(text: str) -> str:
    if "@" in text or "://" in text:
        raise ValueError("expected host:port of an HTTP proxy that asks for no password (what was given is not shown)")
    return validate_dialled(text)


def _validate_digest(text: str) -> str:
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise ValueError("expected 64 hexadecimal digits")
    return text


FilePath = Annotated[Path, AfterValidator(_resolve)]
SocketPath = Annotated[Path, AfterValidator(_resolve), AfterValidator(_validate_socket)]
ListenAddress = Annotated[str, AfterValidator(_validate_listen)]
DialledAddress = Annotated[str, AfterValidator(validate_dialled)]
ProxyAddress = Annotated[str, AfterValidator(_validate_proxy)]
NodeId = Annotated[str, AfterValidator(_validate_id)]
DisplayName = Annotated[str, AfterValidator(_validate_display_name)]
Peer = Annotated[str, AfterValidator(_validate_peer)]
Digest = Annotated[str, AfterValidator(_validate_digest)]
Device = Annotated[str, AfterValidator(_validate_device)]
Threads = Annotated[int | Literal["auto"], BeforeValidator(_validate_threads)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
DataFormat = Literal[
    "digits", "npz", "imagefolder", "csv", "parquet", "hf", "idx", "cifar", "svhn", "medmnist", "domains"
]
