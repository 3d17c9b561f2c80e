"""The files in deploy/monitoring, as Prometheus and Grafana read them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import yaml

from support.scraped import MONITORING


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


def test_there_are_four_alerts_each_tested_and_explained() -> None:
    rules = [
        rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]
    ]
    assert len(rules) == 4
    tests = yaml.safe_load((MONITORING / "rules_test.yml").read_text())["tests"]
    raised = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}
    quiet = {one["alertname"] for test in tests for one in test["alert_rule_test"] if not one["exp_alerts"]}
    names = {rule["alert"] for rule in rules}
    assert raised == quiet == names
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_dashboard_is_one_that_provisioning_finds() -> None:
    dashboard = json.loads((MONITORING / "grafana" / "dashboards" / "fednode.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 15
    assert all(panel["title"] and panel["targets"] for panel in dashboard["panels"])
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "job", "instance"}
    for file in ("datasources/prometheus.yml", "dashboards/fednode.yml"):
        assert yaml.safe_load((MONITORING / "grafana" / "provisioning" / file).read_text())["apiVersion"] == 1
