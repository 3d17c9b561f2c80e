"""The pages of the notebooks: the cells of each file in docs/notebooks as text and code, without what they print."""

from __future__ import annotations

import json
from pathlib import Path

from generators.words import DOCS

NOTEBOOKS = DOCS / "notebooks"


def write_notebooks() -> dict[str, str]:
    """A page for each notebook, by its path below docs/."""
    return {f"reference/notebooks/{file.stem}.md": write_notebook(file) for file in sorted(NOTEBOOKS.glob("*.ipynb"))}


def write_notebook(file: Path) -> str:
    """The cells, and below the title where the notebook is to be had."""
    first, *others = (_write_cell(cell) for cell in json.loads(file.read_text())["cells"])
    title, _, text = first.partition("\n")
    notice = f"This page is a notebook: {{download}}`{file.name} </notebooks/{file.name}>`."
    return "\n\n".join([title, notice, text.strip(), *others])


def _write_cell(cell: dict[str, object]) -> str:
    source = cell["source"]
    text = "".join(source) if isinstance(source, list) else str(source)
    return f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
