"""The section on what went wrong: contributions left out and refused, who was convicted of what, and what kept this
site's own model from learning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ml.measures.collapse import QUIET
from node.p2p.refusals import Reason
from node.pb import admin_pb2 as pb
from node.report.elements import (
    SHORT_CHARS,
    Html,
    make_paragraph,
    make_section,
    make_table,
    make_verdict,
    show_spans,
    show_time,
)
from node.report.record import RunReport

MAX_ROWS = 100
SIGNS = {
    "one_class": "one answer to all test samples",
    "majority": "no better than the most frequent class",
    "prior": "a loss no better than the classes' shares",
    "mean": "no better than the mean",
    "worse": "too high a learning rate",
}
MODEL_SIGNS = {
    "overfitting": "it overfits",
    "unfound": "a class is never found",
    "miscalibrated": "it is miscalibrated",
    "averaging": "averaging costs this site",
}


class Incident(NamedTuple):
    """An event that concerns one member or site, the same in however many rounds."""

    who: str
    what: str
    why: str


def render_incidents(report: RunReport) -> Html:
    """Renders who was left out and refused, as this node saw it, and what is proved about whom."""
    return make_section("incidents", "Refusals and evidence", _render_evidence(report), *_render_seen(report))


def _render_seen(report: RunReport) -> Iterator[Html]:
    found = find_incidents(report)
    rows = [(show_spans(rounds), each.who, each.what, each.why) for each, rounds in list(found.items())[:MAX_ROWS]]
    if rows:
        more = len(found) - len(rows)
        note = f"{more} more stand in the report as JSON." if more else ""
        yield make_table("What this node saw", ("rounds", "site", "what", "why"), rows, note=note, kind="words")
    else:
        yield make_paragraph("No contribution was left out or refused in a round that this node lived through.")
    missed = [each.round for each in report.rounds if not each.measured]
    if missed:
        yield make_paragraph(
            f"Of rounds {show_spans(missed)} this node knows what the chain says and no more: it caught up with them "
            "later.",
            "note",
        )


def find_incidents(report: RunReport) -> dict[Incident, list[int]]:
    """Returns incidents with their rounds, the earliest first."""
    found: dict[Incident, list[int]] = {}
    for each in report.rounds:
        for incident in dict.fromkeys(_list_incidents(report, each)):
            found.setdefault(incident, []).append(each.round)
    return found


def _list_incidents(report: RunReport, each: pb.Round) -> Iterator[Incident]:
    names = report.history.names

    def name(member: str) -> str:
        return names.get(member, member[:SHORT_CHARS])

    told = {name(member) for member in each.left_out}
    for member, why in sorted(each.left_out.items()):
        yield Incident(name(member), "left out", why)
    for absent in each.absent_names:
        if absent not in told:
            yield Incident(absent, "left out", "no contribution in the block")
    for member, why in sorted(each.rejected.items()):
        if each.left_out.get(member) != why:
            yield Incident(name(member), "refused", why)
    for candidate in each.candidates:
        yield Incident(candidate.miner_name, "block not voted for", candidate.reason)
    for member, what in sorted(each.signed_twice.items()):
        yield Incident(name(member), "signed twice", what)
    for member, why in sorted(each.gone.items()):
        yield Incident(name(member), "payload not had", why)
    for other in each.not_taken:
        for reason in sorted(other.counts):
            if not _is_usual(reason):
                yield Incident(other.name, "message not taken", reason.replace("_", " "))
    own = report.node or "this site"
    for field, what in (
        ("failure", "did not train"),
        ("spoiled", "aggregate not taken over"),
        ("went_back", "began from its own model"),
        ("data_change", "trained on other data than before"),
    ):
        if each.HasField(field):
            yield Incident(own, what, getattr(each, field))
    for sign in sorted(each.signs):
        if sign in MODEL_SIGNS:
            yield Incident(own, "sign against the model", MODEL_SIGNS[sign])
        elif sign not in QUIET:
            yield Incident(own, "model does not learn", SIGNS.get(sign, sign))


def _is_usual(reason: str) -> bool:
    """Returns whether a reason is no fault of anybody, such as a message that was late or arrived twice. A newer
    release may have other reasons."""
    return any(known.value == reason and known.is_usual for known in Reason)


def _render_evidence(report: RunReport) -> Html:
    convicted = [change for change in report.history.changes if change.accused is not None]
    if not convicted and not report.evidence:
        return make_verdict(
            "Nobody is known to have signed two things", "for one height while this run lasted.", "good"
        )
    rows = [
        (
            change.accused.name,
            str(change.accused.height),
            change.accused.slot,
            f"on the chain, block {change.height}",
            show_time(change.time),
        )
        for change in convicted
        if change.accused is not None
    ]
    proved = {(row[0], row[1], row[2]) for row in rows}
    rows += [
        (
            each.name,
            str(each.height),
            each.slot,
            "held by this node",
            show_time(each.seen) if each.HasField("seen") else "",
        )
        for each in report.evidence
        if (each.name, str(each.height), each.slot) not in proved
    ]
    return make_table(
        "Who signed two different things for one height",
        ("site", ">height", "what", "where the proof is", "since"),
        rows,
        note="Each is proved by two signatures of that site's own key.",
    )
