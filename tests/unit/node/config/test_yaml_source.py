"""YAML with positions: what is read, what is refused, and that every refusal names its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node.config.yaml_source import MAX_BYTES, MAX_DEPTH, YamlSource, dump_yaml, parse_yaml, read_yaml, suggest
from node.errors import ConfigError

FILE = Path("node.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-7", -7),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-11-20T14:00:00Z", "2026-11-20T14:00:00Z"),
        ('"12"', "12"),
        (".inf", ".inf"),
        ("[1, a, [true]]", [1, "a", [True]]),
    ],
)
def test_values_are_those_of_the_core_schema(text: str, value: Any) -> None:
    got = parse_yaml(f"key: {text}", FILE).value["key"]
    assert (type(got), got) == (type(value), value)


def test_origins_name_the_line_and_column_of_keys_and_items() -> None:
    source = parse_yaml("node:\n  name: a\nnetwork:\n  peers:\n    - x\n    - y\n", FILE)
    assert source.get_origin(("node", "name")) == "node.yaml:2:3"
    assert source.get_origin(("network", "peers", 1)) == "node.yaml:6:7"
    assert source.get_origin(("network", "missing")) == "node.yaml:3:1"
    assert source.get_origin(("missing",)) == "node.yaml"


def test_an_override_takes_the_place_of_what_stood_there() -> None:
    source = parse_yaml("log:\n  level: info\n  file: x\n", FILE).with_value(("log",), {"level": "debug"}, "--set log")
    assert source.value == {"log": {"level": "debug"}}
    assert source.get_origin(("log", "level")) == "--set log"


def test_an_override_makes_the_sections_it_needs() -> None:
    source = YamlSource(FILE, None).with_value(("a", "b"), 1, "--set a.b")
    assert source.value == {"a": {"b": 1}}


def test_an_override_below_a_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--set a\.b: expected a section above 'b' \(got 5\)$"):
        parse_yaml("a: 5", FILE).with_value(("a", "b"), 1, "--set a.b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "node.yaml:3:1: a: given twice (first on line 1)"),
        ("n:\n  a: 1\n  a: 3\n", "node.yaml:3:3: n.a: given twice (first on line 2)"),
        ("a: &x 1\nb: *x\n", "node.yaml:2:4: expected plain values (got an alias)"),
        ("a: !!python/name:os.system\n", "node.yaml:1:4: expected plain values"),
        ("a: 1e999\n", "node.yaml:1:4: expected a finite number (got 1e999)"),
        ("a: " + "9" * 200, "node.yaml:1:4: expected a number of at most 100 digits"),
        ("1: a\n", "node.yaml:1:1: expected a name as key (got 1)"),
        ("[a]: b\n", "node.yaml:1:1: expected a name as key (got ['a'])"),
        ("a: [1, 2\nb: 3\n", "node.yaml:2:2: not YAML"),
        ("a: 'x\n", "node.yaml:2:1: not YAML"),
        ('a: "\\UFFFFFFFF"\n', "node.yaml:1:7: not YAML: a character or version out of range"),
        ("%YAML " + "9" * 5000 + ".1\n--- a\n", "node.yaml:1:7: not YAML: a character or version out of range"),
        ("a: b: c\n", "node.yaml:1:5: not YAML"),
        ("a: 1\n---\nb: 2\n", "node.yaml:2:1: not YAML"),
        ("a: \x07\n", "node.yaml:1:4: not YAML: character #x0007"),
        ("a: " + "[" * 100, f"node.yaml:1:{3 + MAX_DEPTH}: nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_what_a_configuration_never_needs_is_refused_by_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, FILE)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: 1\nb: \xff\n", ":2:4: expected text in UTF-8 (got byte 0xff)"),
        (b"#" * (MAX_BYTES + 1), f": expected a file of at most {MAX_BYTES} bytes"),
    ],
)
def test_unreadable_bytes_are_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}{message}"


def test_missing_files_and_directories_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file$"):
        read_yaml(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)$"):
        read_yaml(tmp_path)


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path).value == {"a": 1}


def test_suggestions_are_near_misses_only() -> None:
    assert suggest("listn", ["listen", "peers"]) == " Did you mean 'listen'?"
    assert suggest("zzz", ["listen"]) == ""


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcyesnoff0123.-", min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain)
def test_what_is_dumped_reads_back_as_the_same(value: Any) -> None:
    text = dump_yaml({"key": value})
    assert parse_yaml(text, FILE).value == {"key": value}
    assert yaml.safe_load(text) == {"key": value}  # and by any YAML 1.1 reader


@pytest.mark.parametrize("char", ["\x85", "\u2028", "\u2029"])
def test_what_only_yaml_1_1_takes_for_a_line_break_reads_back_as_the_same(char: str) -> None:
    for text in (f"a{char}b", char + "N" * 200, f"{char} {'N' * 200} M\n", f"{char}key"):
        value = {text: [text, {"below": text}]}
        assert parse_yaml(dump_yaml(value), FILE).value == value
        assert yaml.safe_load(dump_yaml(value)) == value


@given(st.text(max_size=60))
def test_any_text_is_a_document_or_one_line(text: str) -> None:
    refused: list[str] = []
    value = None
    try:
        value = parse_yaml(text, FILE).value
    except ConfigError as error:  # and nothing else
        refused = str(error).splitlines()
    assert len(refused) <= 1
    assert parse_yaml(dump_yaml({"key": value}), FILE).value == {"key": value}
