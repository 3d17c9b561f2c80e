"""`fednode rounds`: who took part, who was refused and why, how long it took, what it did to the accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson, make_group
from node.cli.target import DataDir, NodeConfigFile, Socket

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

PHASES = ("train", "exchange", "mine", "vote", "apply", "wall")

_First = Annotated[int | None, typer.Option("--from", metavar="R", min=1, help="Begin at this round.")]
_Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")]
_Reverse = Annotated[bool, typer.Option("--reverse", help="Oldest first.")]


def register(app: typer.Typer) -> None:
    group = make_group("Show the rounds of a federation as one node lived them.")
    group.callback(invoke_without_command=True, no_args_is_help=False)(list_by_default)
    group.command("list")(list_some)
    group.command("show")(show)
    app.add_typer(group, name="rounds")


def list_by_default(
    context: typer.Context,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    first: _First = None,
    limit: _Limit = 20,
    reverse: _Reverse = False,
    as_json: AsJson = False,
) -> None:
    """Show the rounds of a federation as one node lived them."""
    if context.invoked_subcommand is None:
        list_some(socket, config, data_dir, first, limit, reverse, as_json)
    elif socket or config is not None or data_dir is not None or first is not None or reverse or as_json:
        raise typer.BadParameter(
            f"expected options after the command, as in fednode rounds {context.invoked_subcommand} --json", ctx=context
        )


def list_some(
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    first: _First = None,
    limit: _Limit = 20,
    reverse: _Reverse = False,
    as_json: AsJson = False,
) -> None:
    """List rounds, newest first."""
    from node.cli.output import gather_pages, print_json, print_table, show_bytes, show_number, show_time
    from node.cli.target import open_ledger
    from node.json_view import to_json

    with open_ledger(socket, config, data_dir) as ledger:

        def get_page(at: int | None, count: int) -> tuple[list[pb.Round], int | None]:
            page = ledger.list_rounds(at, count, reverse=reverse)
            return list(page.rounds), page.next if page.HasField("next") else None

        entries = gather_pages(get_page, first, limit)
        num_members = ledger.genesis.n
    if as_json:
        print_json({"rounds": [to_json(entry) for entry in entries]})
        return
    rows = []
    for entry in entries:
        train, mine, wall = (
            f"{entry.seconds[phase]:.3f}" if phase in entry.seconds else "-" for phase in ("train", "mine", "wall")
        )
        rows.append(
            (
                str(entry.round),
                show_time(entry.time),
                entry.miner_name,
                f"{len(entry.contributors)}/{num_members}",
                str(len(entry.rejected)) if entry.rejected else "-",
                str(entry.view),
                f"{entry.train['iterations']:.0f}" if "iterations" in entry.train else "-",
                train,
                mine,
                wall,
                show_bytes(sum(entry.bytes_sent.values())) if entry.measured else "-",
                show_number(entry.local_accuracy if entry.HasField("local_accuracy") else None),
                show_number(entry.accuracy if entry.HasField("accuracy") else None),
            )
        )
    who = (">ROUND", "TIME (UTC)", "MINER", ">CONTRIB", ">REFUSED", ">VIEW")
    cost = (">E", ">TRAIN", ">MINE", ">SECONDS", ">SENT")
    print_table((*who, *cost, ">BEFORE", ">AFTER"), rows)


def show(
    number: Annotated[int, typer.Argument(metavar="R", min=0, help="Round r made the block of height r.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one round in full."""
    from node.cli.output import print_facts, print_json
    from node.cli.target import open_ledger
    from node.genesis_file import get_work_unit
    from node.json_view import to_json

    with open_ledger(socket, config, data_dir) as ledger:
        entry, unit = ledger.get_round(number), get_work_unit(ledger.genesis)
        absent = [member.name for member in ledger.genesis.members if member.name not in set(entry.contributor_names)]
    if as_json:
        print_json(to_json(entry))
    else:
        print_facts(_describe(entry, absent, unit))


def _describe(entry: pb.Round, absent: list[str], unit: str) -> list[tuple[str, str]]:
    from node.cli.output import show_bytes, show_id, show_number, show_time

    facts = [
        ("round", str(entry.round)),
        ("block", f"{show_id(entry.block)} by {entry.miner_name}, {show_time(entry.time)} UTC"),
        ("votes", f"{entry.votes} in view {entry.view}"),
        ("contributed", ", ".join(entry.contributor_names)),
    ]
    if absent:
        facts.append(("left out", ", ".join(absent)))
    facts += [(f"refused {show_id(author)}", why) for author, why in sorted(entry.rejected.items())]
    facts.append(("payloads", show_bytes(entry.payload_bytes)))
    if not entry.measured:
        return [*facts, ("measured", "no: this node caught up with the round later")]
    if "iterations" in entry.train:
        facts.append((f"local {unit}s", f"{entry.train['iterations']:.0f}"))
    facts += [(f"seconds {phase}", f"{entry.seconds[phase]:.3f}") for phase in PHASES if phase in entry.seconds]
    if "alpha_s" in entry.train:
        facts.append(("alpha", f"{entry.train['alpha_s']:.6f} s a local {unit}"))
    if entry.HasField("beta_s"):
        facts.append(("beta", f"{entry.beta_s:.3f} s of mining"))
    facts += [(f"sent {kind}", show_bytes(count)) for kind, count in sorted(entry.bytes_sent.items()) if count]
    before = entry.local_accuracy if entry.HasField("local_accuracy") else None
    after = entry.accuracy if entry.HasField("accuracy") else None
    return [*facts, ("accuracy", f"{show_number(before)} before the exchange, {show_number(after)} after")]
