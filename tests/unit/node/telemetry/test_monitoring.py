"""The files in deploy/monitoring, as Prometheus and Grafana read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.machines.scrape import MONITORING, list_expressions, read_dashboard


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool_has_no_complaint(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (it comes with Prometheus)")
    done = subprocess.run([promtool, *arguments], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_seven_alerts_each_tested_and_explained() -> None:
    rules = [rule for group in read_yaml(MONITORING / "rules.yml")["groups"] for rule in group["rules"]]
    assert len(rules) == 7
    tests = read_yaml(MONITORING / "rules_test.yml")["tests"]
    raised = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}
    quiet = {one["alertname"] for test in tests for one in test["alert_rule_test"] if not one["exp_alerts"]}
    names = {rule["alert"] for rule in rules}
    assert raised == quiet == names
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_provisioning_finds_the_dashboard_and_prometheus() -> None:
    provisioning = MONITORING / "grafana" / "provisioning"
    [provider] = read_yaml(provisioning / "dashboards" / "fednode.yml")["providers"]
    assert provider == {"name": "fednode", "type": "file", "options": {"path": "/var/lib/grafana/dashboards"}}
    [source] = read_yaml(provisioning / "datasources" / "prometheus.yml")["datasources"]
    assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)
    for name in ("prometheus.yml", "prometheus-containers.yml"):
        interval = read_yaml(MONITORING / name)["global"]["scrape_interval"]
        assert source["jsonData"]["timeInterval"] == interval == read_dashboard()["refresh"]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_every_panel_is_explained_and_stands_alone() -> None:
    panels = read_dashboard()["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids)) > 20
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        title, place = panel["title"], panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24, title
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), title) == title
        if panel["type"] != "row":
            assert panel["description"].endswith("."), title
            assert panel["fieldConfig"]["defaults"]["unit"], title
            assert panel["targets"], title
            for target in panel["targets"]:
                assert target["legendFormat"] or panel["type"] == "table", title
                assert panel["datasource"] == target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_expression_of_the_dashboard_heeds_the_nodes_chosen_and_the_scrape_interval() -> None:
    """As Grafana's dashboard linter asks: counters only as rates, over a span that has two samples at least."""
    for title, expression in list_expressions():
        if "$" not in expression or expression.startswith("label_values"):
            continue
        for selector in re.findall(r"fednode_\w+(\{[^}]*\})?", expression):
            assert {'job=~"$job"', 'instance=~"$instance"'} <= set(selector.strip("{}").split(", ")), title
        for function, span in re.findall(r"(rate|increase)\(fednode_\w+\{[^}]*\}\[([^]]+)\]\)", expression):
            assert span == ("$__rate_interval" if function == "rate" else "1h"), title
        counters = re.findall(r"fednode_\w+_(?:total|sum|count|bucket)\b", expression)
        assert len(re.findall(r"(?:rate|increase)\(fednode_\w+", expression)) == len(counters), title


def test_the_variables_choose_among_the_nodes_that_are_scraped() -> None:
    variables = {variable["name"]: variable for variable in read_dashboard()["templating"]["list"]}
    assert variables.keys() == {"datasource", "job", "instance"}
    assert variables["datasource"]["type"] == "datasource"
    for name in ("job", "instance"):
        variable = variables[name]
        assert variable["query"].startswith("label_values(fednode_build_info")
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".+")
        assert variable["refresh"] == 2  # whenever the time range changes, so that new nodes turn up
