"""Seconds over a network, reckoned from rounds and bytes, with numbers done by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from node.errors import ConfigError
from node.experiments.figures import make_figures
from node.experiments.network import compute_network_seconds
from node.experiments.plan import Experiment
from node.experiments.report import write_report
from node.experiments.results import EXPERIMENT, Result, read_result, write_result
from node.experiments.sections import FigureSection, NetworkSection, TableSection
from node.experiments.stock import take_stock
from node.experiments.tables import Table, make_table
from support.data.experiments import make_document, make_experiment

MB = 1_000_000
SERVER = {"up_mbit": 8, "down_mbit": 16, "latency_s": 0.5}  # a second a megabyte up, half a second down
PEERS = {"mbit": 80, "latency_s": 0.125}  # a tenth of a second a megabyte


def make_network(**given: Any) -> NetworkSection:
    return NetworkSection.model_validate({"label": "net", "peers": PEERS, "epoch_s": 2, **given})


def make_result(
    directory: Path,
    method: str,
    by_round: Mapping[str, Sequence[float]],
    *,
    num_clients: int = 4,
    sizes: Sequence[int] = (32, 32, 32, 96),
    train_s: Sequence[float] | None = None,
) -> Result:
    num_heights = len(by_round["sent_bytes"])
    text = "name: x\nbase: {{clients: {}, rounds: {}}}\nsweep: {{method: [{}]}}\n"
    (run,) = make_experiment(directory, text.format(num_clients, num_heights, method)).runs.values()
    (run,) = make_experiment(
        directory, text.format(num_clients, num_heights - run.sharing_heights, method)
    ).runs.values()
    document = make_document(
        [0.5] * num_heights,
        num_clients=num_clients,
        by_round=by_round,
        train_s=train_s,
        sharing_heights=run.sharing_heights,
    )
    for client, size in zip(document["clients"], sizes, strict=False):
        client["num_train"] = size
    write_result(directory, run, document)
    result = read_result(directory, run)
    assert result is not None
    return result


VOTED = {
    "sent_bytes": [4 * MB] * 2,
    "received_bytes": [12 * MB] * 2,
}  # a megabyte of each, and received by three others
FEDAVG = "{name: fedavg, local_epochs: 3, batch_size: 32}"


def test_a_servers_round_is_up_and_down_once_each(tmp_path: Path) -> None:
    result = make_result(tmp_path, FEDAVG, VOTED)
    one = 3 * 2 + (0.5 + 1) + (0.5 + 0.5)  # three epochs, a megabyte up, a megabyte down
    assert compute_network_seconds(result, make_network(server=SERVER)) == pytest.approx([one, 2 * one])
    waits = make_network(server={**SERVER, "wait_s": 7})
    assert compute_network_seconds(result, waits) == pytest.approx([one + 7, 2 * (one + 7)])


def test_without_a_server_everything_comes_from_everyone(tmp_path: Path) -> None:
    one = 3 * 2 + 0.125 + 3 * 0.1
    seconds = compute_network_seconds(make_result(tmp_path, FEDAVG, VOTED), make_network())
    assert seconds == pytest.approx([one, 2 * one])


def test_a_server_waits_for_the_slowest_in_training_and_link_together(tmp_path: Path) -> None:
    result = make_result(tmp_path, FEDAVG, VOTED)
    # Clients 0 and 2 train 6 s and need 0.5 + 4 s up; 1 and 3 train 3 times as long and need 0.5 + 1 s.
    server = {**SERVER, "up_mbit": [2, 8]}
    slow = compute_network_seconds(result, make_network(server=server, slowdown=[1, 3]))
    assert slow[0] == pytest.approx(max(6 + 0.5 + 4, 18 + 0.5 + 1) + 1)
    links = compute_network_seconds(result, make_network(server={**server, "latency_s": [0, 0, 0, 9]}))
    assert links[0] == pytest.approx(max(6 + 4, 6 + 9 + 1) + 9 + 0.5)  # and it is the last to have the answer


def test_steps_are_longer_for_who_has_more_samples(tmp_path: Path) -> None:
    result = make_result(tmp_path, FEDAVG, VOTED)  # 3 steps for all but the last client, which makes 9
    seconds = compute_network_seconds(result, make_network(epoch_s=None, step_s=0.5))
    assert seconds[0] == pytest.approx(9 * 0.5 + 0.125 + 3 * 0.1)


def test_what_was_measured_is_shared_out_by_steps(tmp_path: Path) -> None:
    result = make_result(tmp_path, FEDAVG, VOTED, train_s=[9.0, 18.0])  # 3, 3, 3 and 9 steps: 4.5 on average
    seconds = compute_network_seconds(result, make_network(epoch_s=None))
    assert seconds == pytest.approx([9 * 2 + 0.425, 9 * 2 + 0.425 + 18 * 2 + 0.425])
    untimed = make_result(tmp_path, FEDAVG, VOTED)
    assert compute_network_seconds(untimed, make_network(epoch_s=None)) == ()
    assert len(compute_network_seconds(untimed, make_network())) == 2


def test_encrypted_sets_go_between_peers_and_models_over_the_server(tmp_path: Path) -> None:
    method = "{name: fededs, local_epochs: 5, warmup_epochs: 2, encryptor_epochs: 20, batch_size: 32}"
    by_round = {"sent_bytes": [40 * MB, 4 * MB, 4 * MB], "received_bytes": [120 * MB, 12 * MB, 12 * MB]}
    result = make_result(tmp_path, method, by_round)
    sharing = 22 * 2 + 0.125 + 30 * 0.1  # 2 + 20 epochs, then 30 MB from others
    first, second = (epochs * 2 + 1.5 + 1 for epochs in (5, 3))
    seconds = compute_network_seconds(result, make_network(server=SERVER))
    assert seconds == pytest.approx([sharing + first, sharing + first + second])
    dearer = compute_network_seconds(result, make_network(server=SERVER, encryptor_ratio=4))
    assert dearer[0] - seconds[0] == pytest.approx(3 * 20 * 2)


def test_what_is_pulled_goes_between_peers_also_where_there_is_a_server(tmp_path: Path) -> None:
    # Four clients vote on 1 MB each and pull 2 MB each: 4 + 8 MB sent, 12 + 8 MB received.
    by_round: dict[str, list[float]] = {"sent_bytes": [12 * MB], "received_bytes": [20 * MB], "peers": [2.0]}
    result = make_result(tmp_path, "{name: uapdfl, local_epochs: 3}", by_round)
    seconds = compute_network_seconds(result, make_network(server=SERVER))
    assert seconds == pytest.approx([6 + 1.5 + 1 + 0.125 + 0.2])
    assert compute_network_seconds(result, make_network()) == pytest.approx([6 + 0.125 + 0.5])


@pytest.mark.parametrize(("method", "peers"), [(FEDAVG, None), ("{name: uapdfl, local_epochs: 3}", 1.0)])
def test_of_two_clients_the_method_says_what_was_voted_on(tmp_path: Path, method: str, peers: float | None) -> None:
    by_round: dict[str, list[float]] = {"sent_bytes": [2 * MB], "received_bytes": [2 * MB]}
    by_round |= {} if peers is None else {"peers": [peers]}
    result = make_result(tmp_path, method, by_round, num_clients=2, sizes=(32, 32))
    seconds = compute_network_seconds(result, make_network(server=SERVER))
    assert seconds == pytest.approx([6 + (1.5 + 1 if peers is None else 0.125 + 0.1)])


def test_who_sends_nothing_waits_for_no_link(tmp_path: Path) -> None:
    result = make_result(tmp_path, "{name: local, local_epochs: 3}", {"sent_bytes": [0], "received_bytes": [0]})
    for network in (make_network(), make_network(server={**SERVER, "wait_s": 5})):
        assert compute_network_seconds(result, network) == (6,)


# ---- tables and figures

TEXT = """\
name: x
base: {clients: 4, rounds: 2, method: {local_epochs: 3}}
sweep: {method: [fedavg, fedprox]}
report:
  target: 0.5
  network:
    - {label: far, server: {up_mbit: 8, down_mbit: 16, latency_s: 0.5}, peers: {mbit: 80}, epoch_s: 2}
    - {label: near, peers: {mbit: 80}, epoch_s: 2}
"""
FAR, NEAR = 6 + 1.5 + 1, 6 + 0.3


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    made = make_experiment(tmp_path, TEXT)
    fedavg, fedprox = made.runs.values()
    for run, taa in ((fedavg, [0.6, 0.8]), (fedprox, [0.3, 0.5])):
        write_result(tmp_path, run, make_document(taa, num_clients=4, by_round=VOTED))
    return made


def refuse(directory: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        make_experiment(directory, text)
    (problem,) = caught.value.problems
    return str(problem)


def lay_out(experiment: Experiment, directory: Path, **section: object) -> Table:
    return make_table(experiment, TableSection.model_validate(section), take_stock(experiment, directory).finished)


def test_a_table_has_each_network_apart(experiment: Experiment, tmp_path: Path) -> None:
    table = lay_out(experiment, tmp_path, value="seconds_to", rows="method", columns="network")
    means = {place: cell.mean for place, cell in table.cells.items()}
    assert means == pytest.approx(
        {
            (("fedavg",), ("far",)): FAR,
            (("fedavg",), ("near",)): NEAR,
            (("fedprox",), ("far",)): 2 * FAR,
            (("fedprox",), ("near",)): 2 * NEAR,
        }
    )
    assert table.title == "Seconds until TAA reaches 50 %"
    assert "reckoned, not measured" in table.note
    one = lay_out(
        experiment, tmp_path, value=["network_seconds", "seconds_to_global"], where={"network": "near"}, target=0.2
    )
    texts = [[one.cells[row, column].text for column in one.columns] for row in one.rows]
    assert texts == [["12.6", "12.6"], ["12.6", "never"]]  # on all classes a quarter of 0.8


def test_a_figure_goes_by_the_seconds_of_its_network(experiment: Experiment, tmp_path: Path) -> None:
    finished = take_stock(experiment, tmp_path).finished
    section = FigureSection.model_validate({"x": "network_seconds", "panels": "network"})
    (figure,) = make_figures(experiment, section, finished)
    assert [panel.label for panel in figure.panels] == ["far", "near"]
    assert [panel.lines[0].x for panel in figure.panels] == [pytest.approx([s, 2 * s]) for s in (FAR, NEAR)]
    assert figure.title == "TAA by time over the network"
    section = FigureSection.model_validate({"x": "network", "y": "seconds_to", "panels": []})
    (figure,) = make_figures(experiment, section, finished)
    assert figure.ticks == ("far", "near")
    assert list(figure.panels[0].lines[1].mean) == pytest.approx([2 * FAR, 2 * NEAR])
    section = FigureSection.model_validate({"x": "epochs", "panels": []})
    (figure,) = make_figures(experiment, section, finished)
    assert figure.panels[0].lines[0].x == (3, 6)


def test_a_network_is_no_part_of_a_run(experiment: Experiment, tmp_path: Path) -> None:
    without = make_experiment(tmp_path, TEXT[: TEXT.index("report")])
    assert without.runs.keys() == experiment.runs.keys()


def test_the_page_says_what_seconds_are_reckoned_by(tmp_path: Path) -> None:
    text = f"{TEXT}  tables: [{{value: seconds_to, columns: network}}]\n"
    text = text.replace("epoch_s: 2}\n  tables", "step_s: 2, encryptor_ratio: 3, slowdown: [1, 4]}\n  tables")
    made = make_experiment(tmp_path, text)
    (tmp_path / EXPERIMENT).write_text(text)
    for run in made.runs.values():
        write_result(tmp_path, run, make_document([0.6, 0.8], num_clients=4, by_round=VOTED))
    page = write_report(tmp_path).page.read_text()
    for said in (
        "Networks that seconds are reckoned by",
        "up 8 Mbit/s, down 16 Mbit/s, 0.5 s",
        "2 s a local step, an encryptor&#x27;s 3 times, clients slower by 1/4",
    ):
        assert said in page or said.replace("&#x27;", "'") in page


def test_runs_without_what_seconds_follow_from_are_made_again(tmp_path: Path) -> None:
    table = "  tables: [{value: network_seconds, columns: network}]\n"
    measured = make_experiment(tmp_path, TEXT.replace(", epoch_s: 2", "") + table)
    given = make_experiment(tmp_path, TEXT + table)
    fedavg, fedprox = given.runs.values()
    write_result(tmp_path, fedavg, make_document([0.6, 0.8], num_clients=4, by_round=VOTED))
    write_result(tmp_path, fedprox, make_document([0.6, 0.8], num_clients=4))  # it does not say what was received
    assert take_stock(given, tmp_path).lacking == {fedprox.id}
    assert take_stock(measured, tmp_path).lacking == {fedavg.id, fedprox.id}  # nor how long they trained
    assert (
        lay_out(given, tmp_path, value="network_seconds", columns="network").cells[("fedprox",), ("far",)].mean is None
    )


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("  tables: [{value: seconds_to}]\n", "runs that differ in network fall together"),
        ("  tables: [{value: seconds_to, over: network}]\n", "expected network laid out, or in `where`"),
        ("  tables: [{value: seconds_to, where: {network: moon}}]\n", "expected values that some run has"),
        ("  tables: [{columns: network}]\n", "unknown name 'network'"),
        ("  figures: [{x: network_seconds, panels: []}]\n", "runs that differ in network fall together"),
    ],
)
def test_each_network_stands_for_itself(tmp_path: Path, section: str, problem: str) -> None:
    assert problem in refuse(tmp_path, TEXT + section)


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        ("[]", "expected a network in report.network"),
        ("{label: a, peers: {mbit: 0}}", "mbit"),
        ("{label: a, peers: {mbit: []}}", "at least one value"),
        ("{label: a, peers: {mbit: 1}, step_s: 1, epoch_s: 1}", "expected step_s or epoch_s, not both"),
        ("[{label: a, peers: {mbit: 1}}, {label: a, peers: {mbit: 2}}]", "expected different labels"),
    ],
)
def test_networks_that_cannot_be_are_refused(tmp_path: Path, network: str, problem: str) -> None:
    text = "name: x\nsweep: {method: [fedavg]}\nreport:\n  tables: [{value: seconds_to}]\n"
    assert problem in refuse(tmp_path, f"{text}  network: {network}\n")
