"""Tables by client: who is named how, and whose number stands where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.errors import ConfigError
from node.experiments.plan import Experiment
from node.experiments.stock import take_stock
from node.experiments.tables import Table, make_table
from support.data.experiments import make_experiment, write_results

BY_DOMAIN = """\
name: domains
base: {clients: 3, rounds: 2, partition: domains}
sweep: {method: [local, {name: dfpl, label: DFPL}], seed: [1, 2]}
report: {tables: [{value: final_taa, rows: client, columns: method}]}
"""


def list_clients(*accuracies: float) -> list[dict[str, Any]]:
    counts = {"num_train": 9, "num_test": 3}
    return [{"id": i, "accuracy": a, "global_accuracy": a / 2, **counts} for i, a in enumerate(accuracies)]


def lay_out(experiment: Experiment, directory: Path) -> Table:
    (section,) = experiment.file.report.tables or ()
    return make_table(experiment, section, take_stock(experiment, directory).finished)


def test_each_client_has_a_row_with_its_own_final_accuracy(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, BY_DOMAIN)
    write_results(tmp_path, experiment, {"local, seed 1": [0.1, 0.2]}, clients=list_clients(0.25, 0.5, 1.0))
    write_results(tmp_path, experiment, {"local, seed 2": [0.1, 0.2]}, clients=list_clients(0.75, 0.5, 0.0))
    table = lay_out(experiment, tmp_path)
    assert table.rows == (("identity",), ("inversion",), ("noise",))
    assert [table.cells[row, ("local",)].text for row in table.rows] == [
        "50.00 ± 25.00",
        "50.00 ± 0.00",
        "50.00 ± 50.00",
    ]
    assert {table.cells[row, ("DFPL",)].text for row in table.rows} == {"not run"}


def test_accuracy_on_everybodys_samples_is_kept_for_each_client_too(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, BY_DOMAIN.replace("final_taa", "final_global"), "sweep.seed=[1]")
    write_results(tmp_path, experiment, {"local, seed 1": [0.1, 0.2]}, clients=list_clients(0.5, 0.25, 1.0))
    table = lay_out(experiment, tmp_path)
    assert [table.cells[row, ("local",)].text for row in table.rows] == ["25.00", "12.50", "50.00"]


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("base.partition=iid", ["0", "1", "2"]),
        ("base.clients=6", ["0", "1", "2", "3", "4", "5"]),  # two of them are in the first domain
        ("base.data={format: domains, path: d, domains: [svhn, mnist, usps]}", ["svhn", "mnist", "usps"]),
        ("base.data={format: domains, path: d}", ["0", "1", "2"]),  # only the data know what theirs are called
    ],
)
def test_clients_are_called_by_their_domain_where_it_is_theirs_alone(
    tmp_path: Path, override: str, names: list[str]
) -> None:
    table = lay_out(make_experiment(tmp_path, BY_DOMAIN, override), tmp_path)
    assert [row for (row,) in table.rows] == names


def test_what_is_not_kept_for_each_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, BY_DOMAIN.replace("final_taa", "[final_taa, best_taa]"))
    (problem,) = caught.value.problems
    assert problem.endswith(
        "report.tables.0.value: expected final_taa, final_taa_local, final_global in a table by client (got best_taa)"
    )


def test_runs_of_different_methods_never_share_a_clients_cell(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, BY_DOMAIN.replace(", columns: method", ""))
    (problem,) = caught.value.problems
    assert "runs that differ in method fall together" in problem
