"""`fednode doctor`: finds what keeps a node from running well, and says what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from node.cli.options import AsJson, ConfigFile, Overrides
from node.cli.output import GREEN, RED, YELLOW, paint, print_json
from node.errors import HealthProblem

if TYPE_CHECKING:
    from node.cli.doctor.findings import Finding

CHECK_CHARS = 16


def register(app: typer.Typer) -> None:
    app.command("doctor")(examine)


def examine(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check everything a node needs, and say what to do. It looks at key, genesis, data directory, disk, ports, device,
    data, peers, clock and versions.

    Changes nothing, and works whether or not the node runs. Exit code 0 when nothing failed, else 6.

    Examples: fednode doctor --config node3.yaml; fednode doctor -c node3.yaml --json | jq '.checks[] |
    select(.verdict != "ok")'
    """
    from node.cli.doctor import checks as doctor
    from node.cli.doctor.findings import Verdict

    findings = []
    for finding in doctor.examine(config, overrides or (), os.environ):
        findings.append(finding)
        if not as_json:
            _print(finding)
    failed = sum(finding.verdict is Verdict.FAIL for finding in findings)
    if as_json:
        checks = [
            {
                "check": f.check,
                "verdict": f.verdict.value,
                "found": f.found,
                "advice": f.advice,
                "missing": [{"column": name, "missing": num, "rows": rows} for name, num, rows in f.missing],
            }
            for f in findings
        ]
        print_json({"ok": not failed, "checks": checks})
    if failed:
        raise HealthProblem(f"{failed} of {len(findings)} checks failed")


def _print(finding: Finding) -> None:
    colors = {"ok": GREEN, "warn": YELLOW, "fail": RED}
    verdict = finding.verdict.value
    print(f"{paint(f'{verdict:<4}', colors[verdict])}  {finding.check:<{CHECK_CHARS}}  {finding.found}", flush=True)
    if finding.advice is not None:
        print(f"{'':<{CHECK_CHARS + 8}}{finding.advice}", flush=True)
