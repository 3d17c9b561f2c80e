"""The sections on who trained: how many rounds, which, with how many samples, and each round by itself."""

from __future__ import annotations

from node.ledger.measure_titles import show_figure
from node.report.agreement import render_payloads
from node.report.charts import draw_participation
from node.report.elements import (
    SHORT_CHARS,
    Html,
    count,
    make_figure,
    make_paragraph,
    make_section,
    make_table,
    show_bytes,
    show_spans,
    show_time,
)
from node.report.history import ChainRound, Participant, RunHistory
from node.report.record import RunReport

MAX_ROUNDS = 400  # rows of the table of rounds: some ten pages


def render_participation(history: RunHistory) -> Html:
    """Renders who trained in which rounds with how many samples, and what left the site."""
    title = "Who trained"
    if not history.rounds:
        return make_section("participants", title, make_paragraph("No round of this run is final yet."))
    people = history.list_participants()
    made = history.num_trained
    svg = draw_participation(
        "Rounds that each site trained in", [(one.name, one.rounds) for one in people], history.rounds[-1].number
    )
    weights = ">samples" if history.counts_samples else ">weight"
    rows = [
        (
            one.name,
            f"{len(one.rounds)} of {made}",
            show_spans(one.rounds) or "none",
            _show_weights(one),
            show_bytes(sum(one.payload_bytes.values())),
            one.id,
        )
        for one in people
    ]
    note = (
        "Samples are those that the site says it trained on in a round: it signs the number, and nobody else can count."
        if history.counts_samples
        else "In this method contributions count alike, and do not tell how many samples a site has."
    )
    return make_section(
        "participants",
        title,
        make_figure(svg, "A bar where the round's block holds the site's contribution."),
        make_table("Sites", ("site", ">trained in", "rounds", weights, ">sent", "key"), rows, kind="sites"),
        make_paragraph(note, "note"),
        render_payloads(history),
    )


def _show_weights(one: Participant) -> str:
    if not one.weights:
        return "\N{EN DASH}"
    low, high = min(one.weights), max(one.weights)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _describe_authors(each: ChainRound) -> str:
    """Describes how many members trained, and names those that did or those that did not, whichever are fewer."""
    told = f"{len(each.parts)} of {each.num_members}"
    if not each.absent:
        return told
    if len(each.absent) <= len(each.parts):
        return f"{told}, without {', '.join(each.absent)}"
    return f"{told}: {', '.join(part.name for part in each.parts)}"


def render_rounds(report: RunReport) -> Html:
    """Renders each round: when it was final, who trained, and the accuracy of this site's model after it."""
    history = report.history
    if not history.rounds:
        return Html("")
    found = {each.height: each for each in report.rounds}
    shown = history.rounds[-MAX_ROUNDS:]
    rows = []
    for each in shown:
        own = found.get(each.height)
        accuracy = "\N{EN DASH}"
        if own is not None and own.HasField("accuracy"):
            accuracy = show_figure(own.accuracy)
        rows.append(
            (
                str(each.number),
                show_time(each.time).removesuffix(" UTC"),
                str(each.height),
                _describe_authors(each),
                f"{sum(part.weight for part in each.parts):,}" if history.counts_samples else "\N{EN DASH}",
                f"{each.num_votes} of {each.num_members}",
                accuracy,
                each.block[:SHORT_CHARS],
            )
        )
    headings = (">round", "final (UTC)", ">block", "trained", ">samples", "votes", ">accuracy here", "id")
    left = len(history.rounds) - len(shown)
    note = f"The newest; {count(left, 'round')} before them stand in the report as JSON." if left else ""
    return make_section("rounds", "Each round", make_table("", headings, rows, note=note, kind="rounds"))
