"""`fednode chain`: the ledger of a running node, or what a stopped one has left."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from node.cli.chain.chain_compare import diff, list_evidence
from node.cli.chain.chain_import import import_file
from node.cli.options import MAX_HEIGHT, AsJson, make_group
from node.cli.output import print_facts, print_json, print_table, show_bytes, show_id, show_time
from node.cli.target import DataDir, NodeConfigFile, Socket, choose_data_dir, open_ledger, open_node
from node.errors import NodeError, VerificationFailed
from node.host.whole_file import writing_whole

if TYPE_CHECKING:
    from chain.audit import ExportedBlock
    from node.admin.ledger_client import LedgerClient
    from node.pb import admin_pb2 as pb


class ExportFormat(StrEnum):
    BINARY = "binary"  # as chain.audit.write_export does
    JSONL = "jsonl"  # for other tools: one object per block, its canonical bytes in hex


_First = Annotated[int | None, typer.Option("--from", metavar="H", min=0, max=MAX_HEIGHT, help="Begin at this height.")]
_Last = Annotated[
    int | None,
    typer.Option("--to", metavar="H", min=0, max=MAX_HEIGHT, help="End with this height; the head if left out."),
]


def register(app: typer.Typer) -> None:
    group = make_group("Show, check, compare, follow, export and import the chain.")
    group.command("list")(list_some)
    group.command("show")(show)
    group.command("verify")(verify)
    group.command("watch")(watch)
    group.command("export")(export)
    group.command("import")(import_file)
    group.command("diff")(diff)
    group.command("evidence")(list_evidence)
    app.add_typer(group, name="chain")


# ---- list and show


def list_some(
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    first: _First = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 20,
    reverse: Annotated[bool, typer.Option("--reverse", help="Oldest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """List finalised blocks, newest first.

    Example: fednode chain list --config node.yaml --limit 3
    """
    with open_ledger(socket, config, data_dir) as ledger:
        blocks = list(ledger.iterate_blocks(first, limit, reverse=reverse))
    if as_json:
        print_json({"blocks": blocks})
        return
    rows = [
        (
            str(block.height),
            show_id(block.id),
            show_time(block.time),
            f"{block.miner_name} {show_id(block.miner)}" if block.HasField("miner") else "(genesis)",
            f"{block.num_contributions}/{block.num_members}",
            f"{block.num_votes}/{block.num_members}",
            str(block.difficulty),
            show_bytes(block.bytes),
        )
        for block in blocks
    ]
    headings = (">HEIGHT", "ID", "TIME (UTC)", "MINER", ">CONTRIB", ">VOTES", ">DIFFICULTY", ">SIZE")
    print_table(headings, rows)


def show(
    which: Annotated[str, typer.Argument(metavar="HEIGHT|ID|head", help="A height, a block id in full, or head.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="Also the arrays of each payload held.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one block in full.

    Examples: fednode chain show head --payloads --config node.yaml, or fednode chain show 13 --data-dir data
    """
    from node.admin.json_view import show_block

    with open_ledger(socket, config, data_dir) as ledger:
        block = find(ledger, which, payloads)
    if as_json:
        print_json(show_block(block))
    else:
        print_facts(_describe(block))


def find(ledger: LedgerClient, which: str, payloads: bool) -> pb.Block:
    if which == "head":
        return ledger.get_head(include_payloads=payloads)
    if which.isascii() and which.isdigit() and len(which) < 20:
        return ledger.get_block(int(which), include_payloads=payloads)
    if len(which) != 64:
        raise typer.BadParameter(f"expected a height, a block id of 64 hexadecimal digits, or head (got {which!r})")
    return ledger.find_block(which, include_payloads=payloads)


def _describe(block: pb.Block) -> list[tuple[str, str]]:
    summary = block.summary
    facts = [("height", str(summary.height)), ("id", summary.id), ("parent", summary.prev)]
    facts.append(("time", f"{show_time(summary.time)} UTC, {summary.mining_s:.3f} s after mining began"))
    if summary.HasField("miner"):
        facts.append(("miner", f"{summary.miner_name} {summary.miner}"))
    facts.append(("work", f"difficulty {summary.difficulty:,}, nonce {summary.nonce}"))
    if summary.HasField("aggregate"):
        facts.append(("aggregate", summary.aggregate + ("" if block.aggregate_held else "  (not held)")))
    facts.append(("size", show_bytes(summary.bytes)))
    for contribution in block.contributions:
        facts.append(("contribution", f"{contribution.name} {contribution.author}, weight {contribution.weight}"))
        for payload in contribution.payloads:
            held = "" if payload.held else "  (not held)"
            facts.append(("", f"{payload.kind} {show_id(payload.digest)}  {show_bytes(payload.bytes)}{held}"))
            for array in payload.arrays:
                shape = "x".join(str(length) for length in array.shape) or "scalar"
                facts.append(("", f"  {array.name}  {array.dtype} {shape}"))
    if summary.num_votes:
        names = ", ".join(f"{voter.name} {show_id(voter.id)}" for voter in block.votes)
        facts.append(("certificate", f"{summary.num_votes} of {summary.num_members}, view {summary.view}: {names}"))
    return facts


# ---- verify


def verify(
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    first: Annotated[
        int, typer.Option("--from", metavar="H", min=0, max=MAX_HEIGHT, help="Take what is below as given.")
    ] = 0,
    deep: Annotated[bool, typer.Option("--deep", help="Recompute every aggregate whose blobs are held.")] = False,
    require_all: Annotated[
        bool, typer.Option("--require-all", help="With --deep: a height that cannot be recomputed is a fault.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify the stored chain; exit code 5 at the first fault. It checks links, proof of work, signatures, certificates
    and every stored byte.

    Examples: fednode chain verify --deep --config node.yaml, or fednode chain verify --data-dir data --json
    """
    from node.admin.json_view import to_json

    if require_all and not deep:
        raise typer.BadParameter("expected --deep with --require-all, as only that recomputes anything")
    left = choose_data_dir(socket, config, data_dir)
    with show_progress(as_json) as progress:
        if left is None:
            with open_node(socket, config) as node:
                report = node.verify(first, deep=deep, require_all=require_all, on_progress=progress)
        else:
            from node.admin.offline import verify_data_dir

            report = verify_data_dir(left, first, deep=deep, require_all=require_all, on_progress=progress)
    if as_json:
        shown = to_json(report)
        if shown["fault"] is None:
            del shown["fault"]
        print_json(shown)
    else:
        print(_describe_report(report, deep))
    if not report.ok:
        raise VerificationFailed(describe_fault(report.fault))


@contextmanager
def show_progress(quiet: bool) -> Iterator[Callable[[pb.VerifyProgress], None]]:
    """Shows a bar on stderr, where that is a terminal, and yields the function that a verification calls with its
    progress."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda reached: bar.update(task, completed=reached.height, total=reached.last)


def _describe_report(report: pb.VerifyReport, deep: bool) -> str:
    checked = f"{report.blocks} blocks, {report.signatures} signatures"
    if deep:
        checked += f", {report.recomputed} aggregates recomputed"
    if not report.ok:
        return f"broken: {checked} held before the fault; {report.seconds:.3f} s"
    text = (
        f"ok: heights {report.first} to {report.last}, head {show_id(report.head)}; {checked}; {report.seconds:.3f} s"
    )
    if report.not_held:
        heights = ", ".join(str(height) for height in report.not_held[:20])
        more = f" and {len(report.not_held) - 20} more" if len(report.not_held) > 20 else ""
        text += f"\nnot recomputed, as blobs are not held: {heights}{more}"
    return text


def describe_fault(fault: pb.Fault) -> str:
    return fault.what + (f": expected {fault.expected}, got {fault.got}" if fault.expected or fault.got else "")


# ---- watch


def watch(
    socket: Socket = None,
    config: NodeConfigFile = None,
    events: Annotated[
        str,
        typer.Option(
            "--events",
            metavar="KIND,…",
            help="block, round, training, spoiled, peer, rejected, evidence, stall, operator, proposal, approval, "
            "change, consent, standing, divergence.",
        ),
    ] = "block",
    since: Annotated[
        str, typer.Option("--since", metavar="CURSOR", help="Go on after this event; 0-0 for all that are kept.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Follow what happens in a running node, until Ctrl-C.

    Example: fednode chain watch --events block,rejected --config node.yaml
    """
    kinds = [kind.strip() for kind in events.split(",") if kind.strip()]
    with open_node(socket, config) as node:
        try:
            for event in node.watch(kinds, since):
                data = json.loads(event.data)
                if event.missed:
                    print(f"fednode: {event.missed} events before this one are no longer kept", file=sys.stderr)
                if as_json:
                    print_json({"cursor": event.cursor, "time": event.time, "kind": event.kind, "data": data})
                else:
                    print(describe_event(event.time, event.kind, data), flush=True)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def describe_event(time: str, kind: str, data: dict[str, object]) -> str:
    """Returns an event in one line: time, kind and values, with names of members where they are known."""
    from chain.schema import format_time

    words = []
    for key, value in data.items():
        if f"{key}_name" in data or isinstance(value, dict | list):
            continue
        if isinstance(value, str) and key in ("id", "block", "author", "miner", "peer", "change"):
            value = show_id(value)
        elif isinstance(value, float):
            value = f"{value:.4g}"
        elif key == "time_ms" and isinstance(value, int):
            key, value = "time", show_time(format_time(value))
        elif key == "answer":
            value = "yes" if value == 1 else "yes, without training"
        if value is not None:
            words.append(f"{key.removesuffix('_name')} {value}")
    return f"{show_time(time)}  {kind:<8}  {'  '.join(words)}"


# ---- export


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; - is stdout.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    first: Annotated[int, typer.Option("--from", metavar="H", min=0, max=MAX_HEIGHT, help="Begin at this height.")] = 0,
    last: _Last = None,
    file_format: Annotated[
        ExportFormat, typer.Option("--format", help="binary, or one JSON object per block and one that ends them.")
    ] = ExportFormat.BINARY,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write finalised blocks and certificates to a file. It writes all of it or nothing.

    Example: fednode chain export chain.pb --from 1 --to 100 --config node.yaml
    """
    if last is not None and last < first:
        raise typer.BadParameter(f"expected --to of at least --from (got {first} to {last})")
    with open_ledger(socket, config, data_dir) as ledger:
        blocks = ledger.export(first, last)
        if str(file) == "-":
            count = _write(sys.stdout.buffer, file_format, ledger, blocks)
            sys.stdout.buffer.flush()
            print(f"fednode: {count} blocks written", file=sys.stderr)
            return
        if file.exists() and not force:
            raise NodeError(f"{file}: expected no such file, or --force")
        with writing_whole(file, over=force) as stream:
            count = _write(stream, file_format, ledger, blocks)
    num_bytes = file.stat().st_size
    if as_json:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        end = first + count - 1
        facts = {"file": str(file), "from": first, "to": end, "blocks": count, "bytes": num_bytes, "sha256": digest}
        print_json(facts)
    else:
        print(f"{file}: heights {first} to {first + count - 1}, {num_bytes} bytes")


def _write(out: IO[bytes], file_format: ExportFormat, ledger: LedgerClient, blocks: Iterator[ExportedBlock]) -> int:
    from chain.audit import write_export

    if file_format is ExportFormat.BINARY:
        return write_export(out, ledger.genesis.chain_id, blocks)
    from node.admin.json_view import to_json

    count, head = 0, None
    summaries: Iterator[pb.BlockSummary] | None = None
    for height, block, certificate in blocks:
        summaries = summaries or ledger.iterate_blocks(height, MAX_HEIGHT, reverse=True)
        summary = next(summaries)
        shown = to_json(summary)
        line = shown | {"block": block.hex(), "certificate": certificate.hex()}
        out.write(json.dumps(line).encode() + b"\n")
        count, head = count + 1, shown["id"]
    out.write(json.dumps({"end": {"blocks": count, "head": head}}).encode() + b"\n")  # or a cut went unnoticed
    return count
