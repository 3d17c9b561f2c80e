"""The charts of a report: what they say, and SVG that is well formed."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

from node.report.charts import Line, Point, draw_lines, draw_participation


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def list_titles(root: ElementTree.Element) -> list[str | None]:
    return [element.text for element in root.iter("title")]


def test_a_line_has_its_band_its_name_and_its_last_value() -> None:
    points = tuple(Point(i, 0.8, 0.7, 0.9) for i in range(1, 5))
    root = parse(draw_lines("accuracy <by> round", [Line("A & B", points), Line("none", ())], "accuracy"))
    assert root.attrib["aria-label"] == "accuracy <by> round"
    assert "A & B 0.800" in [element.text for element in root.iter("text")]
    assert list_titles(root) == ["95 % interval of A & B"]


def test_one_point_is_a_dot() -> None:
    root = parse(draw_lines("t", [Line("a", (Point(1, 0.5),))], "y"))
    assert [use for use in root.iter("use") if "fill: #3b7dd8" in use.attrib.get("style", "")]


def test_nothing_to_draw_is_no_picture() -> None:
    assert draw_lines("t", [Line("a", ())], "y") == ""
    assert draw_participation("t", [("a", [])], 0) == ""


def test_a_bar_stands_for_neighbouring_rounds() -> None:
    root = parse(draw_participation("t", [("a", [1, 2, 3, 7]), ("b", [])], 8))
    (bars,) = (list(group.iter("path")) for group in root.iter("g") if group.find("title") is not None)
    places = [[float(x) for x in re.findall(r"[ML] ([0-9.]+)", path.attrib["d"])] for path in bars]
    wide, narrow = (max(own) - min(own) for own in places)
    assert wide == pytest.approx(3 * narrow, abs=0.02)


def test_names_in_any_letters_are_text(recwarn: pytest.WarningsRecorder) -> None:
    root = parse(draw_participation("t", [("\u533b\u9662 <b>", [1]), ("\x1b[31m\u202e", [2])], 2))
    texts = [element.text for element in root.iter("text")]
    assert "\u533b\u9662 <b>" in texts
    assert "\\x1b[31m\\u202e" in texts
    assert not recwarn


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = draw_lines("t", [Line("a", (Point(1, 0.5),))], "y")
    assert "expected matplotlib to be installed: pip install" in said
    assert "svg" not in said
