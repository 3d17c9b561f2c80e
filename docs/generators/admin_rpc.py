"""The page of the admin RPC: its calls and messages, as `proto/` has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from generators.words import ROOT, code, escape, make_table
from node.admin.access import ROLES


@dataclass
class Message:
    """A message of the wire: its comment, and a row for each field."""

    comment: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)


FIELD = re.compile(
    r"(?:(optional|repeated) )?(map<\w+, \w+>|[\w.]+) (\w+) = \d+(?: \[json_name = \"(\w+)\"\])?;\s*(?://\s*(.*))?$"
)
CALL = re.compile(r"rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\);")


def write_admin_rpc() -> str:
    common, admin = ((ROOT / "proto" / f"{name}.proto").read_text() for name in ("common", "admin"))
    calls, messages = read_proto(f"{admin}\n{common}")
    parts = [
        "# Admin RPC\n",
        "The service `fednode.v1.Admin` answers on the node's admin socket, and at `admin.address` to callers with a "
        "token. The commands are built on it. Its definition is `proto/admin.proto`; reflection and "
        "`grpc.health.v1.Health` are on the same socket.\n",
        "A token of role `read` may make the calls marked *read*, one of role `predict` also `Predict`, and one of "
        "role `admin` all of them. The messages are also the schema of `--json`: the "
        "same names, null where an optional field is not set. Ids are text as "
        "people see them, node ids in base32, block ids and digests in hexadecimal; times are RFC 3339 in UTC.\n",
        "## Calls\n",
    ]
    rows = [
        (
            code(name),
            ROLES[name].value,
            link(request),
            ("stream of " if stream else "") + link(reply),
            escape(comment),
        )
        for comment, group in calls
        for name, request, stream, reply in group
    ]
    parts.append(make_table(("call", "role", "request", "reply", "what it does"), rows))
    parts.append("## Messages\n")
    for name, message in messages.items():
        parts.append(f"(msg-{name.lower()})=\n### {name}\n")
        parts += [f"{escape(message.comment)}\n"] if message.comment else []
        parts.append(make_table(("field", "type", "what it is"), message.rows) if message.rows else "It is empty.\n")
    return "\n".join(parts)


def link(message: str) -> str:
    return f"[{message}](#msg-{message.lower()})"


Calls = list[tuple[str, list[tuple[str, str, bool, str]]]]


def read_proto(text: str) -> tuple[Calls, dict[str, Message]]:
    """The calls in the groups that comments head, and the messages in order. For this one file's manner of writing."""
    names = set(re.findall(r"^message (\w+)", text, re.MULTILINE))
    calls: Calls = []
    messages: dict[str, Message] = {}
    comment: list[str] = []
    current: Message | None = None
    is_continued = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//") and current is not None and is_continued:
            *head, (key, kind, words) = current.rows
            current.rows[:] = [*head, (key, kind, f"{words} {escape(line.removeprefix('//'))}")]
        elif line.startswith("service "):
            comment = []
        elif line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
        elif found := CALL.match(line):
            name, request, stream, reply = found.groups()
            if comment or not calls:
                calls.append((" ".join(comment), []))
            calls[-1][1].append((name, request, bool(stream), reply))
            comment = []
        elif found := re.match(r"message (\w+) \{(\})?$", line):
            messages[found[1]] = current = Message(" ".join(comment))
            comment, is_continued = [], False
        elif current is not None and (found := FIELD.match(line)):
            label, kind, name, json_name, words = found.groups()
            shown = link(kind) if kind in names else code(kind)
            current.rows.append((code(json_name or name), f"{label} {shown}" if label else shown, escape(words or "")))
            is_continued = words is not None
        elif not line:
            comment, is_continued = ([] if current is not None else comment if not calls else []), False
    return calls, messages
