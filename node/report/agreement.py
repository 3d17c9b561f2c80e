"""The sections on what members agreed on: how the run began, each change and who approved it, and the settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chain.schema import format_time
from ml.specs.masked.aggregate import MASKED
from node.report.elements import (
    SHORT_CHARS,
    Html,
    count,
    join,
    make_facts,
    make_list,
    make_paragraph,
    make_section,
    make_table,
    show,
    show_time,
)
from node.report.history import Approver, ChainChange, RunHistory

KINDS = {
    "add_member": "A member joins",
    "remove_member": "A member goes",
    "replace_key": "Another key for a member",
    "convict": "A member is suspended",
    "pardon": "A suspension ends",
    "add_observer": "An observer joins",
    "remove_observer": "An observer goes",
    "start_run": "This run starts",
    "set_rounds": "Another number of rounds",
    "end_run": "The run ends",
    "set_rules": "Other rules",
    "upgrade": "Another protocol",
}
MAX_VALUE_CHARS = 200  # of a setting's value
MAX_ITEMS = 8  # of a list: nobody reads the means of a thousand features


def render_agreement(history: RunHistory) -> Html:
    """Renders how the run began, and what was changed in it."""
    parts = [] if history.began else [_render_genesis(history)]
    parts += [_render_change(change, history) for change in history.changes]
    if history.changes:
        parts.append(
            make_paragraph(
                "An approval is a signature that stands in the block. The time is that of the block which made the "
                "change final; when each site signed before that is not on the chain.",
                "note",
            )
        )
    else:
        parts.append(make_paragraph("Nothing was changed while it ran."))
    return make_section("agreed", "What was proposed, and who approved it", *parts)


def _render_genesis(history: RunHistory) -> Html:
    genesis = history.genesis
    names = ", ".join(sorted(founder.name for founder in genesis.founders))
    return Html(
        '<article class="change">'
        "<h3>This run is the chain's first</h3>"
        + make_paragraph(
            f"It stands in the genesis file, made on {show_time(format_time(genesis.created_at_ms))}. Each founder "
            f"has started its node from that very file, whose hash is the chain's id. Founders: {names}."
        )
        + "</article>"
    )


def _render_change(change: ChainChange, history: RunHistory) -> Html:
    title = KINDS.get(change.kind, change.kind)
    facts = [("proposed by", change.proposer)]
    if change.note:
        facts.append(("reason given", change.note))
    if change.accused is not None:
        facts[0] = ("told by", change.proposer)
        facts.append(("proof", _describe_accusation(change)))
    facts.append(("approved by", describe_approvals(change.approvals) if change.approvals else _explain(change)))
    facts.append(("needed", change.consent.replace("a quorum", f"a quorum ({change.quorum} members)", 1)))
    if change.ready:
        names = ", ".join(history.names.get(key, key[:SHORT_CHARS]) for key in change.ready)
        facts.append(("ready", f"the new key has signed that it is: {names}"))
    facts.append(("final", f"{show_time(change.time)}, block {change.height}"))
    facts.append(("id", change.id))
    rows = [
        (each.path, _show_value(each.old), _show_value(each.new))
        for each in change.differences
        if each.path != "run.number"
    ]
    table = make_table("What changed", ("setting", "before", "after"), rows, kind="diff") if rows else Html("")
    return Html(f'<article class="change"><h3>{show(title)}</h3>{make_facts(facts, mono=("id",))}{table}</article>')


def _explain(change: ChainChange) -> str:
    return "nobody, as it proves itself" if change.accused is not None else "nobody"


def _describe_accusation(change: ChainChange) -> str:
    accused = change.accused
    assert accused is not None  # noqa: S101 (the caller has checked)
    return f"{accused.name} signed two different {accused.slot}s for height {accused.height}; the block holds both"


def describe_approvals(approvals: Iterable[Approver]) -> str:
    return ", ".join(each.name if each.trains else f"{each.name} (does not train)" for each in approvals)


# ---- settings


def render_settings(history: RunHistory) -> Html:
    """Renders what the run trains and how, and the rules by which it was judged."""
    terms = history.get_terms()
    run = history.run
    facts = [
        ("method", str(terms["method"]["name"])),
        ("model", _describe_model(terms["model"])),
        ("task", run.task),
        ({"regression": "targets", "multilabel": "labels"}.get(run.task, "classes"), ", ".join(run.classes)),
        ("rounds planned", str(run.rounds) if run.rounds else "no end was set"),
        ("first model", run.initial_model.hex()),
    ]
    method = [(name, _show_value(value)) for name, value in _flatten(terms["method"]) if name != "name"]
    inputs = [(name, _show_value(value)) for name, value in _flatten(terms["input"]) if value is not None]
    rules = [(name, _show_value(value)) for name, value in _flatten(history.state.rules.to_mapping())]
    return make_section(
        "settings",
        "Settings that all sites trained by",
        make_facts(facts, mono=("first model",)),
        Html(
            '<div class="side">'
            + join(
                [
                    make_table("Hyper-parameters", ("setting", "value"), method),
                    make_table("Input", ("setting", "value"), inputs),
                    make_table("Rules of the federation", ("rule", "value"), rules),
                ]
            )
            + "</div>"
        ),
        make_paragraph(
            "They are as the run has them at its newest block; what changed on the way stands above.", "note"
        ),
    )


def render_payloads(history: RunHistory) -> Html:
    """Renders what left the sites, as the contributions commit to it."""
    kinds = sorted({kind for each in history.rounds for part in each.parts for kind in part.payload_bytes})
    if not kinds:
        return Html("")
    lines = []
    for kind in kinds:
        if kind == MASKED:
            lines.append("masked: numbers behind masks, of which the sum of all sites' came out and no single site's")
            continue
        arrays = _find_arrays(history.run.schema, kind)
        held = "" if arrays is None else f": {count(arrays, 'array')} of numbers"
        seen = ", which masks do not hide: each site sees every other's" if history.run.is_masked else ""
        lines.append(f"{kind.replace('_', ' ')}{held}{seen}")
    intro = "What a contribution made known to the other sites, as the chain commits to it:"
    return join([make_paragraph(intro), make_list(lines)])


def _find_arrays(schema: Mapping[str, Any], kind: str) -> int | None:
    """Returns how many arrays a payload of this kind has, None where the run's schema does not say."""
    spans = schema.get("rounds")
    for payloads in spans.values() if isinstance(spans, Mapping) else ():
        payload = payloads.get(kind) if isinstance(payloads, Mapping) else None
        if isinstance(payload, Mapping):
            arrays = payload.get("arrays")
            arrays = schema.get("aggregate") if arrays == "aggregate" else arrays
            return len(arrays) if isinstance(arrays, Mapping) else None
    return None


def _describe_model(model: Mapping[str, Any]) -> str:
    """Describes a model as in `mlp, hidden [64, 32]`."""
    settings = [f"{name} {_show_value(value)}" for name, value in _flatten(model) if name != "name"]
    return ", ".join([str(model["name"]), *settings])


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _show_value(value: Any) -> str:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        begin = ", ".join(_show_value(each) for each in value[:3])
        return f"{begin}, \N{HORIZONTAL ELLIPSIS} ({len(value)} values)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}"
