"""The generated reference: commands, configuration, methods' options, admin RPC and metrics, from the code itself.

`make reference` runs it, and a test holds what is committed to what it gives. What the code has no words for, one line
for each key that people write, is in `descriptions.yaml`.
"""

from __future__ import annotations

import ast
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import typer.main
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

# All that is imported of the product, in one place: its modules may move.
from chain.genesis import MAX_ABS, QUORUMS, PowRules
from chain.waits import PROFILES
from ml.specs import METHODS
from ml.specs.base import Hyperparameters
from node.admin.access import ROLES
from node.cli.app import make_app
from node.config.node_config import NodeConfig
from node.config.node_sections import PartSection

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DESCRIPTIONS = DOCS / "descriptions.yaml"
MARK = "<!-- Written by docs/generate.py; `make reference` writes it anew. -->\n"

PLAIN_METHODS = ("fedavg", "dfpl", "uapdfl")  # whose options that others share are on the page of the reference


def generate() -> dict[str, str]:
    """Every generated page by its path below docs/."""
    words = Descriptions(yaml.safe_load(DESCRIPTIONS.read_text()))
    pages = {
        "reference/commands.md": write_commands(),
        "reference/configuration.md": write_configuration(words),
        "reference/genesis.md": write_genesis(words),
        "reference/methods.md": write_shared_options(words),
        "reference/admin-rpc.md": write_admin_rpc(),
        "reference/metrics.md": write_metrics(),
        "reference/files.md": write_files(),
    }
    pages |= {f"reference/options/{name}.md": write_options(name, words) for name in METHODS}
    words.check_all_used()
    return {path: MARK + text.rstrip() + "\n" for path, text in pages.items()}


def main() -> None:
    for path, text in generate().items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text)


# ---- words and tables


class Descriptions:
    """One line for each key. A key without one, and one without a key, are errors."""

    def __init__(self, sections: Mapping[str, Mapping[str, str]]) -> None:
        self._sections = sections
        self._used: set[tuple[str, str]] = set()

    def get(self, section: str, *keys: str) -> str:
        """That of the first of `keys` that has one."""
        for key in keys:
            if key in self._sections[section]:
                self._used.add((section, key))
                return self._sections[section][key]
        sys.exit(f"{DESCRIPTIONS.name}: {section}: expected a line for {keys[-1]}")

    def check_all_used(self) -> None:
        there = {(section, key) for section, keys in self._sections.items() for key in keys}
        if unused := sorted(there - self._used):
            sys.exit(f"{DESCRIPTIONS.name}: nothing has these keys: {unused}")


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def show_default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple | list):
        return code("[]") if not value else code(str(list(value)))
    if isinstance(value, float):
        return code(f"{value:g}")
    return code(str(value))


# ---- commands


def write_commands() -> str:
    """Every command with its help, arguments and options, by walking the command tree."""
    root = typer.main.get_command(make_app())
    commands = dict(walk(root, ()))
    parts = [
        "# Commands\n",
        "Every command has `--help`. The result goes to stdout, everything else to stderr. "
        "Queries have `--json`, whose keys are stable.\n",
        make_table(
            ("command", "what it does"),
            [
                (f"[`{' '.join(('fednode', *words))}`](#{make_anchor(words)})", get_summary(command))
                for words, command in commands.items()
                if words and not has_commands(command)
            ],
        ),
    ]
    parts += [write_exit_codes()]
    parts += [write_command(words, command) for words, command in commands.items()]
    return "\n".join(parts)


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*words, name))


def has_commands(command: Any) -> bool:
    """Whether it is a group that does nothing by itself."""
    return bool(getattr(command, "commands", {})) and not (command.invoke_without_command and command.params)


def get_summary(command: Any) -> str:
    return str(command.get_short_help_str(200))


def make_anchor(words: Sequence[str]) -> str:
    return "-".join(("cmd", *words)) if words else "cmd-fednode"


def write_command(words: tuple[str, ...], command: Any) -> str:
    level = "##" if len(words) < 2 else "###"
    parts = [f"({make_anchor(words)})=\n{level} {' '.join(('fednode', *words))}\n"]
    *paragraphs, example = [" ".join(text.split()) for text in (command.help or "").strip().split("\n\n")]
    if "Example" not in example:
        paragraphs, example = [*paragraphs, example], ""
    parts += [f"{escape(text)}\n" for text in paragraphs]
    if example:
        parts.append(f"{escape(example)}\n")
    if has_commands(command):
        return "\n".join(parts)
    context = command.context_class(command, info_name=" ".join(("fednode", *words)))
    parts.append(f"```text\n{' '.join(('fednode', *words, *command.collect_usage_pieces(context)))}\n```\n")
    rows = [row for parameter in command.params if (row := make_parameter_row(parameter, context))]
    if rows:
        parts.append(make_table(("option", "what it is", "default and limits"), rows))
    return "\n".join(parts)


def make_parameter_row(parameter: Any, context: Any) -> tuple[str, str, str] | None:
    """None for what only shells need, and for what has no help."""
    record = parameter.get_help_record(context)
    if record is None or parameter.name in ("install_completion", "show_completion"):
        return None
    found = re.fullmatch(r"(.*?)(?:  \[(.*)\])?", " ".join(record[1].split(" ")), re.DOTALL)
    shown, limits = (found[1], found[2] or "") if found else (record[1], "")
    limits = limits.replace("default: ", "").replace("9223372036854775807", "2^63 - 1")
    return code(record[0].strip()), escape(shown), code(limits)


def escape(text: str) -> str:
    """Words of the code as Markdown that shows them as they are; what stands in backticks is code already."""
    parts = " ".join(text.split()).split("`")
    plain = [re.sub(r"([<>*_$\[\]])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts)]
    return "`".join(plain)


EXIT_CODES = (
    ("0", "Success. A daemon that was told to stop also ends with 0."),
    ("1", "The operation failed; stderr says why."),
    ("2", "A mistake in the command line."),
    ("3", "Not found: block, peer or round."),
    ("4", "The node cannot be reached, or is not ready."),
    ("5", "Verification failed: chain, signature or state."),
    ("6", "`doctor` or `health` found a problem."),
    ("77", "Permission: mode of a key or socket, or a token without the role."),
    ("78", "The configuration is invalid."),
    ("130", "A command was interrupted by Ctrl-C."),
)


def write_exit_codes() -> str:
    return "(exit-codes)=\n## Exit codes\n\n" + make_table(("code", "meaning"), EXIT_CODES)


# ---- node.yaml


def write_configuration(words: Descriptions) -> str:
    parts = [
        "# node.yaml\n",
        "A site's decisions for its own node. What all members must agree on is in [genesis.yaml](genesis.md).\n",
        "A value comes from `--set KEY=VALUE`, else from the environment (`FEDNODE__NETWORK__LISTEN`), else from the "
        "file, else from the default. Relative paths are relative to the file. Unknown and duplicate keys are errors. "
        "`fednode config check` checks a file, `fednode config show` prints each value with its origin, and "
        "`fednode config schema` prints a JSON Schema for editors.\n",
    ]
    top = [(name, info) for name, info in NodeConfig.model_fields.items() if not get_section(info)]
    parts.append(make_key_table("", top, words))
    for name, info in NodeConfig.model_fields.items():
        if section := get_section(info):
            parts += write_section(name, section, words)
    parts.append(write_partitions(words))
    return "\n".join(parts)


def write_section(path: str, section: type[BaseModel], words: Descriptions) -> list[str]:
    parts = [f"## {path}\n", f"{words.get('sections', path)}\n"]
    keys: list[tuple[str, FieldInfo]] = []
    below: list[str] = []
    for name, info in section.model_fields.items():
        if inner := get_section(info):
            below += write_section(f"{path}.{name}", inner, words)
        else:
            keys.append((name, info))
    if keys:
        parts.append(make_key_table(f"{path}.", keys, words))
    return parts + below


def get_section(info: FieldInfo) -> type[BaseModel] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def make_key_table(prefix: str, keys: Iterable[tuple[str, FieldInfo]], words: Descriptions) -> str:
    rows = []
    for name, info in keys:
        default = "required" if info.is_required() else show_default(info.default)
        rows.append((code(prefix + name), words.get("node.yaml", prefix + name), show_type(info), default))
    return make_table(("key", "what it is", "value", "default"), rows)


def show_type(info: FieldInfo) -> str:
    """What a key takes: words to choose from, or a kind with its limits."""
    metadata = [*info.metadata, *(find_metadata(info.annotation))]
    limits = []
    for item in metadata:
        for attribute, sign in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
            bound = getattr(item, attribute, None)
            if bound is not None:
                limits.append(f"{sign} {show_bound(bound)}")
    kind = name_kind(info.annotation)
    return ", ".join([kind, *limits])


def show_bound(bound: float) -> str:
    if isinstance(bound, float):
        return f"{bound:g}"
    return f"{bound:,}" if bound < 1 << 31 else f"2^{bound.bit_length() - 1}"


def find_metadata(kind: Any) -> list[Any]:
    """The limits in an annotation, also those of pydantic's Field in one part of a union."""
    if typing.get_origin(kind) is typing.Annotated:
        base, *metadata = typing.get_args(kind)
        found = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return [*found, *find_metadata(base)]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return [item for argument in typing.get_args(kind) for item in find_metadata(argument)]
    return []


KINDS = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path"}


def name_kind(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return name_kind(arguments[0])
    if origin is Literal:
        return ", ".join(code(str(argument)) for argument in arguments)
    if origin is tuple:
        return f"list of {name_kind(arguments[0])}"
    if origin in (types.UnionType, typing.Union):
        names = [name_kind(argument) for argument in arguments if argument is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if isinstance(kind, type) and issubclass(kind, PartSection):
        return "a [partition](#partitions)"
    return KINDS[kind]


def write_partitions(words: Descriptions) -> str:
    parts = [
        "(partitions)=\n## Partitions\n",
        "`data.partition` gives a node its part of a shared data set. All schemes have these keys:\n",
        make_table(
            ("key", "what it is", "value", "default"),
            [make_part_row(name, info, name, words) for name, info in PartSection.model_fields.items()],
        ),
    ]
    for kind in sorted(PartSection.__subclasses__(), key=lambda kind: str(get_scheme(kind))):
        scheme = get_scheme(kind)
        own = [
            make_part_row(name, info, f"{scheme}.{name}", words)
            for name, info in kind.model_fields.items()
            if name not in PartSection.model_fields and name != "scheme"
        ]
        parts += [f"**scheme: {scheme}**. {' '.join((kind.__doc__ or '').split())}\n"]
        parts += [make_table(("key", "what it is", "value", "default"), own)] if own else []
    return "\n".join(parts)


def get_scheme(kind: type[BaseModel]) -> str:
    return str(typing.get_args(kind.model_fields["scheme"].annotation)[0])


def make_part_row(name: str, info: FieldInfo, key: str, words: Descriptions) -> tuple[str, str, str, str]:
    default = "required" if info.is_required() else show_default(info.default)
    return code(name), words.get("partition", key), show_type(info), default


# ---- genesis.yaml

GENESIS_KEYS: tuple[tuple[str, str, str], ...] = (
    ("protocol", "1", "required"),
    ("chain_name", "text", "required"),
    ("created_at", "time in UTC", "required"),
    ("members", "list", "required"),
    ("method", "mapping", "required"),
    ("model", "mapping", "required"),
    ("classes", "list of text", "required"),
    ("input", "mapping", "required"),
    ("initial_model", "64 hexadecimal digits", "required"),
    ("rounds", "whole number", "required"),
    ("quorum", ", ".join(map(code, QUORUMS)), "required"),
    ("profile", ", ".join(map(code, PROFILES)), "required"),
    ("waits", "mapping", "by `profile`"),
    *(
        (f"pow.{item.name}", "whole number", "by `difficulty`" if item.name in ("min", "max") else "required")
        for item in fields(PowRules)
    ),
    ("pow.adaptive", "`true` or `false`", code("false")),
    *(
        (f"limits.{name}", kind, default)
        for name, kind, default in (
            ("max_weight", "whole number", "required"),
            ("payload_mib", "whole number", "required"),
            ("max_abs", "number above 0", show_default(MAX_ABS)),
        )
    ),
    ("min_contributions", "1 to the quorum", "the quorum"),
    ("keep_heights", "whole number, at least 1", code("2")),
    ("evidence_heights", "whole number", code("100")),
)


def write_genesis(words: Descriptions) -> str:
    parts = [
        "# genesis.yaml\n",
        "What all members share. Its hash names the chain, so whoever changes a value other than an address starts "
        "another chain. `fednode genesis new` and `fednode testnet` write it with every default spelled out; "
        "`fednode genesis show` checks and prints it.\n",
        make_table(
            ("key", "what it is", "value", "default"),
            [(code(key), words.get("genesis.yaml", key), kind, default) for key, kind, default in GENESIS_KEYS],
        ),
        "## waits\n",
        "`profile` sets all of them: `local` is for one machine, `site` for one network, `wide` for the internet.\n",
        make_table(
            ("key", "what it is", *(code(name) for name in PROFILES)),
            [
                (
                    code(f"waits.{item.name}"),
                    words.get("waits", item.name),
                    *(f"{asdict(p)[item.name]:g}" for p in PROFILES.values()),
                )
                for item in fields(PROFILES["local"])
            ],
        ),
    ]
    return "\n".join(parts)


# ---- methods' options


def write_shared_options(words: Descriptions) -> str:
    """Those that many methods have; each method's page has its own."""
    names = [name for name in METHODS if name != "local"]
    texts = {
        "local training": "All methods have these.",
        "aggregation": (
            "For methods in which all members compute one aggregate. See "
            "[Members that lie](../faults.md#members-that-lie)."
        ),
        "payloads": "For methods that send models.",
        "peers": "For methods in which each client draws a few others.",
    }
    parts = [
        "# Options of all methods\n",
        "They stand under `method` in genesis. On the command line they are `--set KEY=VALUE` for `testnet`, `demo`, "
        "`simulate` and `genesis new`, and `method.KEY` in an experiment. The page of each "
        "[method](../methods/index.md) has its own options and the defaults that differ.\n",
    ]
    for title, keys in GROUPS.items():
        rows = []
        for key in keys:
            plain = METHODS[next(name for name in (*PLAIN_METHODS, *names) if key in get_keys(name))]
            rows.append(make_option_row(plain.name, key, words))
        parts += [
            f"## {title.capitalize()}\n",
            f"{texts[title]}\n",
            make_table(("option", "what it is", "value", "default"), rows),
        ]
    return "\n".join(parts)


GROUPS = {
    "local training": tuple(Hyperparameters.keys()),
    "aggregation": ("aggregation", "weight_cap", "clip"),
    "payloads": ("weights", "bn_buffers"),
    "peers": ("num_peers",),
}
SHARED = {key for keys in GROUPS.values() for key in keys}


def write_options(name: str, words: Descriptions) -> str:
    """The options of one method that not all have, or that have another default there; a part of that method's page."""
    keys = get_keys(name)
    own = [key for key in keys if key not in SHARED or is_special(name, key)]
    text = make_table(("option", "what it is", "value", "default"), [make_option_row(name, key, words) for key in own])
    shared = []
    for group, members in GROUPS.items():
        there = [key for key in members if key in keys and key not in own]
        whole = len(there) + len([key for key in members if key in own]) == len(members)
        if there:
            target = f"[{group}](/reference/methods.md#{group.replace(' ', '-')})"
            shared.append(target if whole else f"{target} (only {', '.join(map(code, there))})")
    also = f"It {'also ' if own else ''}has the options of {join_words(shared)}.\n"
    return (text + "\n" if own else "") + also


def join_words(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def is_special(name: str, key: str) -> bool:
    """Whether an option that many share has another default, or other values, in this method."""
    usual = next(get_keys(plain)[key] for plain in PLAIN_METHODS if key in get_keys(plain))
    here = get_keys(name)[key]
    return (here.default, dict(here.metadata)) != (usual.default, dict(usual.metadata))


def get_keys(name: str) -> dict[str, Any]:
    """The options of a method by the name they have in genesis."""
    return METHODS[name].settings.keys()


def make_option_row(name: str, key: str, words: Descriptions) -> tuple[str, str, str, str]:
    found = get_keys(name)[key]
    rule = found.metadata
    if rule["type"] is str:
        value = ", ".join(map(code, rule["choices"]))
    elif rule["type"] is bool:
        value = "`true` or `false`"
    elif rule["type"] is int:
        value = "whole number, at least 1"
    else:
        value = f"number in {rule['interval']}"
    return code(key), words.get("method", f"{name}.{key}", key), value, show_default(found.default)


# ---- admin RPC


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
        "A token of role `read` may make the calls marked *read*, one of role `admin` all of them. The messages are "
        "also the schema of `--json`: the same names, null where an optional field is not set. Ids are text as "
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


# ---- metrics


def write_metrics() -> str:
    """The names that Prometheus sees, as the code makes them."""
    found = sorted({row for file in sorted((ROOT / "node").rglob("*.py")) for row in find_metrics(file)})
    return "\n".join(
        [
            "# Metrics\n",
            "A node answers `/metrics` where `http.listen` is set. Counters start at 0 with the process.\n",
            make_table(("name", "kind", "labels", "what it is"), found),
        ]
    )


def find_metrics(file: Path) -> Iterator[tuple[str, str, str, str]]:
    text = file.read_text()
    if '"fednode_' not in text:
        return
    tree = ast.parse(text)
    constants = {
        node.targets[0].id: str(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or len(call.args) < 2:
            continue
        name, words = (read_words(argument, constants) for argument in call.args[:2])
        if words is None or name is None or not name.startswith("fednode_"):
            continue
        called = ast.unparse(call.func).lower()
        kind = next((kind for kind in ("counter", "histogram") if kind in called), "gauge")
        name = f"{name}_total" if kind == "counter" else name
        given = [*call.args[2:], *(keyword.value for keyword in call.keywords)]
        labels = [read_words(label, {}) for item in given if isinstance(item, ast.Tuple) for label in item.elts]
        yield code(name), kind, ", ".join(code(label) for label in labels if label), words


def read_words(node: ast.expr, constants: Mapping[str, str]) -> str | None:
    """A text in the code, with the module's own constants put in; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        found = [constants.get(part.id) if isinstance(part, ast.Name) else read_words(part, {}) for part in parts]
        return None if None in found else "".join(map(str, found))
    return None


# ---- files

NOTES = re.compile(  # for whoever reads the code beside the plans it was written from
    r",? (?:exactly )?as PROTOCOL §\d+ lays them out|\s*\((?:§|PROTOCOL|DESIGN|SECURITY|ALGORITHMS|INTERFACES)[^()]*\)"
)


def write_files() -> str:
    """Every module by its room, with the first sentence of its docstring."""
    parts = [
        "# Every file\n",
        "One line for each module: the first sentence of its docstring. The rooms, and which may import which, are on "
        "the page [Architecture](/design/architecture.md).\n",
    ]
    for folder in find_folders():
        own = [file for file in sorted(folder.glob("*.py")) if file.name != "__init__.py"]
        name = str(folder.relative_to(ROOT))
        parts.append(f"## {name}/\n")
        if text := get_first_sentence(folder / "__init__.py"):
            parts.append(f"{text}\n")
        if own:
            rows = [(code(file.name), get_first_sentence(file)) for file in own]
            parts.append(make_table(("file", "what it is"), rows))
    return "\n".join(parts)


def find_folders() -> Iterator[Path]:
    for package in ("chain", "ml", "node"):
        for init in sorted((ROOT / package).rglob("__init__.py")):
            if init.parent.name != "pb":
                yield init.parent


def get_first_sentence(file: Path) -> str:
    text = NOTES.sub("", " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split()))
    found = re.match(r"(.+?\.)(?: [A-Z`(*]|$)", text)
    return escape(found[1] if found else text)


if __name__ == "__main__":
    main()
