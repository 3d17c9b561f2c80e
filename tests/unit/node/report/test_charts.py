"""The charts of a report: ticks, thinning, labels that do not lie on each other, and SVG that is well formed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from node.report.charts import (
    LABEL_GAP,
    MAX_POINTS,
    Line,
    Point,
    choose_rounds,
    choose_ticks,
    draw_lines,
    draw_participation,
    spread,
    thin_out,
)


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (0.82, 1.0, [0.8, 0.85, 0.9, 0.95, 1]),
        (-3.0, 5.0, [-4, -2, 0, 2, 4, 6]),
    ],
)
def test_ticks_are_round_and_hold_all(low: float, high: float, ticks: list[float]) -> None:
    assert choose_ticks(low, high) == pytest.approx(ticks)


def test_ticks_of_one_value_are_two_at_least() -> None:
    ticks = choose_ticks(0.5, 0.5)
    assert len(ticks) >= 2
    assert ticks[0] <= 0.5 <= ticks[-1]


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2), (1, 10), (7, 43), (1, 10_000)])
def test_rounds_are_named_with_the_first_and_the_last(first: int, last: int) -> None:
    named = choose_rounds(first, last)
    assert (named[0], named[-1]) == (first, last)
    assert len(named) <= 13
    assert named == sorted(set(named))


def test_lows_and_highs_outlive_thinning() -> None:
    points = [Point(i, 0.5) for i in range(10_000)]
    points[4321], points[777] = Point(4321, 0.0), Point(777, 1.0)
    kept = thin_out(points)
    assert len(kept) <= MAX_POINTS + 1
    assert {points[4321], points[777], points[-1]} <= set(kept)
    assert thin_out(points[:10]) == tuple(points[:10])


def test_names_of_lines_do_not_lie_on_each_other() -> None:
    shown = spread([50.0, 50.0, 10.0, 52.0], LABEL_GAP)
    assert sorted(shown) == [10.0, 50.0, 65.0, 80.0]
    assert shown[2] == 10.0


def test_a_line_has_its_band_its_name_and_its_last_value() -> None:
    points = tuple(Point(i, 0.8, 0.7, 0.9) for i in range(1, 5))
    root = parse(draw_lines("accuracy <by> round", [Line("A & B", points), Line("none", ())], "accuracy"))
    assert root.attrib["aria-label"] == "accuracy <by> round"
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "A & B 0.800" in texts
    assert sum(1 for _ in root.iter("{http://www.w3.org/2000/svg}polygon")) == 1


def test_one_point_is_a_dot() -> None:
    root = parse(draw_lines("t", [Line("a", (Point(1, 0.5),))], "y"))
    assert sum(1 for _ in root.iter("{http://www.w3.org/2000/svg}circle")) == 1


def test_nothing_to_draw_is_no_picture() -> None:
    assert draw_lines("t", [Line("a", ())], "y") == ""
    assert draw_participation("t", [("a", [])], 0) == ""


def test_a_bar_stands_for_neighbouring_rounds() -> None:
    root = parse(draw_participation("t", [("a", [1, 2, 3, 7]), ("b", [])], 8))
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.attrib["class"] == "bar"]
    assert len(bars) == 2
    assert float(bars[0].attrib["width"]) == pytest.approx(3 * float(bars[1].attrib["width"]), abs=0.02)
