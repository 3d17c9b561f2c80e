"""The report of a run as one HTML page: no script, nothing fetched, made to be printed.

On paper it is black on white with numbered pages; on a screen it follows the reader's colour scheme.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.pb import admin_pb2 as pb
from node.report.agreement import render_agreement, render_settings
from node.report.elements import (
    Html,
    count,
    join,
    make_facts,
    make_page,
    make_paragraph,
    make_section,
    make_verdict,
    show,
    show_time,
)
from node.report.evaluations import render_evaluations
from node.report.incidents import render_incidents
from node.report.learning import render_learning
from node.report.participation import render_participation, render_rounds
from node.report.privacy import render_privacy
from node.report.record import RunReport

PHASES = {
    "running": "is running",
    "done": "has made all its rounds",
    "ended": "was ended by a change",
    "over": "is over, as another run followed",
}


def render_report(report: RunReport) -> str:
    """Renders the whole document."""
    history = report.history
    title = f"Run {history.run.number} of {history.genesis.chain_name}"
    sections = join(
        [
            render_agreement(history),
            render_participation(history),
            render_learning(report),
            render_evaluations(report),
            render_privacy(report.hidden),
            render_incidents(report),
            _render_proof(report),
            render_settings(history),
            render_rounds(report),
        ]
    )
    return make_page(f"{title}: report", _render_head(title, report), sections, _describe_making(report))


def _render_head(title: str, report: RunReport) -> Html:
    history, run = report.history, report.history.run
    made = history.num_trained
    rounds = f"{made} of {run.rounds}" if run.rounds else str(made)
    people = history.list_participants()
    trained = sum(bool(one.rounds) for one in people)
    sites = f"{trained} of {len(people)} sites" if trained != len(people) else count(trained, "site")
    last = history.rounds[-1].time if history.rounds else history.started
    sentence = (
        f"{sites} trained {run.model['name']} by {run.method['name']} in {count(made, 'round')}, "
        f"from {show_time(history.started)} to {show_time(last)}. The run {PHASES[history.phase]}."
    )
    if not made:
        sentence = (
            f"{run.model['name']} by {run.method['name']}: no round is final yet. The run {PHASES[history.phase]}."
        )
    facts = [
        ("chain", history.genesis.chain_name),
        ("rounds", rounds),
        ("started", show_time(history.started)),
        ("measured at", report.node or "one site"),
        ("report made", show_time(report.made_at)),
    ]
    return join(
        [
            Html(f"<h1>{show(title)}</h1>"),
            make_paragraph(sentence, "lead"),
            make_facts(facts),
            render_verdict(report.verified),
        ]
    )


def render_verdict(verified: pb.VerifyReport | None) -> Html:
    """Renders the result of the chain's verification in a line."""
    if verified is None:
        return make_verdict("The chain was not verified for this report.", "fednode chain verify --deep does.", "open")
    if not verified.ok:
        fault = verified.fault
        told = f": expected {fault.expected}, got {fault.got}" if fault.expected or fault.got else ""
        return make_verdict("The chain does not hold.", f"{fault.what}{told}", "bad")
    checked = (
        f"blocks {verified.first} to {verified.last}, {count(verified.signatures, 'signature')}, and "
        f"{count(verified.recomputed, 'aggregate')} recomputed from what the sites sent."
    )
    missing = f" {_describe_gaps(verified.not_held)}" if verified.not_held else ""
    return make_verdict("The chain holds:", f"{checked}{missing}", "good")


def _describe_gaps(not_held: Sequence[int]) -> str:
    some, them = ("is", "it") if len(not_held) == 1 else ("are", "them")
    return (
        f"{count(len(not_held), 'aggregate')} {some} taken as certified, since what went into {them} is no longer kept "
        "here."
    )


def _render_proof(report: RunReport) -> Html:
    history = report.history
    facts = [
        ("chain id", history.genesis.chain_id.hex()),
        ("newest block", f"{history.head.height}, {show_time(history.head.time)}"),
        ("its hash", history.head.id),
        ("run's blocks", f"{history.began} to {history.last}" if history.began else f"1 to {history.last}"),
    ]
    if report.verified is not None:
        facts.append(("verified up to", f"block {report.verified.last}, {report.verified.head}"))
    return make_section(
        "proof",
        "How this can be checked",
        make_facts(facts, mono=("chain id", "its hash", "verified up to")),
        render_verdict(report.verified),
        make_paragraph(
            "Each block holds the hash of the one before it, the signatures of the sites that trained, and those of a "
            "quorum that made it final. Whoever has a copy of the chain can compare the hash above and run "
            "fednode chain verify --deep; two copies whose hashes agree hold the same history. What is said here of "
            "proposals, approvals and participants follows from the chain alone. Measures are this site's own, and "
            "stand on no chain, but for those of an evaluation at every site."
        ),
    )


def _describe_making(report: RunReport) -> str:
    whose = f" at {report.node}" if report.node else ""
    return f"Made by fednode {report.version}{whose}, {show_time(report.made_at)}."
