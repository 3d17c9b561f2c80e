"""The section on the measures of the model at every site, as each has measured and signed them."""

from __future__ import annotations

from node.ledger.measure_titles import TITLES, show_with_interval
from node.pb import admin_pb2 as pb
from node.report.elements import Html, make_paragraph, make_section, make_table
from node.report.record import RunReport

NONE = "-"


def render_evaluations(report: RunReport) -> Html:
    """Renders a table for each evaluation of the run's models, sites side by side; nothing where there is none."""
    made = [one for one in report.evaluations if one.HasField("height")]
    if not made:
        return Html("")
    return make_section(
        "evaluations",
        "What the model is worth at every site",
        make_paragraph(
            "Each site measured the model on test samples of its own, and signed what came of it. That stands on the "
            "chain, and nobody can change it later; whether it is true, that site alone knows. In brackets: the "
            "interval in which the figure lies with 95 % confidence."
        ),
        *(_render_one(one) for one in made),
    )


def _render_one(one: pb.EvaluationView) -> Html:
    sites = [site for site in one.sites if site.HasField("measures")]
    shown = [(name, title) for name, title in TITLES.items() if any(name in site.measures.summary for site in sites)]
    rows = [
        ["test samples", *(str(site.measures.num_samples) for site in sites)],
        *(
            [title, *(show_with_interval(site.measures.summary, site.measures.intervals, name) for site in sites)]
            for name, title in shown
        ),
        *_list_sensitivities(sites),
    ]
    few = [site.name for site in one.sites if site.held and not site.HasField("measures")]
    own = f", the own model of {one.lender_name}, which lent it" if one.HasField("lender") else ""
    why = ", or no numbers" if own else ""
    note = f"Fewer than {one.min_samples} test samples{why}, so that nothing is told: {', '.join(few)}." if few else ""
    if not one.model:
        note = "No site has lent its own model, and there is none in common."
    caption = f"Run {one.of_run}, after round {one.of_round}{own}; measured in block {one.height}"
    return make_table(caption, ["measure", *(f">{site.name}" for site in sites)], rows if sites else [], note=note)


def _list_sensitivities(sites: list[pb.SiteEvaluation]) -> list[list[str]]:
    """Returns a row for each class for which a site reports the sensitivity."""
    names = dict.fromkeys(
        one.class_name for site in sites for one in site.measures.classes if "sensitivity" in one.values
    )
    rows = []
    for name in names:
        own = [next((one for one in site.measures.classes if one.class_name == name), None) for site in sites]
        shown = (NONE if one is None else show_with_interval(one.values, one.intervals, "sensitivity") for one in own)
        rows.append([f"sensitivity, {name}", *shown])
    return rows
