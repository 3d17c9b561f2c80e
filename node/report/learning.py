"""The section on the measures of the model: this site's with their intervals, beside those of the model trained without
the others, and those that other sites published."""

from __future__ import annotations

from node.ledger.measure_titles import TITLES, show_figure, show_interval
from node.pb import admin_pb2 as pb
from node.report.charts import Line, Point, draw_lines
from node.report.elements import Html, count, join, make_figure, make_list, make_paragraph, make_section, make_table
from node.report.record import RunReport

CHARTED = ("accuracy", "exact_match", "r2", "mae")  # the first one that was measured is drawn
OF_CLASSES = ("sensitivity", "specificity", "precision", "f1", "auc")
PUBLISHED = ("accuracy", "balanced_accuracy", "exact_match", "auc", "r2", "mae", "rmse", "brier", "loss")  # that fit
OF_TARGETS = ("r2", "mae", "rmse", "bias")
MAX_CONFUSED = 12  # classes, whose counts have to fit side by side on paper
NONE = "\N{EN DASH}"


def render_learning(report: RunReport) -> Html:
    """Renders the measures taken here, or why there are none."""
    measured = report.measured
    title = "What the model is worth"
    if measured is None:
        return make_section(
            "learning", title, make_paragraph("This node measured no round of this run."), _render_published(report)
        )
    alone = measured.alone.measures if measured.alone.HasField("measures") else None
    mixed = measured.alone.mixed if measured.alone.HasField("mixed") else None
    where = f"of {report.node}" if report.node else "of this site"
    intro = (
        f"The model {where} after round {measured.round}, on "
        f"{count(measured.measures.num_samples, 'test sample')} of its own, which it did not train on. In "
        "brackets: the interval in which the figure lies with 95 % confidence."
    )
    return make_section(
        "learning",
        title,
        _render_verdict(measured),
        make_paragraph(intro),
        _draw_course(report),
        _render_summary(measured.measures, alone, mixed),
        _explain_alone(measured),
        _render_classes(measured.measures, alone, mixed),
        _render_confusion(measured.measures),
        _render_published(report),
    )


def _render_verdict(measured: pb.Round) -> Html:
    return make_paragraph(measured.alone.verdict.sentence, "lead") if measured.alone.HasField("verdict") else Html("")


def _draw_course(report: RunReport) -> Html:
    found = [each for each in report.rounds if each.HasField("measures")]
    name = next((name for name in CHARTED if any(name in each.measures.summary for each in found)), None)
    if name is None:
        return Html("")
    after = [_get_point(each, each.measures, name) for each in found if name in each.measures.summary]
    before = [
        Point(each.round, each.local_accuracy)
        for each in report.rounds
        if name == "accuracy" and each.HasField("local_accuracy")
    ]
    alone = [
        Point(each.round, each.alone.measures.summary[name]) for each in found if name in each.alone.measures.summary
    ]
    lines = [
        Line("federation", tuple(after)),
        Line("trained alone", tuple(alone)),
        Line("before exchange", tuple(before)),
    ]
    svg = draw_lines(f"{TITLES[name]} by round", lines, TITLES[name])
    note = "The band is the 95 % interval of the federation's model." if any(p.low is not None for p in after) else ""
    return make_figure(svg, f"{TITLES[name].capitalize()}, round by round.", note) if svg else svg


def _get_point(each: pb.Round, measures: pb.Measures, name: str) -> Point:
    value = measures.summary[name]
    if name not in measures.intervals:
        return Point(each.round, value)
    interval = measures.intervals[name]
    return Point(each.round, value, interval.low, interval.high)


def _render_summary(measures: pb.Measures, alone: pb.Measures | None, mixed: pb.Measures | None) -> Html:
    rows = []
    for name, title in TITLES.items():
        if name not in measures.summary:
            continue
        row = [title, _show_summary(measures, name)]
        if alone is not None:
            row.append(_show_summary(alone, name))
            both = name in alone.summary
            row.append(f"{measures.summary[name] - alone.summary[name]:+.3f}" if both else NONE)
        if mixed is not None:
            row.append(_show_summary(mixed, name))
        rows.append(row)
    headings = ["measure", ">in the federation", *([">trained alone", ">difference"] if alone is not None else [])]
    headings += [">both mixed"] if mixed is not None else []
    return make_table("All classes together", headings, rows)


def _show_summary(measures: pb.Measures, name: str) -> str:
    if name not in measures.summary:
        return NONE
    interval = f" ({show_interval(measures.intervals[name])})" if name in measures.intervals else ""
    return f"{show_figure(measures.summary[name])}{interval}"


def _explain_alone(measured: pb.Round) -> Html:
    """Explains what the model was compared with, and what must not be concluded from it."""
    if not measured.HasField("alone"):
        return make_paragraph(
            "This site did not train a model without the others beside it, so there is no comparison.", "note"
        )
    alone = measured.alone
    if alone.HasField("failure"):
        return make_paragraph(f"Training alone has ended: {alone.failure}", "note")
    if not alone.HasField("measures"):
        return make_paragraph("The model trained without the others has not finished the work of a round.", "note")
    behind = f", and was {count(alone.owed_steps, 'step')} behind" if alone.owed_steps else ""
    return make_paragraph(
        "Trained alone: the same model from the same start, on this site's samples only. It had done the work of "
        f"{count(alone.rounds, 'round')} when this was measured{behind}. A difference between two figures of "
        "the table may be chance; the verdict above, where there is one, compares the two models sample by sample."
        f"{_explain_mixed(alone)}",
        "note",
    )


def _explain_mixed(alone: pb.TrainedAlone) -> str:
    if not alone.HasField("mixed"):
        return ""
    share = round(alone.weight, 2)
    return f" Mixed are the answers of both: {share:.2f} of the federation's, {1 - share:.2f} of the other's."


def _render_classes(measures: pb.Measures, alone: pb.Measures | None, mixed: pb.Measures | None) -> Html:
    met = [one for one in measures.classes if one.num_samples or one.num_given or one.values]
    if not met:
        return Html("")
    is_regression = any("mae" in one.values for one in met)
    names = [name for name in (OF_TARGETS if is_regression else OF_CLASSES) if any(name in one.values for one in met)]
    models = [("federation", measures), *([("alone", alone)] if alone is not None else [])]
    models += [("mixed", mixed)] if mixed is not None else []
    by_class = [(whose, {one.class_name: one for one in told.classes}) for whose, told in models]
    rows = []
    for one in met:
        for whose, classes in by_class:
            if (own := classes.get(one.class_name)) is not None:
                figures = [_show_of_class(own, name) for name in names]
                rows.append([one.class_name, whose, str(own.num_samples), *figures])
    kind = "target" if is_regression else "class"
    headings = [kind, "trained", ">samples", *(f">{TITLES.get(name, name.replace('f1', 'F1'))}" for name in names)]
    return make_table(f"{kind.capitalize()} by {kind}", headings, rows)


def _show_of_class(one: pb.ClassMeasures, name: str) -> str:
    if name not in one.values:
        return NONE
    interval = f" ({show_interval(one.intervals[name])})" if name in one.intervals else ""
    return f"{show_figure(one.values[name])}{interval}"


def _render_confusion(measures: pb.Measures) -> Html:
    places = [i for i, one in enumerate(measures.classes) if one.num_samples or one.num_given]
    met = [measures.classes[i] for i in places]
    if not any(one.given for one in met) or len(met) > MAX_CONFUSED:
        return Html("")
    headings = ["samples of", *(f">called {one.class_name}" for one in met)]
    rows = [[one.class_name, *(str(one.given[i]) for i in places)] for one in met]
    return make_table("How classes were confused", headings, rows)


def _render_published(report: RunReport) -> Html:
    newest = report.published
    if newest is None:
        return Html("")
    names = [name for name in PUBLISHED if any(name in one.values for one in newest.published)]
    rows = [
        [
            one.name,
            str(one.num_samples),
            *(show_figure(one.values[name]) if name in one.values else NONE for name in names),
        ]
        for one in newest.published
    ]
    table = make_table(
        f"What sites say of their own models after round {newest.round}",
        ["site", ">test samples", *(f">{TITLES[name]}" for name in names)],
        rows,
        note="Each site's word, on its own test samples: nobody else can check it.",
    )
    verdicts = [f"{one.name}: {one.verdict.sentence}" for one in newest.published if one.HasField("verdict")]
    return join([table, make_list(verdicts)]) if verdicts else table
