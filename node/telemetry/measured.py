"""Gauges of models' measures: this site's own, and those that members publish.

There are as many series as the run has classes and the federation has members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from chain.published import PublishedMeasures
from chain.signing import encode_id
from node.p2p.peers import Peers
from node.telemetry.sinks.point import list_by_class, read_both

SHORT_CHARS = 8


def collect_measures(record: Mapping[str, Any]) -> Iterable[Metric]:
    """Yields the measures of the newest round's model on the test samples."""
    measures = GaugeMetricFamily(
        "fednode_eval_measure",
        "A measure of the answers to this node's test samples, after the newest round was applied.",
        labels=("measure",),
    )
    by_class = GaugeMetricFamily(
        "fednode_eval_class_measure", "Likewise of one class against all others.", labels=("measure", "class")
    )
    alone = GaugeMetricFamily(
        "fednode_alone_measure", "Likewise of a model that was trained without the others.", labels=("measure",)
    )
    own_measures, alone_measures = read_both(record)
    for family, found in ((measures, own_measures), (alone, alone_measures)):
        for name, value in found.summarise().items() if found is not None else ():
            family.add_metric((name,), value)
    for name, label, value in list_by_class(own_measures) if own_measures is not None else ():
        by_class.add_metric((name, label), value)
    yield from (measures, by_class, alone)


def collect_published(published: Iterable[PublishedMeasures], peers: Peers) -> Metric:
    """Returns the newest measures that each member has published about its own model."""
    told = GaugeMetricFamily(
        "fednode_member_measure",
        "What a member says of its own model's answers to its own test samples, after the newest round it tells of.",
        labels=("peer", "name", "measure"),
    )
    for one in published:
        for name, value in one.get_values().items():
            told.add_metric((encode_id(one.key)[:SHORT_CHARS], peers.get_name(one.key), name), value)
    return told
