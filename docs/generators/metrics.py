"""The page of the metrics: the names that Prometheus sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from generators.words import ROOT, code, make_table


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
