"""The generated reference: commands, configuration, methods' options, admin RPC and metrics, from the code itself, and
the pages of the notebooks.

In git are those that README and others link to (`KEPT`). `make reference` writes them, and a test holds them to the
code; `make docs` writes the rest first. What the code has no words for, one line for each key that people write, is in
`descriptions.yaml`.
"""

from __future__ import annotations

import sys

import yaml

from generators.admin_rpc import write_admin_rpc
from generators.commands import write_commands
from generators.configuration import write_configuration
from generators.files import write_files
from generators.genesis import write_genesis
from generators.http_api import OPENAPI, write_document, write_http_api
from generators.methods import write_options, write_shared_options
from generators.metrics import write_metrics
from generators.notebooks import write_notebooks
from generators.words import DESCRIPTIONS, DOCS, Descriptions
from ml.specs import METHODS

KEPT = ("reference/commands.md", "reference/configuration.md", "reference/genesis.md", OPENAPI)
MARK = "<!-- Written by docs/generate.py; `make reference` writes it anew. -->\n"


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
        "reference/http-api.md": write_http_api(),
        "reference/files.md": write_files(),
    }
    pages |= {f"reference/options/{name}.md": write_options(name, words) for name in METHODS}
    pages |= write_notebooks()
    words.check_all_used()
    return {path: MARK + text.rstrip() + "\n" for path, text in pages.items()} | {OPENAPI: write_document()}


def main() -> None:
    """With `--rest` those that are not in git."""
    is_rest = sys.argv[1:] == ["--rest"]
    for path, text in generate().items():
        if is_rest and path in KEPT:
            continue
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text)


if __name__ == "__main__":
    main()
