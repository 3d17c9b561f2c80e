"""A scrape of a node's `/metrics`, and the metrics that the rules and the dashboard in deploy/monitoring ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"

NAMES: Mapping[str, tuple[str, frozenset[str]]] = {  # type and labels of every metric that users may rely on
    "fednode_chain_height": ("gauge", frozenset()),
    "fednode_chain_blocks_total": ("counter", frozenset({"result"})),
    "fednode_block_interval_seconds": ("histogram", frozenset()),
    "fednode_pow_hashes_total": ("counter", frozenset()),
    "fednode_pow_solve_seconds": ("histogram", frozenset()),
    "fednode_round": ("gauge", frozenset()),
    "fednode_round_phase_seconds": ("histogram", frozenset({"phase"})),
    "fednode_contributions_total": ("counter", frozenset({"result", "reason"})),
    "fednode_train_loss": ("gauge", frozenset()),
    "fednode_eval_accuracy": ("gauge", frozenset({"split"})),
    "fednode_train_samples_total": ("counter", frozenset()),
    "fednode_peers": ("gauge", frozenset({"state"})),
    "fednode_peer_in_sight": ("gauge", frozenset({"peer", "name"})),
    "fednode_peer_credit": ("gauge", frozenset({"peer", "name"})),
    "fednode_clock_ahead_seconds": ("gauge", frozenset({"peer", "name"})),
    "fednode_peer_bytes_total": ("counter", frozenset({"peer", "direction"})),
    "fednode_rpc_seconds": ("histogram", frozenset({"method", "code"})),
    "fednode_messages_rejected_total": ("counter", frozenset({"reason"})),
    "fednode_evidence_total": ("counter", frozenset({"kind"})),
    "fednode_event_loop_lag_seconds": ("histogram", frozenset()),
    "fednode_process_cpu_seconds_total": ("counter", frozenset({"process"})),
    "fednode_process_resident_bytes": ("gauge", frozenset({"process"})),
    "fednode_disk_free_bytes": ("gauge", frozenset()),
    "fednode_database_bytes": ("gauge", frozenset()),
    "fednode_build_info": ("gauge", frozenset({"version", "protocol", "python"})),
}
SCRAPED = {"up": frozenset[str]()}  # metrics that Prometheus adds by itself
ADDED = frozenset({"job", "instance"})  # labels that it adds to each metric

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


@dataclass(frozen=True, slots=True)
class Scraped:
    """One answer of `/metrics`. `types` are by the names that users know, `labels` by the names in expressions."""

    types: Mapping[str, str]
    labels: Mapping[str, frozenset[str]]
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def read(cls, text: str) -> Scraped:
        types, labels, values = dict[str, str](), dict[str, frozenset[str]](), {}
        for family in text_string_to_metric_families(text):
            suffix = "_total" if family.type == "counter" else ""
            types[family.name + suffix] = family.type
            labels |= {family.name + end: frozenset() for end in _SUFFIXES[family.type]}
            for sample in family.samples:
                labels[sample.name] |= sample.labels.keys()
                values[sample.name, frozenset(sample.labels.items())] = sample.value
        return cls(types, labels, values)

    def get(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]

    def sum(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(value for (found, has), value in self.values.items() if found == name and wanted <= has)


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads((MONITORING / "grafana" / "dashboards" / "fednode.json").read_text())
    return dashboard


def list_expressions() -> Iterator[tuple[str, str]]:
    """Yields every expression of the rules and the dashboard, with its place."""
    for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = read_dashboard()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


def list_unknown(expression: str, scraped: Scraped) -> list[str]:
    """Lists the metrics and labels of an expression that no node exports."""
    known = {**scraped.labels, **SCRAPED}
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = re.findall(r"\b(fednode_\w+|up)\b", bare)
    assert names, f"{expression!r} asks for no metric"
    unknown = [name for name in names if name not in known]
    asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare))
    for several in re.findall(r"\b(?:by|on|without|group_left|ignoring)\s*\(([^)]*)\)", bare):
        asked |= set(re.findall(r"\w+", several))
    labels = ADDED.union(*(known[name] for name in names if name in known))
    return unknown + sorted(asked - labels)
