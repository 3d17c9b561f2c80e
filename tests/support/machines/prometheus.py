"""A real Prometheus for tests, with the configuration and the rules of deploy/monitoring.

async with Prometheus.serve(tmp_path, targets) as prometheus:
    await prometheus.wait_for("sum(up)", lambda found: found == [4])
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from support.federation.ports import find_free_ports
from support.machines.scrape import MONITORING

WAIT_S = 240.0
POLL_S = 0.5
SCRAPE_S = 1
FOR_S = 3  # how long a condition must last before an alert fires
GRAFANA = {"$job": ".+", "$instance": ".+", "$__rate_interval": f"{30 * SCRAPE_S}s"}

PROGRAM = shutil.which("prometheus")


def fill_in(expression: str) -> str:
    """Returns the query that Grafana would send when all nodes are chosen."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    return expression


def write_config(directory: Path, targets: Sequence[str], token_file: Path | None = None) -> Path:
    """Writes the configuration as an operator adjusts it, and the rules with shorter waits for a test."""
    directory.mkdir(parents=True)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    [job] = config["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    if token_file is not None:
        job["authorization"] = {"type": "Bearer", "credentials_file": str(token_file)}
    rules = yaml.safe_load((MONITORING / "rules.yml").read_text())
    for rule in _list_rules(rules):
        if "for" in rule:
            rule["for"] = f"{FOR_S}s"
    (directory / "rules.yml").write_text(yaml.safe_dump(rules))
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def _list_rules(rules: Any) -> Iterator[Any]:
    for group in rules["groups"]:
        yield from group["rules"]


def _open_log(directory: Path) -> BinaryIO:
    return (directory / "log").open("wb")


class Prometheus:
    """A running Prometheus, queried over HTTP, as Grafana does."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    @classmethod
    @asynccontextmanager
    async def serve(
        cls, directory: Path, targets: Sequence[str], token_file: Path | None = None
    ) -> AsyncIterator[Prometheus]:
        assert PROGRAM is not None
        config, [port] = write_config(directory, targets, token_file), find_free_ports(1)
        with _open_log(directory) as log:
            process = await asyncio.create_subprocess_exec(
                *(PROGRAM, f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}"),
                f"--web.listen-address=127.0.0.1:{port}",
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield cls(port)
        finally:
            process.terminate()
            await process.wait()

    async def ask(self, what: str, **parameters: str) -> Any:
        """Returns the `data` of an answer. AssertionError where Prometheus refuses."""
        url = f"{self._url}/{what}?{urllib.parse.urlencode(parameters)}"

        def get() -> Any:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)

        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                answer = await asyncio.to_thread(get)
            except urllib.error.HTTPError as error:
                with error:
                    raise AssertionError(f"{parameters}: {error.read().decode()}") from error
            except urllib.error.URLError:  # it does not listen yet
                assert time.monotonic() < deadline_s, "no Prometheus"
                await asyncio.sleep(POLL_S)
            else:
                assert answer["status"] == "success"
                assert not answer.get("warnings"), (parameters, answer["warnings"])
                return answer["data"]

    async def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns labels and value of each series."""
        found = await self.ask("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    async def get_alerts(self) -> set[tuple[str, str, str]]:
        """Returns name, instance (empty for the federation's) and state of each alert that is pending or firing."""
        found = (await self.ask("alerts"))["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("instance", ""), one["state"]) for one in found}

    async def wait_for(self, expression: str, condition: Callable[[list[float]], bool]) -> None:
        """Waits until the values of an expression meet the condition."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition(values := sorted(value for _, value in await self.query(expression))):
            assert time.monotonic() < deadline_s, f"{expression}: {values}"
            await asyncio.sleep(POLL_S)

    async def wait_for_alert(self, name: str, instance: str, *states: str) -> None:
        """Waits until an alert has been in these states, one after the other; "gone" means in none."""
        deadline_s = time.monotonic() + WAIT_S
        for state in states:
            while True:
                alerts = await self.get_alerts()
                now = {found for alert, where, found in alerts if (alert, where) == (name, instance)} or {"gone"}
                if state in now:
                    break
                assert time.monotonic() < deadline_s, f"{name} of {instance} is not {state}: {alerts}"
                await asyncio.sleep(POLL_S / 5)
