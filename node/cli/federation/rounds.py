"""`fednode rounds`: the participants of each round, refusals and their reasons, its duration, and its effect on the
accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.federation.peers import describe_not_taken
from node.cli.model.measures import (
    describe_measures,
    describe_privacy,
    describe_verdict,
    get_scores,
    list_alone,
    print_classes,
    print_published,
)
from node.cli.options import MAX_HEIGHT, AsJson
from node.cli.output import (
    print_facts,
    print_json,
    print_table,
    show_bytes,
    show_id,
    show_number,
    show_time,
)
from node.cli.target import DataDir, NodeConfigFile, Socket, make_listing, open_ledger
from node.errors import NotFound

if TYPE_CHECKING:
    from node.admin.ledger_client import LedgerClient
    from node.pb import admin_pb2 as pb

SIGNS = {
    "one_class": "one answer",
    "majority": "no better than the majority",
    "prior": "loss",
    "mean": "no better than the mean",
    "worse": "lr too high",
    "overfitting": "overfits",
    "unfound": "a class unfound",
    "miscalibrated": "miscalibrated",
    "averaging": "averaging costs",
}
NOT_MEASURED = "no: this node caught up with the round later"
PHASES = ("train", "exchange", "mine", "vote", "apply", "wall")

_First = Annotated[int | None, typer.Option("--from", metavar="R", min=1, max=MAX_HEIGHT, help="Begin at this round.")]
_Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")]
_Reverse = Annotated[bool, typer.Option("--reverse", help="Oldest first.")]


def register(app: typer.Typer) -> None:
    group = make_listing("Show the rounds of a federation as one node saw them.", list_some)
    group.command("show")(show)
    app.add_typer(group, name="rounds")


def list_some(
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    first: _First = None,
    limit: _Limit = 20,
    reverse: _Reverse = False,
    as_json: AsJson = False,
) -> None:
    """List rounds, newest first.

    BEST stands in the row of the best round by val samples, in a run that selects it, and below the table the newest
    verdict on federating, where the site also trains alone.

    Example: fednode rounds list --config node.yaml --limit 5
    """
    with open_ledger(socket, config, data_dir) as ledger:
        entries = list(ledger.iterate_rounds(first, limit, reverse=reverse))
    if as_json:
        print_json({"rounds": entries})
        return
    has_best = any(entry.best for entry in entries)
    has_branches = any("dropout" in entry.apply for entry in entries)
    has_troubles = any(map(_get_trouble, entries))
    rows = []
    for entry in entries:
        train, mine, wall = (
            f"{entry.seconds[phase]:.3f}" if phase in entry.seconds else "-" for phase in ("train", "mine", "wall")
        )
        rows.append(
            (
                _name_round(entry),
                show_time(entry.time),
                entry.miner_name,
                f"{len(entry.contributors)}/{entry.num_members}",
                str(len(entry.rejected)) if entry.rejected else "-",
                str(entry.view),
                f"{entry.train['iterations']:.0f}" if "iterations" in entry.train else "-",
                train,
                mine,
                wall,
                show_bytes(sum(entry.bytes_sent.values())) if entry.measured else "-",
                *map(show_number, get_scores(entry)[1:]),
                *(("BEST" if entry.best else "-",) if has_best else ()),
                *((_get_branch(entry),) if has_branches else ()),
                *((_get_trouble(entry) or "-",) if has_troubles else ()),
            )
        )
    who = (">ROUND", "TIME (UTC)", "MINER", ">CONTRIB", ">REFUSED", ">VIEW")
    cost = (">E", ">TRAIN", ">MINE", ">SECONDS", ">SENT")
    found = [">BEFORE", ">AFTER"]
    found += [name for name, has in (("CHOICE", has_best), ("BRANCH", has_branches), ("TROUBLE", has_troubles)) if has]
    print_table((*who, *cost, *found), rows)
    newest = max(
        (entry for entry in entries if entry.alone.HasField("verdict")), key=lambda entry: entry.height, default=None
    )
    if newest is not None:
        print(f"\n{newest.alone.verdict.sentence}")


def _get_branch(entry: pb.Round) -> str:
    """Returns the branch of the method that this node took, where the method has several."""
    if "dropout" in entry.apply:
        return "dropout" if entry.apply["dropout"] else "personalise"
    return "alone" if entry.measured else "-"


def _get_trouble(entry: pb.Round) -> str:
    """Returns the troubles of this node's model, in a word each; `rounds show` explains them."""
    troubles = {"spoiled": "spoiled", "went_back": "went back", "failure": "untrained"}
    words = [word for name, word in troubles.items() if entry.HasField(name)]
    return ", ".join([*words, *(SIGNS[name] for name in sorted(entry.signs) if name in SIGNS)])


def show(
    which: Annotated[
        str, typer.Argument(metavar="HEIGHT|head", help="The height of the block that it made, or head: the newest.")
    ],
    scores: Annotated[
        bool, typer.Option("--scores", help="Also score each contribution, which may take the node some seconds.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long scoring may take.")
    ] = 60.0,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one round in full.

    With --scores the node works out two numbers of each contribution, if it still holds the payloads. DISTANCE is from
    the median of all, in units of what is usual among them: 1 is usual, 10 stands out. EFFECT is by how much the
    contribution raised the loss on this node's own test samples, by its model as it is now: above 0 it did harm, and
    where prototypes alone are shared it is 0, for these change no model at once. Both are advice: a site with rare
    cases is far too, and no node decides anything by them. What is known once is shown without --scores as well.

    Examples: fednode rounds show 13 --scores --config node.yaml, or fednode rounds show head --data-dir data
    """
    asked = _read_height(which)
    with open_ledger(socket, config, data_dir) as ledger:
        height = _find_newest(ledger) if asked is None else asked
        entry = ledger.get_round(height, timeout_s if scores else None)
    if as_json:
        print_json(entry)
        return
    print_facts(describe_round(entry, get_work_unit(entry)))
    if entry.HasField("measures"):
        print_classes({"": entry.measures})
    print_published(entry)
    print_scores(entry)
    if entry.HasField("statistics"):
        print(f"statistics {entry.statistics}\n")
    if entry.HasField("schedule"):
        told = entry.schedule
        print(f"\nepochs {told.epochs}, lambda_c {told.lambda_c:.6g}, lambda_dis {told.lambda_dis:.6g}")
    if entry.HasField("peering"):
        print_peering(entry.peering)


def _read_height(which: str) -> int | None:
    """Returns the height, None for the newest round."""
    if which == "head":
        return None
    if which.isascii() and which.isdecimal() and int(which) <= MAX_HEIGHT:
        return int(which)
    raise typer.BadParameter(f"expected the height of a round's block, at most {MAX_HEIGHT}, or head (got {which!r})")


def _find_newest(ledger: LedgerClient) -> int:
    """Finds the height of the newest round: blocks above it, if any, are changes. Raises NotFound."""
    for newest in ledger.iterate_rounds(limit=1):
        return newest.height
    raise NotFound(f"{ledger.place}: expected a round, but none has been finalised yet")


def get_work_unit(entry: pb.Round) -> str:
    """Returns the unit of the local work of a round: epoch or iteration."""
    return "epoch" if entry.counts_epochs else "iteration"


def _name_round(entry: pb.Round) -> str:
    """Returns a round's number, and, where changes or runs came before it, the height that names it in commands."""
    if entry.height == entry.round:
        return str(entry.round)
    return f"{entry.round} of run {entry.run}, height {entry.height}"


def describe_round(entry: pb.Round, unit: str) -> list[tuple[str, str]]:
    left_out, rejected = sorted(entry.left_out.items()), sorted(entry.rejected.items())
    facts: list[tuple[str, str | None]] = [
        ("round", _name_round(entry)),
        ("block", f"{show_id(entry.block)} by {entry.miner_name}, {show_time(entry.time)} UTC"),
        ("votes", f"{entry.votes} in view {entry.view}"),
        ("contributed", ", ".join(entry.contributor_names)),
        ("best", "of the run so far, by val samples" if entry.best else None),
        ("left out", ", ".join(entry.absent_names) or None),
        *((f"without {show_id(author)}", why) for author, why in left_out),
        *((f"refused {show_id(author)}", why) for author, why in rejected if entry.left_out.get(author) != why),
        *((f"candidate {show_id(one.id)}", f"of {one.miner_name}: {one.reason}") for one in entry.candidates),
        *((f"signed twice {show_id(author)}", what) for author, what in sorted(entry.signed_twice.items())),
        *((f"not taken of {other.name}", describe_not_taken(other.counts)) for other in entry.not_taken),
        ("payloads", show_bytes(entry.payload_bytes)),
    ]
    facts += _describe_measured(entry, unit) if entry.measured else [("measured", NOT_MEASURED)]
    return [(name, text) for name, text in facts if text is not None]


def _describe_measured(entry: pb.Round, unit: str) -> list[tuple[str, str | None]]:
    """Returns what this node measured in a round that it took part in."""
    score, before, after = get_scores(entry)
    numbers, clipped = entry.train, f"{entry.clipped:,} numbers of the mean, which were outside of masked_radius"
    measures = describe_measures(entry.measures) if entry.HasField("measures") else []
    return [
        ("not trained", entry.failure if entry.HasField("failure") else None),
        ("began from its own model", entry.went_back if entry.HasField("went_back") else None),
        ("trained on other data than before", entry.data_change if entry.HasField("data_change") else None),
        ("aggregate not taken over", entry.spoiled if entry.HasField("spoiled") else None),
        ("clipped", clipped if entry.clipped else None),
        (f"local {unit}s", f"{numbers['iterations']:.0f}" if "iterations" in numbers else None),
        ("trained on", _describe_sets(entry) if "sets" in numbers else None),
        *((f"seconds {phase}", f"{entry.seconds[phase]:.3f}") for phase in PHASES if phase in entry.seconds),
        ("alpha", f"{numbers['alpha_s']:.6f} s a local {unit}" if "alpha_s" in numbers else None),
        ("beta", f"{entry.beta_s:.3f} s of mining" if entry.HasField("beta_s") else None),
        *((f"sent {kind}", show_bytes(count)) for kind, count in sorted(entry.bytes_sent.items()) if count),
        (
            "pulled",
            f"{show_bytes(entry.pulled_bytes)}{_describe_peers(entry)}" if entry.HasField("pulled_bytes") else None,
        ),
        *((f"went without {show_id(author)}", why) for author, why in sorted(entry.gone.items())),
        *describe_verdict(entry.alone),
        (score, f"{show_number(before)} before the exchange, {show_number(after)} after"),
        *((title, told) for title, told in measures if title != "accuracy"),
        ("val", _describe_val(entry) if "val_loss" in entry.apply else None),
        *(list_alone(entry.alone) if entry.HasField("alone") else ()),
        ("privacy", describe_privacy(entry.privacy) if entry.HasField("privacy") else None),
        *list_signs(entry),
    ]


def _describe_val(entry: pb.Round) -> str:
    area = f", AUC {entry.apply['val_auc']:.3f}" if "val_auc" in entry.apply else ""
    return f"loss {entry.apply['val_loss']:.3f}{area}, {entry.apply['val_samples']:.0f} samples"


def list_signs(entry: pb.Round) -> list[tuple[str, str]]:
    """Lists the signs that something is wrong with the model: first that it has not learned, then the others."""
    from ml.measures.collapse import NOT_LEARNED

    facts: list[tuple[str, str]] = []
    for title, is_told in (("not learned", True), ("model", False)):
        texts = [text for name, text in sorted(entry.signs.items()) if (name in NOT_LEARNED) == is_told]
        facts += [(title if i == 0 else "", text) for i, text in enumerate(texts)]
    return facts


def _describe_sets(entry: pb.Round) -> str:
    """Returns how many sets of other members this node used, and how many it left out because its model could not
    classify them."""
    count, dropped = entry.train["sets"], entry.train.get("sets_dropped", 0)
    told = f"{count:.0f} set{'s' if count != 1 else ''} of others"
    return f"{told}, {dropped:.0f} left out, whose loss diverged" if dropped else told


def _describe_peers(entry: pb.Round) -> str:
    """Returns how many of the drawn peers this node received from, and their mean divergence, in words."""
    count = entry.apply.get("peers")
    told = [] if count is None else [f" of {count:.0f} peer{'s' if count != 1 else ''}"]
    if "divergence" in entry.apply:
        told.append(f"divergence {entry.apply['divergence']:.3f} on average")
    return ", ".join(told)


def print_scores(entry: pb.Round) -> None:
    """Prints the known scores of each contribution, and why others are missing."""
    if not entry.scores:
        return
    rows = [
        (
            score.name,
            f"{score.distance:.4g}" if score.HasField("distance") else "-",
            f"{score.effect:+.4g}" if score.HasField("effect") else "-",
        )
        for score in entry.scores
    ]
    print()
    print_table(("MEMBER", ">DISTANCE", ">EFFECT"), rows)
    if entry.HasField("no_distance"):
        print(f"no distance: {entry.no_distance}")
    if entry.HasField("no_effect"):
        print(f"no effect: {entry.no_effect}")


def print_peering(peering: pb.Peering) -> None:
    """Prints how far members were apart, where that was measured, and who pulled what from whom."""
    print()
    if not peering.held:
        print("who took what from whom: not known here, as the aggregate of this round is not held")
        return
    names = [node.name for node in peering.nodes]
    for what in ("divergences", "weights"):
        rows = [[show_number(value, 3) for value in getattr(node, what)] for node in peering.nodes]
        if any(rows):
            print_table(
                (what.upper(), *(f">{name}" for name in names)),
                [(name, *row) for name, row in zip(names, rows, strict=True)],
            )
            print()
    if peering.HasField("threshold"):
        print(f"threshold {peering.threshold:g} ({peering.div})\n")
    if any(node.HasField("branch") for node in peering.nodes):
        rows = [[node.name, node.branch, ", ".join(node.peers) or "-", _describe_taken(node)] for node in peering.nodes]
        print_table(("NODE", "BRANCH", "DREW", "TAKES"), rows)
    else:
        print_table(("NODE", "DREW"), [(node.name, ", ".join(node.peers) or "-") for node in peering.nodes])


def _describe_taken(node: pb.Taker) -> str:
    if node.HasField("donor"):
        return f"g and h of {node.donor}"
    parts = [f"{part} of {', '.join(peers)}" for part, peers in (("g", node.peers), ("h", node.similar)) if peers]
    return "; ".join(parts) or "-"
