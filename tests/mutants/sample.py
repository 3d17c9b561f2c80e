"""A seeded sample of mutants: small changes of the rules' source, of which a test should notice each.

cosmic-ray makes them. A mutant is known by its function and its line's text, so that it is found again in a later tree.
"""

from __future__ import annotations

import ast
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

SAMPLE = Path(__file__).parent / "sample.json"
SMALLEST_GROUP = 8

_ROUND = ("machine", "collecting", "candidates", "commit", "signer", "sync", "record")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "chain/finality": ("chain/finality*.py", "chain/finality/**/*.py"),
    "chain/validation": ("chain/validation*.py", "chain/validation/**/*.py"),
    "chain/proposals": ("chain/proposals*.py", "chain/proposals/**/*.py"),
    "chain/changes": ("chain/changes/**/*.py",),
    "node/consensus": tuple(
        pattern for name in _ROUND for pattern in (f"node/consensus/{name}*.py", f"node/consensus/*/{name}*.py")
    ),
    "node/payloads/checks": ("node/payloads/checks*.py", "node/payloads/checks/**/*.py"),
    "ml/aggregation": ("ml/aggregation/**/*.py",),
    "ml/specs": ("ml/specs/**/*.py",),
    "ml/methods": ("ml/methods/**/*.py",),
}

# An operator becomes its neighbour: what raises wherever it is run says no more than that a test reaches it, and an
# enumeration's `is` has the answer of its `==`.
_NEAR = {
    "Add": ["Sub"],
    "Sub": ["Add"],
    "Mul": ["Div"],
    "Div": ["Mul"],
    "FloorDiv": ["Mul"],
    "Mod": ["FloorDiv"],
    "Pow": ["Mul"],
    "RShift": ["LShift"],
    "LShift": ["RShift"],
    "BitOr": ["BitAnd"],
    "BitAnd": ["BitOr"],
    "BitXor": ["BitAnd"],
    "Eq": ["NotEq"],
    "NotEq": ["Eq"],
    "Lt": ["LtE", "GtE"],
    "LtE": ["Lt", "Gt"],
    "Gt": ["GtE", "LtE"],
    "GtE": ["Gt", "Lt"],
    "Is": ["IsNot"],
    "IsNot": ["Is"],
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one place; `ordinal` counts those of the same operator on lines of the same text in the function."""

    file: str
    definition: str
    operator: str
    line: str
    ordinal: int

    @property
    def key(self) -> str:
        """Returns the name of the mutant in files of results."""
        return f"{self.file}:{self.definition}:{self.operator}:{self.ordinal}:{self.line}"

    @property
    def group(self) -> str:
        """Returns the group of files it is counted in."""
        return get_group(self.file)


@dataclass(frozen=True, slots=True)
class Place:
    """A mutant in the source of one tree."""

    mutant: Mutant
    occurrence: int
    position: tuple[int, int]
    lines: frozenset[int]  # whose tests reach it


@dataclass(frozen=True, slots=True)
class Edit:
    """The characters of a source that a mutant replaces, by `text`."""

    start: int
    end: int
    text: str


def get_group(file: str) -> str:
    """Returns the first group whose prefix the file has."""
    return next((group for group in GROUPS if file.startswith(group)), "other")


def draw_sample(tree: Path, seed: int, size: int) -> list[Mutant]:
    """Draws about `size` mutants, at most one a position: a floor for each group, the rest by their positions."""
    rng = random.Random(seed)
    places = {group: _list_positions(tree, group) for group in GROUPS}
    num_positions = sum(map(len, places.values()))
    drawn = []
    for choices in places.values():
        quota = SMALLEST_GROUP + round((size - SMALLEST_GROUP * len(GROUPS)) * len(choices) / num_positions)
        rng.shuffle(choices)
        compiled = (place for place in map(rng.choice, choices) if _is_python(tree, place))
        drawn += [place.mutant for place in islice(compiled, quota)]
    return drawn


def save_sample(mutants: Sequence[Mutant], path: Path = SAMPLE) -> None:
    """Writes one mutant a line."""
    lines = ",\n".join(json.dumps(asdict(mutant)) for mutant in mutants)
    path.write_text(f"[\n{lines}\n]\n")


def load_sample(path: Path = SAMPLE) -> list[Mutant]:
    """Reads what `save_sample` has written."""
    return [Mutant(**mutant) for mutant in json.loads(path.read_text())]


def find_places(tree: Path, mutants: Sequence[Mutant]) -> dict[Mutant, Place]:
    """Finds the mutants in a tree; those whose function or line is gone are not in the answer."""
    found = {}
    for file in sorted({mutant.file for mutant in mutants}):
        if (tree / file).exists():
            found.update({place.mutant: place for place in list_places(tree, file)})
    return {mutant: found[mutant] for mutant in mutants if mutant in found}


def list_places(tree: Path, file: str) -> Iterator[Place]:
    """Lists every mutant of a file that may matter."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    source = (tree / file).read_text()
    outline = _Outline(source)
    nodes = list(ast_nodes(get_ast(source)))
    seen: Counter[tuple[str, str, str]] = Counter()
    for name in sorted(filter(_is_wanted, cosmic_ray.plugins.operator_names())):
        operator = cosmic_ray.plugins.get_operator(name)()
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, position in enumerate(positions):
            if not outline.matters(position, name):
                continue
            definition, _ = outline.get_definition(position[0])
            text = outline.lines[position[0] - 1].strip()
            same = (definition, name, text)
            mutant = Mutant(file, definition, name, text, seen[same])
            seen[same] += 1
            yield Place(mutant, occurrence, position, outline.get_lines_reaching(position[0]))


def make_edit(tree: Path, place: Place) -> Edit:
    """Makes the mutant's change of the source in `tree`."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (tree / place.mutant.file).read_text()
    mutated = mutate_code(source, get_operator(place.mutant.operator)(), place.occurrence)
    assert mutated is not None, place
    start = _count_equal(source, mutated)
    kept = _count_equal(source[:start:-1], mutated[:start:-1])
    return Edit(start, len(source) - kept, mutated[start : len(mutated) - kept])


def apply_edits(source: str, edits: Sequence[Edit]) -> str:
    """Returns the source with all the changes, which must not overlap."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def _list_positions(tree: Path, group: str) -> list[list[Place]]:
    files = sorted({path for pattern in GROUPS[group] for path in tree.glob(pattern)})
    positions: dict[tuple[str, tuple[int, int]], list[Place]] = {}
    for file in (str(path.relative_to(tree)) for path in files):
        for place in list_places(tree, file):
            positions.setdefault((file, place.position), []).append(place)
    return list(positions.values())


def _count_equal(ours: str, theirs: str) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))


def _is_python(tree: Path, place: Place) -> bool:
    """Says no where cosmic-ray takes the `**` of a call for a power."""
    try:
        ast.parse(apply_edits((tree / place.mutant.file).read_text(), [make_edit(tree, place)]))
    except SyntaxError:
        return False
    return True


def _is_wanted(operator: str) -> bool:
    kind, *change = operator.removeprefix("core/").split("_")
    if kind in ("ReplaceBinaryOperator", "ReplaceComparisonOperator"):
        return change[1] in _NEAR[change[0]]
    if kind == "ReplaceUnaryOperator":
        return change[0] == "Delete" or change == ["USub", "UAdd"]
    # A removed decorator fails at the import or never; the last two want to be told names of variables.
    return kind not in ("NoOp", "RemoveDecorator", "VariableReplacer", "VariableInserter")


@dataclass(frozen=True, slots=True)
class _Span:
    """The place of a node: lines, and columns in bytes."""

    start: tuple[int, int]
    end: tuple[int, int]

    @classmethod
    def of(cls, node: ast.expr | ast.stmt) -> _Span:
        """Reads it from the node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return cls((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))

    def has(self, line: int, column: int) -> bool:
        """Says that the character is the node's."""
        return self.start <= (line, column) < self.end


class _Outline:
    """The functions, statements and annotations of a source."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines()
        self._definitions: list[tuple[range, str, range]] = []  # all lines, name, lines of a function's body
        self._statements: list[range] = []
        self._idle: list[_Span] = []
        self._arithmetic: list[_Span] = []
        self._read(ast.parse(source), ())

    def matters(self, position: tuple[int, int], operator: str) -> bool:
        """Says no of annotations, aliases of types, decorators, what only a type checker reads, and stars."""
        line, column = position[0], len(self.lines[position[0] - 1][: position[1]].encode())
        if "ReplaceBinary" in operator and not any(span.has(line, column) for span in self._arithmetic):
            return False
        if "_BitOr_" in operator and not self.get_definition(line)[1]:
            return False
        return not any(span.has(line, column) for span in self._idle)

    def get_definition(self, line: int) -> tuple[str, range]:
        """Returns the qualified name of the innermost function or class, and the lines of a function's body."""
        found = [(lines, name, body) for lines, name, body in self._definitions if line in lines]
        _, name, body = min(found, key=lambda entry: len(entry[0]), default=(range(0), "", range(0)))
        return name, body

    def get_lines_reaching(self, line: int) -> frozenset[int]:
        """Returns the lines of the statement or of its head; where an import runs it, those of all that may read it."""
        body = self.get_definition(line)[1]
        if line in body:
            statement = min((lines for lines in self._statements if line in lines), key=len)
            return frozenset(statement)
        return frozenset(body or chain.from_iterable(body for _, _, body in self._definitions))

    def _read(self, node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
            first = min(part.lineno for part in (node, *node.decorator_list))
            assert node.end_lineno is not None
            lines = range(first, node.end_lineno + 1)
            body = range(0) if isinstance(node, ast.ClassDef) else range(node.body[0].lineno, node.end_lineno + 1)
            self._definitions.append((lines, ".".join(names), body))
        if isinstance(node, ast.BinOp):
            self._arithmetic.append(_Span.of(node))
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            self._add_statement(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self._idle.append(_Span.of(node))
        notes = [
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
            *getattr(node, "decorator_list", ()),
        ]
        self._idle += [_Span.of(note) for note in notes if isinstance(note, ast.expr)]
        for child in ast.iter_child_nodes(node):
            self._read(child, names)

    def _add_statement(self, node: ast.stmt | ast.ExceptHandler | ast.match_case) -> None:
        first = node.pattern if isinstance(node, ast.match_case) else node
        start = min(part.lineno for part in (first, *getattr(node, "decorator_list", ())))
        body = getattr(node, "body", None) or getattr(node, "cases", None)
        if not body:
            end = getattr(node, "end_lineno", None) or start
        else:
            after = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
            end = max(start, after.lineno - 1)
        self._statements.append(range(start, end + 1))
