"""A simulation's result as a table and as a chart, and what is said where pandas or matplotlib is missing."""

from __future__ import annotations

import sys

import pytest

import fednode


@pytest.fixture(scope="module")
def run() -> fednode.Simulation:
    return fednode.simulate("fedavg", nodes=2, rounds=2, shots=10, settings={"local_iterations": 1})


def test_a_table_has_a_row_for_each_round(run: fednode.Simulation) -> None:
    pytest.importorskip("pandas")
    table = run.to_pandas()
    assert table.index.name == "round"
    assert table.index.tolist() == [1, 2]
    assert [*table.columns] == [
        *("accuracy", "accuracy_before", "global_accuracy", "loss", "sent_bytes", "received_bytes")
    ]
    assert table["accuracy"].tolist() == [round_.accuracy for round_ in run.rounds]
    assert table.loc[2, "sent_bytes"] == run.rounds[1].sent_bytes


def test_a_chart_draws_every_round(run: fednode.Simulation) -> None:
    figure = run.plot()
    left, right = figure.axes
    drawn = {str(line.get_label()): list(line.get_ydata()) for line in left.lines}  # type: ignore[arg-type]
    assert drawn == {
        "after the exchange": [round_.accuracy for round_ in run.rounds],
        "before the exchange": [round_.accuracy_before for round_ in run.rounds],
        "on everyone's samples": [round_.global_accuracy for round_ in run.rounds],
    }
    assert list(right.lines[0].get_ydata()) == [round_.loss for round_ in run.rounds]  # type: ignore[arg-type]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert "matplotlib.pyplot" not in sys.modules  # no window is opened, and no backend chosen


@pytest.mark.parametrize(
    ("module", "call", "message"),
    [
        ("pandas", fednode.Simulation.to_pandas, "pip install pandas"),
        ("matplotlib", fednode.Simulation.plot, r"pip install 'fednode\[report\]'"),
    ],
)
def test_what_is_missing_is_named(
    run: fednode.Simulation, module: str, call: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert callable(call)
    with pytest.raises(fednode.NodeError, match=message):
        call(run)
