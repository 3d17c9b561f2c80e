"""A rule over the source: what makes or takes secret numbers names no generator of numpy, torch or Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = (  # whole
    "ml/secret_stream.py",
    "ml/gaussian.py",
    "ml/training/private.py",
    "ml/clients/privacy.py",
    "ml/data/hidden_statistics.py",
    "ml/aggregation/masks.py",
    "node/consensus/learning/masks.py",
    "node/consensus/learning/masking.py",
)
PARTS = {"draw_by_chance", "secret_stream", "make_prototype_privacy", "make_privacy", "hide_update", "add_noise"}
GENERATORS = {
    *("Generator", "default_rng", "RandomState", "SeedSequence", "PCG64", "Philox", "MT19937", "numpy_rng", "rng"),
    *("manual_seed", "seed_torch", "default_generator", "fork_rng", "initial_seed"),
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli", "multinomial"),
    *("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "standard_normal", "getrandbits"),
}


def list_sources() -> Iterator[Path]:
    for room in ("ml", "node", "chain", "fednode"):
        yield from sorted((ROOT / room).rglob("*.py"))


def find_parts(tree: ast.Module) -> Iterator[ast.AST]:
    """The functions that make a secret or take a stream of secret numbers, and the classes that keep one."""
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            notes = [each.annotation for each in (*part.args.args, *part.args.kwonlyargs)] + [part.returns]
            if part.name in PARTS or any(takes_stream(note) for note in notes):
                yield part
        elif isinstance(part, ast.ClassDef) and any(map(keeps_stream, part.body)):
            yield part


def keeps_stream(line: ast.stmt) -> bool:
    return isinstance(line, ast.AnnAssign) and takes_stream(line.annotation)


def takes_stream(note: ast.expr | None) -> bool:
    return note is not None and any(isinstance(each, ast.Name) and each.id == "SecretStream" for each in ast.walk(note))


def find_generators(part: ast.AST) -> list[str]:
    """The names of generators, and of what draws from one, in a piece of source."""
    found = []
    for each in ast.walk(part):
        if isinstance(each, ast.Import | ast.ImportFrom):
            module = each.module if isinstance(each, ast.ImportFrom) else None
            named = {alias.name for alias in each.names}
            found += [name for name in named if name in GENERATORS or "random" in (name, module)]
        elif isinstance(each, ast.Name) and each.id in GENERATORS | {"random"}:
            found.append(each.id)
        elif isinstance(each, ast.Attribute):
            is_module = each.attr == "random" and isinstance(each.value, ast.Name) and each.value.id in ("np", "torch")
            if each.attr in GENERATORS or is_module:
                found.append(each.attr)
    return found


def find_all(path: Path) -> list[str]:
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    if name not in FILES and not any(word in text for word in ("SecretStream", *PARTS)):
        return []
    tree = ast.parse(text)
    parts = [tree] if name in FILES else list(find_parts(tree))
    return [f"{name}: {found}" for part in parts for found in find_generators(part)]


def test_what_is_secret_comes_from_no_generator_of_numpy_or_torch() -> None:
    assert [found for path in list_sources() for found in find_all(path)] == []


def test_every_place_that_the_rule_names_is_there() -> None:
    assert all((ROOT / name).is_file() for name in FILES)
    everything = "".join(path.read_text(encoding="utf-8") for path in list_sources())
    assert [name for name in PARTS if f"def {name}(" not in everything] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def secret_stream(self):\n    return np.random.default_rng(secrets.randbits(128))", True),
        ("def secret_stream(self, device):\n    return torch.Generator(device).manual_seed(1)", True),
        ("def draw_by_chance(n, rng: Generator): ...", True),
        ("def f(stream: SecretStream):\n    return torch.randn(3)", True),
        ("def f(stream: SecretStream):\n    x.normal_()", True),
        ("class Privacy:\n    stream: SecretStream\n    generator: torch.Generator", True),
        ("def f() -> SecretStream:\n    import random", True),
        ("def f(stream: SecretStream):\n    return stream.random(3) < 0.5", False),
        ("def f(generator: torch.Generator):\n    return torch.randn(3)", False),  # nothing secret
    ],
)
def test_the_rule_sees_a_generator_where_one_is(source: str, *, found: bool) -> None:
    assert any(find_generators(part) for part in find_parts(ast.parse(source))) is found
