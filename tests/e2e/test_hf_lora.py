"""The example of a transformer that learns by LoRA adapters: three real nodes send adapters and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from node.config.yaml_source import dump_yaml, read_yaml
from support.federation.ports import find_free_ports
from support.private_venv import ROOT, make_private_venv

EXAMPLE = ROOT / "tests" / "examples" / "hf_lora"
ROUNDS = 5
SITES = 3
WAIT_S = 1200.0

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the example installed, as its README says; built from a copy, so that nothing is left in the repository."""
    directory = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, directory / "source")
    version = torch.__version__.partition("+")[0]
    return make_private_venv(directory / "venv", f"torch=={version}", str(source))


class Site:
    """One who takes part: a directory, and a process."""

    def __init__(self, python: Path, home: Path, texts: Path) -> None:
        self.python, self.home, self.texts = python, home, texts
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *arguments: object) -> str:
        """What `fednode` prints in this directory."""
        command = [str(self.python), "-m", "node.cli", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.home, env=make_environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, f"fednode {arguments}: {done.stderr}{done.stdout}{self.log[-3000:]}"
        return done.stdout.strip()

    def ask(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "--config", "node.yaml", "--json"))

    def begin(self, port: int) -> str:
        """Its line for the others."""
        address = f"127.0.0.1:{port}"
        data = ("--data", f"csv:{self.texts / 'train.csv'}", "--label", "label")
        line = self.run("init", ".", "--name", self.home.name, "--listen", address, "--advertise", address, *data)
        file = self.home / "node.yaml"
        mapping = dict(read_yaml(file).value)
        mapping["training"] = {
            **mapping["training"],
            "plugins": ["fednode-example-hf-lora"],
            "device": "cpu",
            "threads": 1,
        }
        file.write_text(dump_yaml(mapping))
        return line

    def start(self) -> None:
        command = [str(self.python), "-m", "node.cli", "--config", "node.yaml"]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.home, env=make_environment(), stdout=log, stderr=log)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    @property
    def log(self) -> str:
        file = self.home / "log"
        return file.read_text() if file.exists() else ""


def make_environment() -> dict[str, str]:
    """Without what the tests' own environment adds; nothing is fetched from any hub."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def sites(python: Path, tmp_path: Path) -> Iterator[list[Site]]:
    subprocess.run([str(python.parent / "hf-lora-prepare"), str(tmp_path / "texts")], check=True, timeout=WAIT_S)
    made = []
    for i in range(SITES):
        home = tmp_path / f"site{i}"
        home.mkdir()
        made.append(Site(python, home, tmp_path / "texts" / f"site{i}"))
    yield made
    for site in made:
        site.stop()


async def test_three_sites_send_adapters_and_classify_text(sites: list[Site], tmp_path: Path) -> None:
    first = sites[0]
    ports = find_free_ports(SITES)
    members = [f"{site.home.name}={site.begin(port)}" for site, port in zip(sites, ports, strict=True)]
    settings = ("input.normalize=none", "input.columns=all", "optimizer=adam", "lr=0.01", "quorum=majority")
    first.run(
        *("genesis", "new", *members, "--data", f"csv:{first.texts / 'train.csv'}"),
        *("--method", "fedavg", "--model", "lora_text", "--profile", "local", "--rounds", ROUNDS),
        *(word for setting in settings for word in ("--set", setting)),
    )
    for site in sites[1:]:
        for file in ("genesis.yaml", "initial_model.safetensors"):
            shutil.copy(first.home / file, site.home / file)
    for site in sites:
        site.start()
    await wait_until_over(sites)

    model = read_yaml(first.home / "genesis.yaml").value["model"]
    sent = list(model["parameters"])
    assert all("lora_" in name or name.startswith("head.") for name in sent)
    assert not any("lora_" in name for name in model["frozen_arrays"])
    whole = (first.home / "initial_model.safetensors").stat().st_size
    for height in range(1, ROUNDS + 1):
        contributions = first.ask("chain", "show", height)["contributions"]
        assert contributions
        for contribution in contributions:
            (payload,) = contribution["payloads"]
            assert payload["bytes"] < whole / 30  # the adapters and the classifier, of 350 kB

    unseen = first.texts / "unseen.csv"
    measured = first.ask("evaluate", unseen)
    assert measured["measures"]["summary"]["balanced_accuracy"] > 0.8, measured
    predicted = first.ask("predict", unseen)
    assert predicted

    initial = {
        name.removeprefix("model/"): array
        for name, array in load_file(first.home / "initial_model.safetensors").items()
    }
    for site in sites:
        out = tmp_path / f"{site.home.name}.safetensors"
        site.run("model", "export", out, "--config", "node.yaml")
        arrays = load_file(out)
        assert arrays.keys() == initial.keys()
        assert all(arrays[name].tobytes() == initial[name].tobytes() for name in model["frozen_arrays"])
        assert any(arrays[name].tobytes() != initial[name].tobytes() for name in sent if "lora_" in name)


async def wait_until_over(sites: list[Site]) -> None:
    """Until every site has applied the last round."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        heights = []
        for site in sites:
            assert site.process is not None
            assert site.process.poll() is None, site.log[-3000:]
            applied = site.log.count('"logger": "node.consensus.record.record", "message": "round ')
            heights.append(applied)
        if min(heights) >= ROUNDS:
            return
        assert time.monotonic() < deadline_s, "\n".join(f"{site.home.name}: {site.log[-2000:]}" for site in sites)
        await asyncio.sleep(1.0)
