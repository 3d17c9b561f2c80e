"""The Python API: light to import, the command's own arguments and defaults, and the command's own figures."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fednode
from fednode._settings import write_settings
from node.cli import main
from node.cli.app import make_app
from node.testnet.layout import TestnetSpec
from node.version import get_version

SMALL: dict[str, Any] = {"nodes": 3, "rounds": 2, "shots": 10, "seed": 7, "partition": "classes:3,1"}


def test_importing_it_loads_nothing_else() -> None:
    program = """
import sys
before = set(sys.modules)
import fednode
dir(fednode)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"torch", "numpy", "grpc", "google", "pydantic", "typer", "asyncio", "node", "chain", "ml"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_that_is_promised_is_there_and_documented() -> None:
    for name in fednode.__all__:
        value = getattr(fednode, name)
        assert name == "__version__" or len(value.__doc__) > 20
    assert dir(fednode) == sorted(fednode.__all__)
    assert fednode.__version__ == get_version()
    with pytest.raises(AttributeError, match="'fednode' has no attribute 'simulat'"):
        fednode.simulat  # type: ignore[attr-defined]  # noqa: B018


def test_a_simulation_is_the_commands_own(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[fednode.Round] = []
    settings = {"local_iterations": 2, "lr": 0.05, "model.hidden": [16]}
    run = fednode.simulate("dfpl", settings=settings, on_round=told.append, **SMALL)
    words = "simulate --clients 3 --rounds 2 --shots 10 --seed 7 --set local_iterations=2 --set lr=0.05"
    assert main([*words.split(), "--set", "model.hidden=[16]", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(run.to_json())) == answer
    assert (run.accuracy, run.best_accuracy) == (answer["final_taa"], answer["best_taa"])
    assert run.global_accuracy == answer["final_global"]
    assert [(row.number, row.accuracy, row.sent_bytes) for row in run.rounds] == [
        (row["round"], row["taa"], row["sent_bytes"]) for row in answer["rounds"]
    ]
    assert run.accuracies == tuple(client["accuracy"] for client in answer["clients"])
    assert tuple(told) == run.rounds
    assert (run.method, run.settings["lr"]) == ("dfpl", 0.05)


def test_an_attack_makes_some_lie() -> None:
    run = fednode.simulate("fedavg", settings={"local_iterations": 1}, attack="sign_flip:1", **SMALL)
    assert len(run.to_json()["liars"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "fedavgg"}, "did you mean 'fedavg'"),
        ({"data": "digts"}, "--data: data.format"),
        ({"rounds": 0}, "rounds: expected at least 1"),
        ({"settings": {"lr": float("nan")}}, "settings: lr: expected numbers, texts, lists or mappings"),
        ({"settings": {"lr": object()}}, "settings: lr: expected numbers"),
        ({"settings": {"lrr": 1}}, "lrr"),
    ],
)
def test_what_cannot_be_run_is_a_configuration_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(fednode.ConfigError, match=message):
        fednode.simulate(**{"nodes": 2, **arguments})


def test_settings_are_written_as_a_command_line_has_them() -> None:
    settings = {"lr": 0.05, "model.hidden": [32, 16], "aux": "l2", "iid": True, "x": None}
    assert write_settings(settings) == ("lr=0.05", "model.hidden=[32, 16]", 'aux="l2"', "iid=true", "x=null")
    assert write_settings(None) == ()


def test_the_arguments_and_their_defaults_are_the_commands() -> None:
    """So that one page explains both."""
    command = typer.main.get_command(make_app()).commands["simulate"]  # type: ignore[attr-defined]
    options = {parameter.name: parameter.default for parameter in command.params}
    options["nodes"] = options.pop("clients")
    del options["as_json"]
    ours = {name: argument.default for name, argument in inspect.signature(fednode.simulate).parameters.items()}
    del ours["on_round"]
    assert ours == options


def test_a_clusters_arguments_and_their_defaults_are_a_testnets() -> None:
    fields = {name: field.default for name, field in TestnetSpec.__dataclass_fields__.items()}
    fields["nodes"] = fields["num_nodes"]
    ours = {name: argument.default for name, argument in inspect.signature(fednode.LocalCluster).parameters.items()}
    for name in ours.keys() - {"settings", "directory", "site", "drop"}:
        assert name == "data" or ours[name] == fields[name], name
    assert "data" in ours


def test_sites_and_dropped_columns_are_as_the_command_has_them(tmp_path: Path) -> None:
    for name in "ab":
        rows = "".join(f"{i % 7},{name}{i},{i / 9},{i % 2}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"age,id,crp,label\n{rows}")
    sites = [tmp_path / "a.csv", tmp_path / "b.csv"]
    small: Any = {"rounds": 1, "settings": {"model.hidden": [4]}, "site": sites}
    assert len(fednode.simulate("fedavg", drop="id", **small).accuracies) == 2
    with pytest.raises(fednode.ConfigError, match="id: another value in each row"):
        fednode.simulate("fedavg", **small)
    with pytest.raises(fednode.ConfigError, match="site: expected no data beside it"):
        fednode.simulate("fedavg", "npz:a.npz", **small)
