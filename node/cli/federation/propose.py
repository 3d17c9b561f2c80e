"""`fednode propose`, `leave`, `key replace`: changes of the federation, shown before they are signed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.federation.proposals import SENDS_OWN, print_proposal
from node.cli.options import MAX_HEIGHT, AsJson, join_options, make_group
from node.cli.output import can_ask, print_json
from node.cli.target import NodeConfigFile, Socket, open_node
from node.errors import NodeError

_Name = Annotated[str, typer.Argument(metavar="NAME", help="A member's name or id.")]
_Request = Annotated[
    str,
    typer.Argument(metavar="REQUEST", help="The line of a join request; or NAME=ID on a network to try things out."),
]
NEW = Path("new")  # in place of a file: the node draws the first parameters


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that a command proposes; `said` is printed before its differences, once the node has found it
    possible."""

    kind: str
    terms: Mapping[str, Any]
    first: int | None = None
    said: str = ""
    lend: bool = False


def register(app: typer.Typer) -> None:
    group = make_group("Propose a change of the federation.")
    drafts: dict[str, Callable[..., Proposal]] = {
        "add-member": add_member,
        "remove-member": remove_member,
        "run": start_run,
        "statistics": start_statistics,
        "evaluation": start_evaluation,
        "rounds": set_rounds,
        "end-run": end_run,
        "set": set_rules,
        "upgrade": upgrade,
        "pardon": pardon,
        "add-observer": add_observer,
        "remove-observer": remove_observer,
    }
    for name, draft in drafts.items():
        group.command(name)(join_options(draft, propose))
    app.add_typer(group, name="propose")
    app.command("leave")(join_options(leave, propose))


# ---- who takes part


def add_member(request: _Request) -> Proposal:
    """Propose a new member.

    A quorum of the members has to approve it, and of those who will be members; the joiner's node has to run and to
    have the chain. Compare the id in the request with the joiner by voice before you sign.

    Example: fednode propose add-member "$(cat hospital-d.request)" --note "ethics vote 2026-11" -c node.yaml
    """
    return Proposal("add_member", {"request": request})


def remove_member(name: _Name) -> Proposal:
    """Propose that a member goes.

    A quorum of the members has to approve it, and of those who stay.

    Example: fednode propose remove-member hospital-d --note "left the study" -c node.yaml
    """
    return Proposal("remove_member", {"name": name})


def replace_key(
    name: _Name,
    request: _Request,
) -> Proposal:
    """Propose another key for a member who lost its own.

    Or had it stolen. A quorum has to approve it, and a node with the new key has to run. Compare its id with the member
    by voice.

    Example: fednode key replace hospital-b "$(cat hospital-b.request)" -c node.yaml
    """
    return Proposal("replace_key", {"name": name, "request": request})


def pardon(name: _Name) -> Proposal:
    """Propose that a suspended member contributes again.

    Example: fednode propose pardon hospital-c --note "restored from a backup" -c node.yaml
    """
    return Proposal("pardon", {"name": name})


def add_observer(request: _Request) -> Proposal:
    """Propose an observer, which reads and decides nothing.

    Example: fednode propose add-observer registry=K5RY2M4A… -c node.yaml
    """
    return Proposal("add_observer", {"request": request})


def remove_observer(name: Annotated[str, typer.Argument(metavar="NAME", help="An observer's name or id.")]) -> Proposal:
    """Propose that an observer reads no more.

    Example: fednode propose remove-observer registry -c node.yaml
    """
    return Proposal("remove_observer", {"name": name})


def leave() -> Proposal:
    """Leave the federation.

    This node proposes that it goes; a quorum of the others has to approve. Until then it votes, and what it is needed
    for goes on; after that it decides nothing any more. What it contributed stays on the chain.

    Example: fednode leave --note "end of the study" -c node.yaml
    """
    said = "This node asks to leave. It votes until the others have approved that; what it contributed stays.\n"
    return Proposal("leave", {}, said=said)


# ---- what is trained


def start_run(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A YAML file with method, model, classes, input or rounds.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="On top, as in lr=0.05 or model.hidden=[32]. May be repeated."),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=0, help="How many; 0: no end.")] = None,
    continues: Annotated[bool, typer.Option("--continue", help="Begin from the aggregate in force.")] = False,
    initial: Annotated[
        Path | None,
        typer.Option(
            "--initial", metavar="FILE|new", help="Begin from this model, on the node's machine; or draw a new one."
        ),
    ] = None,
) -> Proposal:
    """Propose the next run.

    What neither FILE nor --set names stays as it is in the run in force. Enough of those who approve it have to train
    in it. It begins with the block after the one that holds it. With --initial new the node draws the first parameters.

    Examples: fednode propose run --set lr=0.05 --rounds 100 --continue -c node.yaml, or
    fednode propose run run.yaml --initial new -c node.yaml
    """
    from node.config.yaml_source import read_sections

    given = {} if file is None else dict(read_sections(file).value)
    if continues == (initial is not None):
        raise typer.BadParameter("expected either --continue or --initial FILE or new: what the run begins from")
    terms = {
        "run": given,
        "set": list(settings or ()),
        "rounds": rounds,
        "initial": "continue" if initial is None else "new" if initial == NEW else str(initial.absolute()),
    }
    return Proposal("start_run", terms)


def start_statistics(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A YAML file with the columns, as fednode data inspect prints them, and their edges."
        ),
    ],
    min_count: Annotated[
        int, typer.Option("--min-count", metavar="N", min=1, help="Counts are rounded down to a multiple of it.")
    ] = 5,
    correlations: Annotated[
        bool, typer.Option("--correlations", help="Members also tell the sums of each class: how features go with it.")
    ] = False,
    masked: Annotated[
        bool, typer.Option("--masked", help="Nobody sees what a single site tells, only the sums of all.")
    ] = False,
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise",
            metavar="SIGMA",
            help="Hide each sample: noise in all numbers, in units of what one sample has in them at most.",
        ),
    ] = None,
    socket: Socket = None,
    config: NodeConfigFile = None,
) -> Proposal:
    """Propose to count what members have.

    It is a run of one round, before anything is trained. Each member tells how many training samples it has, by class,
    too, and of each column that FILE names: how many cells are there, their mean and deviation, how many rows have each
    value of a category, and how many cells lie below, between and from the last of its edges. All members see that, and
    it stays on the chain for ever. fednode statistics shows it. What FILE names is seen by all at once: name values and
    edges that tell nothing of your own samples.

    FILE has {columns: [{name: age, edges: [30, 40, 50, 60, 70]}, {name: sex, values: [f, m]}]}, and perhaps {empty:
    ["?"]}, texts that stand for an empty cell. With --noise each number has {low: 0, high: 120}, too: what its values
    lie between, by what they can be, and not by what yours are.

    Example: fednode propose statistics columns.yaml --note "before the first run" -c node.yaml
    """
    from ml.tasks import CLASSIFICATION
    from node.cli.federation.statistics_terms import draft_statistics, read_columns
    from node.config.yaml_source import read_sections

    read = read_columns(file, dict(read_sections(file).value))
    with open_node(socket, config) as node:
        task = json.loads(node.list_runs(0)[0].terms).get("task", CLASSIFICATION)
    asked: dict[str, Any] = {"correlations": correlations, "masked": masked, "noise": noise}
    terms = draft_statistics(file, read, task=task, min_count=min_count, **asked)
    what = "The sums of what members tell of their samples are" if masked else "What members tell of their samples is"
    said = f"{what} seen by all of them, and stay{'' if masked else 's'} on the chain for ever.\n"
    return Proposal("start_run", terms, said=said)


def start_evaluation(
    round_: Annotated[
        str, typer.Option("--round", metavar="newest|best|N", help="After which round of its run the model stood.")
    ] = "newest",
    run: Annotated[
        int | None, typer.Option("--run", metavar="N", min=1, help="Which run has trained it; by default the newest.")
    ] = None,
    min_samples: Annotated[
        int, typer.Option("--min-samples", metavar="N", min=1, help="A site with fewer test samples tells nothing.")
    ] = 50,
    min_count: Annotated[
        int, typer.Option("--min-count", metavar="N", min=1, help="Counts are rounded down to a multiple of it.")
    ] = 5,
    may_lend: Annotated[
        bool, typer.Option("--may-lend", help="Measure also what sites lend of their own models, who approve so.")
    ] = False,
    lend: Annotated[
        bool, typer.Option("--lend", help="As --may-lend, and this site lends its own: all others get its weights.")
    ] = False,
) -> Proposal:
    """Propose to measure a model at every site.

    It is a run of one round, in which nothing is trained: each member that approves it measures the common model on its
    own test samples, and signs the figures with their intervals, of all classes together and of each. They stand on the
    chain for ever, for all members; fednode evaluation shows them. It ends a run that is going on; the next may go on
    from the same model.

    With --lend or --may-lend there are two rounds, and sites may lend the others their own models to be measured, too:
    whoever approves it with --lend does, and nobody else. Of a method that has no model in common that is all there is.

    Examples: fednode propose evaluation --note "external validation" -c node.yaml, or
    fednode propose evaluation --run 1 --round 12 -c node.yaml
    """
    if round_ not in ("newest", "best") and not (round_.isascii() and round_.isdecimal()):
        raise typer.BadParameter(f"expected newest, best or the number of a round (got {round_})")
    terms: dict[str, Any] = {
        "round": int(round_) if round_.isdecimal() else round_,
        "min_samples": min_samples,
        "min_count": min_count,
        **({} if run is None else {"run": run}),
        **({"lend": True} if lend or may_lend else {}),
    }
    said = "What members measure on their test samples is seen by all of them, and stays on the chain for ever.\n"
    said += f"By this you {SENDS_OWN}.\n" if lend else ""
    return Proposal("evaluation", terms, said=said, lend=lend)


def set_rounds(
    rounds: Annotated[int, typer.Argument(metavar="N", min=0, max=MAX_HEIGHT, help="How many in all; 0: no end.")],
) -> Proposal:
    """Propose another number of rounds for the run in force.

    Example: fednode propose rounds 200 -c node.yaml
    """
    return Proposal("set_rounds", {"rounds": rounds})


def end_run() -> Proposal:
    """Propose that the run in force ends.

    The federation is idle then, until another run is agreed on.

    Example: fednode propose end-run --note "diverges everywhere" -c node.yaml
    """
    return Proposal("end_run", {})


# ---- by which rules


def set_rules(
    values: Annotated[list[str], typer.Argument(metavar="PATH=VALUE…", help="As in waits.collect_s=5.")],
) -> Proposal:
    """Propose other values of the rules.

    They are those of genesis: quorum, waits, pow, limits, min_contributions, keep_heights, evidence_heights. A number
    moves at most 64-fold at once.

    Example: fednode propose set waits.collect_s=5 waits.delta_s=1 -c node.yaml
    """
    return Proposal("set_rules", {"set": values})


def upgrade(
    protocol: Annotated[int, typer.Argument(metavar="P", min=1, help="The number of the protocol.")],
    first: Annotated[
        int, typer.Option("--from", metavar="H", min=1, max=MAX_HEIGHT, help="The height from which it is spoken.")
    ],
) -> Proposal:
    """Propose another protocol from a height on.

    Each node that cannot speak it stops before that height. Update all of them first: fednode version says what a
    release speaks.

    Example: fednode propose upgrade 3 --from 5000 -c node.yaml
    """
    return Proposal("upgrade", {"protocol": protocol}, first=first)


# ---- shown, asked, signed


def propose(
    proposal: Proposal,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; it stands on the chain.")] = "",
    expires: Annotated[
        int, typer.Option("--expires", metavar="N", min=1, max=1000, help="It stays open for N heights.")
    ] = 500,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Sign without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and sign nothing.")] = False,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Shows a change and signs it, with the options that all proposals have."""
    from node.pb import admin_pb2 as pb

    request = pb.ProposeRequest(
        kind=proposal.kind,
        terms=json.dumps(proposal.terms),
        note=note,
        first=proposal.first,
        heights=expires,
        lend=proposal.lend,
    )
    if not (yes or dry_run) and (as_json or not can_ask()):
        raise NodeError("expected --yes, or --dry-run, where nobody can be asked")
    with open_node(socket, config) as node:
        if not yes:
            request.dry_run = True
            draft = node.propose(request)
            if dry_run and as_json:
                print_json(draft)
                return
            print(proposal.said, end="\n" if proposal.said else "")
            print_proposal(draft)
            if dry_run:
                return
            typer.confirm("\nSign this, and send it to all members?", abort=True)
            request.dry_run, request.shown = False, draft.terms
        signed = node.propose(request)
    if as_json:
        print_json(signed)
        return
    if yes:
        print(proposal.said, end="\n" if proposal.said else "")
        print_proposal(signed)
    print(f"\nproposed; the others agree with: fednode approve {signed.id}")
