"""The cells of a notebook, run as a kernel runs them: one after the other on a loop that runs, with `await` beside.

It is started as a program of its own (`python tests/support/notebooks.py FILE`), prints what the cells print, and shows
the value of a cell's last line: `<png>` of a picture, the first line of anything else.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any

NAME = "_shown"


def read_cells(file: Path) -> list[str]:
    """Returns the code of the cells."""
    cells = json.loads(file.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


async def run_cell(source: str, place: str, names: dict[str, Any]) -> None:
    tree = ast.parse(source, place)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.fix_missing_locations(
            ast.copy_location(ast.Assign([ast.Name(NAME, ast.Store())], last.value), last)
        )
    ran = eval(compile(tree, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(ran):
        await ran
    show(names.pop(NAME, None))


def show(value: Any) -> None:
    if (picture := getattr(value, "_repr_png_", None)) is not None:
        print("<png>" if picture().startswith(b"\x89PNG") else "no picture")
    elif value is not None:
        getattr(value, "_repr_html_", lambda: "")()
        print(repr(value).splitlines()[0])


async def run_notebook(file: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for i, source in enumerate(read_cells(file), start=1):
        await run_cell(source, f"{file.name}, cell {i}", names)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    asyncio.run(run_notebook(Path(sys.argv[1])))
