"""`fednode model`: shows or exports the model of one node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson, make_group
from node.cli.target import DataDir, NodeConfigFile, Socket
from node.errors import NodeError, VerificationFailed

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


def register(app: typer.Typer) -> None:
    group = make_group("Look at a node's model, and take it away as a file.")
    group.command("info")(show_info)
    group.command("export")(export)
    app.add_typer(group, name="model")


def show_info(
    socket: Socket = None, config: NodeConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show a node's model: architecture, classes, size, arrays. Also its input, and the newest round that is in it.

    It is the node's own, after the newest round whose aggregate it has applied and written down; SHA-256 is that of the
    file that fednode model export would write.

    Examples: fednode model info --config node.yaml, or fednode model info --data-dir data --json
    """
    from node.admin.json_view import to_json
    from node.cli.output import print_facts, print_json, print_table, show_bytes
    from node.cli.target import open_ledger

    with open_ledger(socket, config, data_dir) as node:
        info = node.get_model_info()
    if as_json:
        print_json(to_json(info))
        return
    print_facts(
        [
            ("model", info.model),
            ("chain", f"{info.chain_name} ({info.chain_id[:8]}), {info.method}"),
            ("round", str(info.applied_round)),
            ("classes", ", ".join(info.classes)),
            ("input", info.input),
            ("size", f"{info.numbers:,} numbers, {show_bytes(info.bytes)}"),
            ("SHA-256", info.sha256),
        ]
    )
    print()
    rows = [(array.name, array.dtype, "x".join(map(str, array.shape)) or "1") for array in info.arrays]
    print_table(("ARRAY", "TYPE", "SHAPE"), rows)


def export(
    out: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="Where the file goes; never written over.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a node's model to a safetensors file. torch loads it with load_state_dict(load_file(OUT), strict=False).

    The arrays have the names of torchvision's models where those have them; what they were trained as stands in the
    file's metadata. The file is held to the SHA-256 that the node gives of it, and is there whole or not at all.

    Examples: fednode model export model.safetensors --config node.yaml, or with --data-dir data of a stopped node
    """
    from node.admin.json_view import to_json
    from node.cli.output import print_json, show_bytes
    from node.cli.target import open_ledger

    if out.exists() or out.is_symlink():
        raise NodeError(f"{out}: expected no file, as nothing is written over")
    with open_ledger(socket, config, data_dir) as node:
        info = write_model(out, node.export_model())
    if as_json:
        print_json({"file": str(out), **to_json(info)})
        return
    print(f"{out}: {show_bytes(info.bytes)}, SHA-256 {info.sha256}")
    print(f"fednode: the model after round {info.applied_round}", file=sys.stderr)


def write_model(out: Path, chunks: Iterator[pb.ModelChunk]) -> pb.ModelInfo:
    """Puts the chunks into `out`. Raises VerificationFailed where they are not what was announced, NodeError where they
    cannot be written; then there is no file."""
    import hashlib

    part = out.with_name(f".{out.name}.part")
    digest, size = hashlib.sha256(), 0
    try:
        with part.open("wb") as file:
            info = next(chunks).info
            for chunk in chunks:
                digest.update(chunk.data)
                size += len(chunk.data)
                file.write(chunk.data)
        if (size, digest.hexdigest()) != (info.bytes, info.sha256):
            raise VerificationFailed(
                f"{out}: expected {info.bytes} bytes with SHA-256 {info.sha256}, got {size} with {digest.hexdigest()}"
            )
        part.rename(out)
    except OSError as error:
        raise NodeError(f"{out}: cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
    return info
