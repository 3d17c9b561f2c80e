"""Keeps numbers, names and types of every field on the wire what they once were: `python proto/fields.py [--add]`.

`proto/fields.txt` remembers each field there ever was, a line each. A field that is new is added to it (`--add`, which
proto/generate.sh does). One that is gone stays in it, and its number has to be `reserved` in the .proto; whatever else
differs is an error, since a peer or a script of an older version would read one thing for another.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from node.pb import admin_pb2, common_pb2, peer_pb2

KEPT = Path(__file__).with_name("fields.txt")

Lines = dict[tuple[str, int], str]  # what a field is, by its message and number


@dataclass(slots=True)
class Known:
    """Every field there is, all messages and enums, and the numbers that each reserves."""

    fields: Lines = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    reserved: list[tuple[str, range]] = field(default_factory=list)

    def add_file(self, file: FileDescriptorProto) -> None:
        for message in file.message_type:
            self._add_message(message, file.package)
        for enum in file.enum_type:
            self._add_enum(enum, file.package)

    def _add_message(self, message: DescriptorProto, above: str) -> None:
        name = f"{above}.{message.name}"
        self.names.add(name)
        self.fields |= {(name, one.number): _describe(one, message) for one in message.field}
        self.reserved += [(name, range(held.start, held.end)) for held in message.reserved_range]
        for below in message.nested_type:
            self._add_message(below, name)
        for enum in message.enum_type:
            self._add_enum(enum, name)

    def _add_enum(self, enum: EnumDescriptorProto, above: str) -> None:
        name = f"{above}.{enum.name}"
        self.names.add(name)
        self.fields |= {(name, value.number): value.name for value in enum.value}
        self.reserved += [(name, range(held.start, held.end + 1)) for held in enum.reserved_range]


def read_known() -> Known:
    known = Known()
    for module in (common_pb2, peer_pb2, admin_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        known.add_file(file)
    return known


def _describe(one: FieldDescriptorProto, message: DescriptorProto) -> str:
    """`optional double accuracy`, `repeated fednode.v1.Voter votes`, with the choice it is of, and the name in JSON
    where the .proto gives one."""
    kind = one.type_name.removeprefix(".") or FieldDescriptorProto.Type.Name(one.type).removeprefix("TYPE_").lower()
    is_repeated = one.label == FieldDescriptorProto.LABEL_REPEATED
    label = "repeated" if is_repeated else "optional" if one.proto3_optional else "single"
    is_choice = one.HasField("oneof_index") and not one.proto3_optional
    oneof = f" of {message.oneof_decl[one.oneof_index].name}" if is_choice else ""
    return f"{label} {kind} {one.name}{oneof}" + (f" as {one.json_name}" if one.json_name else "")


def find_problems(kept: Lines) -> list[str]:
    """The places where the fields of now contradict those of before."""
    known = read_known()
    problems = []
    for (message, number), was in kept.items():
        now = known.fields.get((message, number))
        if now is None and message in known.names:
            if not any(name == message and number in numbers for name, numbers in known.reserved):
                problems.append(f"{message} {number}: {was} is gone; say `reserved {number};` in the .proto")
        elif now is not None and now != was:
            problems.append(f"{message} {number}: it was {was}, and is {now}; give what is new a number of its own")
    return problems


def parse(text: str) -> Lines:
    kept: Lines = {}
    for line in text.splitlines():
        message, number, what = line.split(" ", 2)
        kept[message, int(number)] = what
    return kept


def main(arguments: list[str]) -> int:
    adds = "--add" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--add"]
    path = paths[0] if paths else KEPT
    kept = parse(path.read_text()) if path.exists() else {}
    problems = find_problems(kept)
    new = {key: what for key, what in read_known().fields.items() if key not in kept}
    if not adds:
        for (message, number), what in new.items():
            problems.append(f"{message} {number}: {what} is new; run proto/generate.sh")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if adds and not problems:
        lines = [f"{message} {number} {what}\n" for (message, number), what in sorted((kept | new).items())]
        path.write_text("".join(lines))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
