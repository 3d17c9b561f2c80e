"""Characters that do not show in what others have written, as commands and reports show them."""

from __future__ import annotations

import pytest

from node.cli.output import format_facts, show_name
from node.federation.difference import format_difference
from node.log import escape_control
from node.unseen import escape_unseen

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
UNSEEN = "\u00ad\u034f\u115f\u1160\u17b4\u200b\u200d\u2060\u2800\u3164\ufe0f\ufeff\uffa0\U000e0041\U000e0100"


@pytest.mark.parametrize("char", BIDI + UNSEEN)
def test_what_does_not_show_or_turns_others_round_is_an_escape(char: str) -> None:
    shown = escape_unseen(f"a{char}b")
    assert shown.isascii()
    assert shown == f"a{char.encode('unicode_escape').decode()}b" == escape_control(f"a{char}b")


@pytest.mark.parametrize("text", ["", "node1", "Zürich", "北京", "شبكة", "\x1b[31mred\x1b[0m", "line\nline"])
def test_all_else_stays(text: str) -> None:
    assert escape_unseen(text) == text


def test_tables_facts_and_differences_are_escaped() -> None:
    assert format_facts([("note", "pay \u202e001")]) == ["note  pay \\u202e001"]
    assert format_difference("run.classes", None, "cat\u034f") == "+ run.classes: cat\\u034f"
    assert format_difference("members.node1\ufe0f", "a", "b") == "~ members.node1\\ufe0f: a -> b"
    assert format_difference("run.classes", None, ["cat\u202e"]) == '+ run.classes: ["cat\\u202e"]'


def test_four_characters_of_the_key_stand_beside_a_name() -> None:
    assert show_name("hospital-b", "k3xqabcd") == "hospital-b (k3xq)"
    assert show_name("seat 3", "") == "seat 3"
