"""Local work reckoned from settings, with numbers done by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.experiments.local_work import LocalWork, compute_epochs, list_local_work
from node.experiments.results import Result, read_result, write_result
from node.experiments.sections import TableSection
from node.experiments.tables import make_table
from support.data.experiments import make_document, make_experiment

SIZES = (40, 100)  # samples of the two clients


def make_result(directory: Path, method: str, taa: list[float], sharing_heights: int = 0) -> Result:
    rounds = len(taa) - sharing_heights
    made = make_experiment(
        directory, f"name: x\nbase: {{clients: 2, rounds: {rounds}}}\nsweep: {{method: [{method}]}}\n"
    )
    (run,) = made.runs.values()
    assert run.sharing_heights == sharing_heights
    document: dict[str, Any] = make_document(taa, sharing_heights=sharing_heights)
    for client, size in zip(document["clients"], SIZES, strict=True):
        client["num_train"] = size
    write_result(directory, run, document)
    result = read_result(directory, run)
    assert result is not None
    return result


def test_epochs_are_counted_and_their_steps_follow(tmp_path: Path) -> None:
    result = make_result(tmp_path, "{name: fedavg, local_epochs: 3, batch_size: 32}", [0.1, 0.2])
    assert list_local_work(result) == [[LocalWork(3, 3 * 2), LocalWork(3, 3 * 4)]] * 2  # ceil(40/32), ceil(100/32)
    assert compute_epochs(result) == (3, 6)


@pytest.mark.parametrize(("batch_size", "steps"), [(32, (3, 9)), (64, (3, 3))])
def test_a_partial_batch_may_be_left_out_but_not_all_there_is(
    tmp_path: Path, batch_size: int, steps: tuple[int, int]
) -> None:
    method = f"{{name: fedavg, local_epochs: 3, batch_size: {batch_size}, drop_last: true}}"
    result = make_result(tmp_path, method, [0.1])
    assert list_local_work(result) == [[LocalWork(3, count) for count in steps]]


def test_iterations_are_as_many_epochs_as_their_samples_come_to(tmp_path: Path) -> None:
    result = make_result(tmp_path, "{name: dfpl, local_iterations: 20, batch_size: 64}", [0.1])
    assert list_local_work(result) == [[LocalWork(20 * 40 / 40, 20), LocalWork(20 * 64 / 100, 20)]]
    assert compute_epochs(result) == pytest.approx([(20 + 12.8) / 2])


def test_dfpl_may_count_its_iterations_in_epochs(tmp_path: Path) -> None:
    result = make_result(tmp_path, "{name: dfpl, local_iterations: 4, iteration: epoch}", [0.1])
    assert compute_epochs(result) == (4,)


def test_fededs_counts_its_warm_up_its_encryptor_and_the_annealed_epochs(tmp_path: Path) -> None:
    method = "{name: fededs, local_epochs: 5, warmup_epochs: 2, encryptor_epochs: 20, batch_size: 32}"
    result = make_result(tmp_path, method, [0.9, 0.2, 0.3, 0.6, 0.7], sharing_heights=1)
    before, first, *_ = list_local_work(result)
    assert before == [LocalWork(2, 4, 20, 40), LocalWork(2, 8, 20, 80)]
    assert first == [LocalWork(5, 10), LocalWork(5, 20)]
    assert compute_epochs(result) == (22 + 5, 22 + 5 + 3, 22 + 5 + 3 + 1, 22 + 5 + 3 + 1 + 1)  # Eq. (5)


def test_without_sets_there_is_no_encryptor_to_train(tmp_path: Path) -> None:
    result = make_result(tmp_path, "{name: fededs, local_epochs: 5, share: false}", [0.2, 0.3, 0.6])
    assert compute_epochs(result) == (5, 8, 9)


def test_epochs_to_a_target_are_those_until_its_round_had_ended(tmp_path: Path) -> None:
    text = (
        "name: x\nbase: {clients: 2, rounds: 3}\n"
        "sweep: {method: [{name: fedavg, local_epochs: 2}, {name: fededs, encryptor_epochs: 10}]}\n"
    )
    made = make_experiment(tmp_path, text)
    fedavg, fededs = made.runs.values()
    results = {}
    for run, taa in ((fedavg, [0.1, 0.4, 0.8]), (fededs, [0.9, 0.1, 0.8, 0.9])):
        write_result(tmp_path, run, make_document(taa, sharing_heights=run.sharing_heights))
        found = read_result(tmp_path, run)
        assert found is not None
        results[run.id] = found
    section = TableSection.model_validate({"value": "epochs_to", "target": [0.1, 0.8, 0.95]})
    table = make_table(made, section, results)
    texts = [[table.cells[row, column].text for column in table.columns] for row in table.rows]
    assert texts == [["2", "6", "never"], ["20", "23", "never"]]  # 5 + 10 before round 1, then 5 and 3
    assert table.title == "Local epochs until TAA reaches 10, 80 or 95 %"
    section = TableSection.model_validate({"value": "epochs_to_global", "target": 0.2})  # a quarter of the TAA
    table = make_table(made, section, results)
    assert [table.cells[row, ()].text for row in table.rows] == ["6", "23"]
