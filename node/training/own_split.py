"""The split of a site's own data, as it is kept in the data directory: who is held out there stays held out.

    split.seed    a secret of the site, by which nobody else can say who is held out; 32 bytes in hexadecimal
    split.json    the side of each sample that was ever read, by 16 bytes of SHA-256(seed || key)

Both are in backups. A data directory that has trained under a release without them keeps the split of that release.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ml.data.split import CONTENT, KEY_BYTES, PUBLIC_SEED, SEED_BYTES, Rule, Side, Sides
from ml.errors import DataError
from node.errors import NodeError
from node.host.private_file import read_private, remove_private
from node.host.whole_file import writing_whole
from node.training.checkpoint import CHECKPOINTS

SEED_FILE, SPLIT_FILE = "split.seed", "split.json"
FORMAT = 1
_RESPLIT = "choose anew by fednode data resplit, which says which of the new test rows were trained on"


class _Kept(NamedTuple):
    rule: Rule
    known: dict[bytes, Side]
    columns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class OwnSplit:
    """Keeps the split of the site in its data directory."""

    data_dir: Path

    def open(self, *, makes_seed: bool = False) -> Sides:
        """Returns the kept sides. A site that has neither trained nor a split yet gets a secret seed with `makes_seed`,
        else a preview of a split by a public seed. Raises DataError for files that are damaged, or of which one is
        missing."""
        kept, seed = self._read_sides(), self._read_seed()
        if seed is not None and kept is not None:
            return Sides(seed, kept.known, kept.rule, kept.columns)
        if kept is not None or (seed is not None and self.has_trained()):
            gone = SEED_FILE if seed is None else SPLIT_FILE
            raise DataError(
                f"{self.data_dir / gone}: no such file, and without it nobody can say who is held out: put it back from"
                f" a backup, or {_RESPLIT}"
            )
        if seed is None and self.has_trained():
            return Sides(None)
        return Sides(seed or (secrets.token_bytes(SEED_BYTES) if makes_seed else PUBLIC_SEED))

    def has_trained(self) -> bool:
        """Says whether there is a checkpoint of any run."""
        return next((self.data_dir / CHECKPOINTS).glob("*/*.safetensors"), None) is not None

    def write(self, sides: Sides) -> None:
        """Writes the sides, durably, unless they are written already. Raises DataError."""
        if sides.seed is None or not sides.known:
            return
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self.data_dir / SEED_FILE, sides.seed.hex().encode() + b"\n")
            _write(self.data_dir / SPLIT_FILE, _encode(sides))
        except (NodeError, OSError) as error:
            raise DataError(f"nothing is trained on whose side is not kept: {error}") from error

    def replace(self, sides: Sides) -> None:
        """Replaces the split by another, with another seed. Raises DataError."""
        try:
            if self.data_dir.is_dir():
                remove_private(self.data_dir / SPLIT_FILE)  # first, so that no split is ever there with another's seed
        except NodeError as error:
            raise DataError(str(error)) from error
        self.write(sides)

    def _read_seed(self) -> bytes | None:
        path = self.data_dir / SEED_FILE
        try:
            text = read_private(path)
            seed = None if text is None else bytes.fromhex(text.decode("ascii").strip())
        except (NodeError, ValueError) as error:
            raise DataError(f"{path}: the secret of the split is damaged: {error}") from error
        if seed is not None and len(seed) != SEED_BYTES:
            raise DataError(f"{path}: the secret of the split is damaged: expected {SEED_BYTES} bytes, got {len(seed)}")
        return seed

    def _read_sides(self) -> _Kept | None:
        path = self.data_dir / SPLIT_FILE
        try:
            return _decode(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path}: who is held out is damaged ({error}): put it back, or {_RESPLIT}") from error


def open_own_sides(data_dir: Path, data: Mapping[str, Any], *, makes_seed: bool = False) -> Sides | None:
    """Returns the sides of a site's own data; None where the site has a part of a data set that is dealt out. Raises
    DataError."""
    return None if data.get("partition") is not None else OwnSplit(data_dir).open(makes_seed=makes_seed)


def _write(path: Path, data: bytes) -> None:
    """Raises NodeError or OSError."""
    if path.is_file() and path.read_bytes() == data:
        return
    with writing_whole(path, over=True, mode=0o600) as file:
        file.write(data)


def _encode(sides: Sides) -> bytes:
    columns = None if sides.columns is None else list(sides.columns)
    told: dict[str, Any] = {"format": FORMAT, "rule": list(sides.rule or CONTENT), "columns": columns}
    for side in Side:
        own = sorted(key for key, known in sides.known.items() if known is side)
        told[side.value] = base64.b64encode(b"".join(own)).decode("ascii")
    return json.dumps(told).encode("ascii") + b"\n"


def _decode(told: Any) -> _Kept:
    """Raises ValueError, KeyError, TypeError or AttributeError."""
    if told["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {str(told['format'])[:20]}")
    rule = tuple(told["rule"])
    if rule != CONTENT and not (
        len(rule) > 1 and rule[0] in ("group", "id") and all(type(name) is str for name in rule)
    ):
        raise ValueError(f"expected what samples are known by, got {str(rule)[:100]}")
    known: dict[bytes, Side] = {}
    for side in Side:
        keys = base64.b64decode(told[side.value], validate=True)
        if len(keys) % KEY_BYTES:
            raise ValueError(f"{side.value}: expected keys of {KEY_BYTES} bytes")
        known |= {keys[at : at + KEY_BYTES]: side for at in range(0, len(keys), KEY_BYTES)}
    columns = None if told["columns"] is None else tuple(map(str, told["columns"]))
    return _Kept(rule, known, columns)
