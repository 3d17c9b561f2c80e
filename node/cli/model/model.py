"""`fednode model`: shows or exports the model of one node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.model.model_onnx import require_onnx, write_onnx
from node.cli.model.predict import name_model
from node.cli.options import AsJson, RoundOption, make_group
from node.cli.output import print_facts, print_json, print_table, show_bytes
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger
from node.errors import NodeError

SAFETENSORS, ONNX = ".safetensors", ".onnx"


def register(app: typer.Typer) -> None:
    group = make_group("Look at a node's model, and take it away as a file.")
    group.command("info")(show_info)
    group.command("export")(export)
    app.add_typer(group, name="model")


def show_info(
    round_: RoundOption = "",
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a node's model: architecture, classes, size, arrays. Also its input, and the newest round that is in it.

    It is the node's own, after the newest round whose aggregate it has applied and written down, or after that which
    --round names; SHA-256 is that of the file that fednode model export would write.

    Examples: fednode model info --config node.yaml, or fednode model info --data-dir data --json
    """
    with open_ledger(socket, config, data_dir) as node:
        info = node.get_model_info(round_)
    if as_json:
        print_json(info)
        return
    print_facts(
        [
            ("model", info.model),
            ("chain", f"{info.chain_name} ({info.chain_id[:8]}), {info.method}"),
            ("round", f"{info.applied_round}{', the best of its run' if info.is_best else ''}"),
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
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="A name that ends in .safetensors or .onnx; never written over."),
    ],
    round_: RoundOption = "",
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a node's model to a file, safetensors or ONNX. torch loads the former with load_state_dict(load_file(OUT),
    strict=False).

    The arrays have the names of torchvision's models where those have them; what they were trained as stands in the
    file's metadata. The file is held to the SHA-256 that the node gives of it, and is there whole or not at all.

    ONNX needs pip install 'fednode[onnx]'. It has the whole way from samples in 0..1, or features as they are, to the
    classifier's probabilities, and onnxruntime has to give those that torch gives. A model that is a user's own module
    is imported here for it, where --config names a node whose training.plugins allow it.

    Examples: fednode model export model.safetensors --config node.yaml, model.onnx instead, or with --data-dir data of
    a stopped node
    """
    from node.admin.exported_model import write_model
    from node.admin.json_view import to_json

    kind = out.suffix.lower()
    if kind not in (SAFETENSORS, ONNX):
        raise typer.BadParameter(f"expected a name that ends in {SAFETENSORS} or {ONNX} (got {str(out)!r})")
    if out.exists() or out.is_symlink():
        raise NodeError(f"{out}: expected no file, as nothing is written over")
    if kind == ONNX:
        _export_onnx(out, round_, socket, config, data_dir, as_json)
        return
    with open_ledger(socket, config, data_dir) as node:
        info = write_model(out, node.export_model(round_))
    if as_json:
        print_json({"file": str(out), **to_json(info)})
        return
    print(f"{out}: {show_bytes(info.bytes)}, SHA-256 {info.sha256}")
    print(f"fednode: the {name_model([info.applied_round], is_best=info.is_best)}", file=sys.stderr)


def _export_onnx(
    out: Path, round_: str, socket: str | None, config: Path | None, data_dir: Path | None, as_json: bool
) -> None:
    from ml.plugins import NO_PLUGINS
    from node.admin.json_view import to_json
    from node.config.node_config import load_config

    require_onnx()
    plugins = NO_PLUGINS if config is None else load_config(config, (), os.environ).plugins
    with open_ledger(socket, config, data_dir) as node:
        made = write_onnx(out, node.export_model(round_), plugins=plugins)
    if as_json:
        written = {"bytes": made.num_bytes, "sha256": made.sha256, "max_difference": made.difference}
        print_json({"file": str(out), **to_json(made.info), "onnx": written})
        return
    print(f"{out}: {show_bytes(made.num_bytes)}, SHA-256 {made.sha256}")
    checked = "onnxruntime is not installed, so nothing was compared with torch"
    if made.difference is not None:
        checked = f"onnxruntime's probabilities are within {made.difference:.1e} of torch's"
    print(f"fednode: the model after round {made.info.applied_round}; {checked}", file=sys.stderr)
