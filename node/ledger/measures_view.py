"""Measures as the admin RPC shows them, with the intervals that follow from counts."""

from __future__ import annotations

from collections.abc import Mapping

from chain.published import PublishedMeasures
from chain.signing import encode_id
from ml.measures.alone import TrainedAlone
from ml.measures.classification import ClassMeasures
from ml.measures.intervals import Interval
from ml.measures.kinds import AnyMeasures
from ml.measures.regression import OneTarget
from ml.measures.verdict import Verdict
from node.pb import admin_pb2 as pb


def show_measures(measures: AnyMeasures, intervals: Mapping[str, Interval] | None = None) -> pb.Measures:
    """Shows measures with their intervals. `intervals` are those that do not follow from counts, by figure, as `auc`,
    or by figure and class, as `auc/benign`."""
    known = {**measures.intervals, **(intervals or {})}
    shown = pb.Measures(num_samples=measures.num_samples, summary=measures.summarise())
    for name in known.keys() & shown.summary.keys():
        shown.intervals[name].CopyFrom(_show_interval(known[name]))
    for one in measures.by_class:
        view = _show_class(one)
        for name in one.get_areas():
            if (interval := known.get(f"{name}/{one.name}")) is not None:
                view.intervals[name].CopyFrom(_show_interval(interval))
        shown.classes.append(view)
    return shown


def show_alone(alone: TrainedAlone) -> pb.TrainedAlone:
    """Shows the measures of the model that a site trained without the others."""
    shown = pb.TrainedAlone(
        rounds=alone.rounds, owed_steps=alone.owed_steps, seconds=alone.seconds, failure=alone.failure
    )
    if alone.measures is not None:
        shown.measures.CopyFrom(show_measures(alone.measures))
    if alone.mixed is not None:
        shown.mixed.CopyFrom(show_measures(alone.mixed))
    if alone.weight is not None:
        shown.weight = alone.weight
    if alone.verdict is not None:
        shown.verdict.CopyFrom(show_verdict(alone.verdict))
    return shown


def show_verdict(verdict: Verdict) -> pb.Verdict:
    """Shows the comparison of the federation's model with the one trained alone."""
    shown = pb.Verdict(
        measure=verdict.measure,
        together=verdict.together,
        alone=verdict.alone,
        difference=verdict.difference,
        num_samples=verdict.num_samples,
        rounds=verdict.rounds,
        owed_steps=verdict.owed_steps,
        outcome=verdict.outcome,
        sentence=verdict.sentence,
    )
    if verdict.interval is not None:
        shown.interval.CopyFrom(_show_interval(verdict.interval))
    return shown


def show_published(published: PublishedMeasures, name: str) -> pb.PublishedMeasures:
    """Shows the measures that the member of this name published about its own model."""
    values = published.get_values()
    shown = pb.PublishedMeasures(
        author=encode_id(published.key), name=name, num_samples=published.num_samples, values=values
    )
    if (verdict := Verdict.from_values(values, published.num_samples)) is not None:
        shown.verdict.CopyFrom(show_verdict(verdict))
    return shown


def _show_class(one: ClassMeasures | OneTarget) -> pb.ClassMeasures:
    shown = pb.ClassMeasures(
        class_name=one.name,
        num_samples=one.num_samples,
        num_given=one.num_given,
        given=one.given,
        values=one.get_values(),
    )
    for name, interval in one.get_intervals().items():
        shown.intervals[name].CopyFrom(_show_interval(interval))
    return shown


def _show_interval(interval: Interval) -> pb.Interval:
    return pb.Interval(low=interval.low, high=interval.high)
