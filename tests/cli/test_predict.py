"""`fednode predict`: how the command shows a node's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from node.admin.asking import Answered, Told
from node.cli.model.predict import MIN_ALIKE, describe, make_table, summarise
from node.cli.output import format_table
from node.pb import admin_pb2 as pb

MEMBER = "k5ry2m4aq7xw2c5tb2hs4qlek5ry2m4aq7xw2c5tb2hs4qle2345"


def make_answer(
    file: str = "a.npz",
    row: int | None = 0,
    expected: str | None = None,
    round_: int = 7,
    *,
    passed_over: tuple[str, ...] = (),
    filled: tuple[int, int] = (0, 0),
    **fields: Any,
) -> Answered:
    top = [
        pb.ClassProbability(label=1, class_name="dog", probability=0.75),
        pb.ClassProbability(label=0, class_name="cat", probability=0.25),
    ]
    said = pb.Prediction(label=1, class_name="dog", probability=0.75, top=top, **fields)
    return Answered(Path(file), row, expected, said, round_, passed_over=passed_over, filled=filled)


def show(*answers: Answered) -> list[str]:
    return format_table(*make_table(answers))


def test_a_sample_is_a_line_that_says_where_it_came_from() -> None:
    assert show(make_answer("x/a.npz", 3), make_answer("b.csv", 4), make_answer("c.png", None)) == [
        "SAMPLE      CLASS  PROBABILITY  TOP",
        "x/a.npz[3]  dog         0.7500  dog 0.750, cat 0.250",
        "b.csv:4     dog         0.7500  dog 0.750, cat 0.250",
        "c.png       dog         0.7500  dog 0.750, cat 0.250",
    ]


def test_prototypes_have_columns_where_they_answer() -> None:
    assert show(make_answer(distance=1.5)) == [
        "SAMPLE    CLASS  PROBABILITY  TOP                   DISTANCE",
        "a.npz[0]  dog         0.7500  dog 0.750, cat 0.250    1.5000",
    ]
    assert show(make_answer(distance=1.5, nearest=MEMBER, nearest_name="node2")) == [
        "SAMPLE    CLASS  PROBABILITY  TOP                   DISTANCE  NEAREST",
        "a.npz[0]  dog         0.7500  dog 0.750, cat 0.250    1.5000  node2 k5ry2m4a",
    ]


def test_labels_of_the_file_are_compared_where_there_are_some() -> None:
    answers = [make_answer(expected="dog"), make_answer(row=1, expected="cat"), make_answer("c.png", None)]
    assert [line.rpartition("0.250")[2].strip() for line in show(*answers)[1:]] == ["correct", "wrong: cat", "-"]
    assert summarise(answers) == "3 samples, by the model after round 7; 1 of 2 as labelled"


def test_what_makes_an_answer_doubtful_is_a_note() -> None:
    far = make_answer(row=0, notes=["age 999: trained on 28 to 77"], filled=(6, 13))
    assert [line.rpartition("0.250")[2].strip() for line in show(far, make_answer(row=1))] == [
        "SAMPLE    CLASS  PROBABILITY  TOP                   NOTE",
        "6 of 13 filled; age 999: trained on 28 to 77",
        "-",
    ]
    value = pb.Prediction(values=[pb.TargetValue(target="dose", value=2)], notes=["age 999: trained on 28 to 77"])
    assert show(Answered(Path("a.npz"), 0, None, value, 7))[1].endswith("2  age 999: trained on 28 to 77")


def test_columns_that_nobody_looked_at_are_said_once_a_file() -> None:
    answers = [make_answer("a.csv", row, passed_over=("id", "site")) for row in range(3)]
    assert summarise(answers).splitlines()[1:] == [
        "fednode: a.csv: 2 columns passed over, which genesis does not name: 'id', 'site'"
    ]


def test_the_summary_says_which_model_it_was() -> None:
    assert summarise([make_answer()]) == "1 sample, by the model after round 7"
    assert summarise([make_answer(round_=8), make_answer(round_=7)]) == "2 samples, by the model after rounds 7 to 8"
    assert summarise([make_answer(round_=0)]) == "1 sample, by the initial model"
    mixed = Told(answer_by="mixed", weight=0.542, temperature=1.7)
    told = "model after round 7, mixed with the one trained alone 0.54 to 0.46, calibrated at temperature 1.70"
    assert summarise([make_answer()], mixed) == f"1 sample, by the {told}"
    assert summarise([make_answer()], Told(answer_by="alone", weight=0.5)) == "1 sample, by the model trained alone"


def test_one_answer_to_many_samples_looks_odd() -> None:
    alike = [make_answer(row=i) for i in range(MIN_ALIKE)]
    assert "all are called dog" in summarise(alike)
    assert "all" not in summarise(alike[1:])


def test_json_has_every_key_and_whole_ids() -> None:
    shown = describe(make_answer("x/a.npz", 3, "cat", nearest=MEMBER, nearest_name="node2", distance=0.5))
    assert json.loads(json.dumps(shown)) == {
        "file": "x/a.npz",
        "row": 3,
        "label": 1,
        "class": "dog",
        "probability": 0.75,
        "top": [
            {"label": 1, "class": "dog", "probability": 0.75},
            {"label": 0, "class": "cat", "probability": 0.25},
        ],
        "distance": 0.5,
        "nearest": MEMBER,
        "nearest_name": "node2",
        "notes": [],
        "expected": "cat",
        "correct": False,
        "applied_round": 7,
    }
    bare = describe(make_answer("c.png", None))
    assert bare.keys() == shown.keys()
    assert {bare[key] for key in ("row", "distance", "nearest", "nearest_name", "expected", "correct")} == {None}
