"""`fednode proposals` and `approve`: the changes of the federation that wait, and this node's yes to one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import YELLOW, can_ask, paint, print_facts, print_json, print_table, show_id, show_name
from node.cli.target import NodeConfigFile, Socket, make_listing, open_node
from node.errors import NodeError

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

_Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, or at least four of its first digits.")]
SENDS_OWN = "send the weights of this site's own model to all members and observers"
KINDS = {
    "add_member": "add member",
    "remove_member": "remove member",
    "replace_key": "replace key",
    "start_run": "start run",
    "set_rounds": "set rounds",
    "end_run": "end run",
    "set_rules": "set rules",
    "add_observer": "add observer",
    "remove_observer": "remove observer",
}


def register(app: typer.Typer) -> None:
    group = make_listing("Show the changes that wait for approval.", list_all)
    group.command("show")(show)
    app.add_typer(group, name="proposals")
    app.command("approve")(approve)


def list_all(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """List the changes that wait for approval.

    Example: fednode proposals list --config node.yaml
    """
    with open_node(socket, config) as node:
        proposals = node.list_proposals()
    if as_json:
        print_json({"proposals": proposals})
        return
    if not proposals:
        print("no change waits for approval")
        return
    rows = [
        (
            show_id(proposal.id),
            KINDS.get(proposal.kind, proposal.kind),
            show_name(proposal.proposer, proposal.proposer_id),
            f"{len(proposal.approvals)}" + ("" if proposal.approved_here else ", not here"),
            describe_missing(proposal.missing),
            str(proposal.expires),
            ", ".join(describe_differences(proposal)[:1]),
        )
        for proposal in proposals
    ]
    print_table(("ID", "CHANGE", "PROPOSED BY", "APPROVED", "LACKS", ">UNTIL", "WHAT"), rows)


def show(which: _Id, socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """Show a change: what it does, who approved, what it lacks.

    Example: fednode proposals show 3f9a2c11 --config node.yaml
    """
    with open_node(socket, config) as node:
        proposal = node.get_proposal(which)
    if as_json:
        print_json(proposal)
    else:
        print_proposal(proposal)


def approve(
    which: _Id,
    no_train: Annotated[
        bool, typer.Option("--no-train", help="Agree to a run in which this site does not train.")
    ] = False,
    lend: Annotated[
        bool,
        typer.Option("--lend", help="Lend this site's own model for this evaluation: all others get its weights."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Sign without asking. It takes the whole id.")] = False,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Approve a change. It is shown first, and then asked for: what is signed cannot be taken back.

    Another change can be made that begins with the same digits. So some digits are taken only where the change can be
    shown, and only if no other that was ever open here begins so. With --yes nobody looks, and the whole id is needed:
    fednode proposals show ID --json has it, beside what would change.

    An evaluation may have sites lend their own models. One does so only if it is approved with --lend, and for that
    evaluation alone; approved once more without, before it begins, it does not.

    Examples: fednode approve 3f9a -c node.yaml, or fednode approve 3f9a --no-train -c node.yaml
    """
    if not yes and (as_json or not can_ask()):
        raise NodeError("expected --yes and the whole id, where nobody can be asked")
    with open_node(socket, config) as node:
        if not yes:
            shown = node.get_proposal(which)
            print_proposal(shown)
            which = shown.id
            besides = ", and not train in it" if no_train else f", and {SENDS_OWN}" if lend else ""
            typer.confirm(f"\nApprove this{besides}?", abort=True)
        proposal = node.approve(which, no_train=no_train, lend=lend)
    if as_json:
        print_json(proposal)
        return
    if yes:
        print_proposal(proposal)
    print(f"\napproved; {describe_outcome(proposal)}")


# ---- in words


def print_proposal(proposal: pb.ProposalView) -> None:
    """Prints a change, with what it does, who agreed, and what it lacks."""
    is_executed = proposal.HasField("executed")
    is_signed = proposal.open or is_executed
    title = f"{KINDS.get(proposal.kind, proposal.kind)}, by {show_name(proposal.proposer, proposal.proposer_id)}"
    print(f"{title}  {proposal.id}" if is_signed else title)
    print("\n".join(f"  {line}" for line in describe_differences(proposal)))
    facts = [("note", proposal.note)] if proposal.note else []
    if is_executed:
        facts.append(("executed", f"in block {proposal.executed}"))
    else:
        if proposal.first > proposal.height + 1:
            facts.append(("from", f"height {proposal.first}"))
        facts.append(("until", f"height {proposal.expires}; the chain is at {proposal.height}"))
    if is_signed:
        facts.append(("approved by", describe_approvals(proposal.approvals)))
    if proposal.lends_here:
        facts.append(("lent", "this site's own model, to all members and observers"))
    facts.append(("lacks", describe_missing(proposal.missing)))
    if proposal.missing.unanswered and not proposal.missing.nothing:
        unanswered = zip(proposal.missing.unanswered, proposal.missing.unanswered_ids, strict=True)
        facts.append(("not answered", ", ".join(show_name(name, member_id) for name, member_id in unanswered)))
    print_facts(facts)
    for warning in proposal.warnings:
        print(paint(f"note: {warning}", YELLOW))


def describe_differences(proposal: pb.ProposalView) -> list[str]:
    """Returns a line for each value that changes."""
    from node.federation.difference import format_difference

    return [
        format_difference(
            each.path,
            json.loads(each.old) if each.HasField("old") else None,
            json.loads(each.new) if each.HasField("new") else None,
        )
        for each in proposal.differences
    ]


def describe_approvals(approvals: Iterable[pb.ApprovalView]) -> str:
    """Returns who agreed; for a run also who will not train in it."""
    named = [(show_name(each.name, each.id), each.trains) for each in approvals]
    return ", ".join(name if trains else f"{name} (does not train)" for name, trains in named) or "nobody"


def describe_outcome(proposal: pb.ProposalView) -> str:
    """Returns the result of approving a change."""
    if not proposal.open:
        return "it was executed before, so this is for this site's own training, from the next round on"
    if proposal.missing.nothing:
        return "it will be in the next block"
    return f"it still lacks {describe_missing(proposal.missing)}"


def describe_missing(missing: pb.Missing) -> str:
    """Returns what a change lacks: `1 more approval (3 of 4 decide)`."""
    lacks = []
    if missing.before:
        lacks.append(f"{missing.before} more approval{'s' if missing.before != 1 else ''} ({missing.quorum} decide)")
    if missing.after:
        lacks.append(f"{missing.after} more of those who will be members ({missing.quorum_after} decide)")
    if missing.training:
        is_vain = missing.training > len(missing.unanswered)
        lacks.append(f"{missing.training} more that will train{', and too few are left to answer' if is_vain else ''}")
    if missing.HasField("readiness"):
        lacks.append(f"the readiness of {missing.readiness[:8]}")
    return ", ".join(lacks) or "nothing"
