"""Real nodes with a method, a model, a reader and a loop that were written outside the repository, and one node that
lacks the method."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sklearn.datasets import load_digits

from node.admin.json_view import to_json
from node.config.node_config import load_config
from node.config.yaml_source import dump_yaml, read_yaml
from support.data.plugins import LOOP, METHOD, MODEL, READER, pip_install
from support.federation.real_nodes import Federation, make_federation

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Where the method and the loop are installed, and where the rest is."""
    pytest.importorskip("setuptools")
    theirs, shared = tmp_path / "theirs", tmp_path / "shared"
    pip_install(theirs, METHOD, LOOP, sources=tmp_path / "sources0")
    pip_install(shared, MODEL, READER, sources=tmp_path / "sources1")
    monkeypatch.syspath_prepend(shared)
    monkeypatch.syspath_prepend(theirs)
    before = set(sys.modules)
    yield theirs, shared
    for name in set(sys.modules) - before:
        if name.startswith("example_"):
            del sys.modules[name]


def write_digits(path: Path) -> Path:
    digits = load_digits()
    rows = zip(digits.target, digits.data.astype(int), strict=True)
    path.write_text("".join(f"{CLASSES[label]}: {' '.join(map(str, row))}\n" for label, row in rows))
    return path


def via(*places: Path) -> tuple[str, ...]:
    """A daemon that finds what is installed in these places."""
    found = [*map(str, places), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ("env", f"PYTHONPATH={os.pathsep.join(found)}")


async def read_voters(net: Federation, height: int) -> list[str]:
    """Whose votes made a block final."""
    block = await net.ask("node0", lambda admin: to_json(admin.get_block(height=height)))
    return [vote["name"] for vote in block["votes"]]


@pytest.mark.parametrize("method", ["anchored", pytest.param("adamw", marks=pytest.mark.long)])
async def test_nodes_train_with_code_from_outside_and_one_without_it_votes(
    tmp_path: Path, installed: tuple[Path, Path], method: str
) -> None:
    theirs, shared = installed
    lacking = METHOD if method == "anchored" else LOOP
    directory = make_federation(
        tmp_path / "net",
        num_nodes=4,
        rounds=0,
        method=method,
        model="tiny",
        data=f"pixels:{write_digits(tmp_path / 'images.txt')}",
        partition="iid",
        settings=("local_iterations=15", "lr=0.1"),
    )
    file = directory / "node3.yaml"
    assert load_config(file).training.plugins == tuple(sorted((lacking, MODEL, READER)))
    mapping = dict(read_yaml(file).value)
    mapping["training"] = {**mapping["training"], "plugins": [MODEL, READER]}
    file.write_text(dump_yaml(mapping))
    places = {f"node{i}": via(theirs, shared) for i in range(3)} | {"node3": via(shared)}
    async with Federation(directory, places) as net:
        run = net.genesis.run
        assert run.method["plugin"]["name"] == lacking
        assert run.model["plugin"]["name"] == MODEL
        assert run.schema["judging"] == {"weights": "samples"}
        await net.start()
        await net.wait_until_ready("node0", "node1", "node2")
        await net.wait_for_height(2)
        contributors = set(await net.read_contributors("node3", 2))
        assert contributors <= {"node0", "node1", "node2"}
        assert len(contributors) >= 2
        status = await net.get_status("node3")
        assert lacking in str(status["unready_reason"])
        assert status["height"] >= 2
        await net.wait_for_height(6)
        voters = [await read_voters(net, height) for height in range(1, 7)]
        assert any("node3" in names for names in voters), voters
        assert (await net.get_status("node0"))["accuracy"] > 0.6
        await net.check_agreement()
    assert "example_method" not in (directory / "node3.log").read_text()
