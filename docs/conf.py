"""The configuration of Sphinx: MyST for Markdown, furo for the look of the pages, nothing loaded from elsewhere."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "fednode"
author = "the fednode contributors"
project_copyright = "the fednode contributors"
version = release = _PROJECT["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build", "reference/options/*"]  # the latter are parts of the methods' pages
source_suffix = {".md": "markdown"}
nitpicky = True
smartquotes = False  # options begin with two hyphens

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"fednode {release}"
html_static_path = ["_static"]
html_css_files = ["extra.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options: dict[str, object] = {"top_of_page_buttons": []}
highlight_language = "none"

man_show_urls = False
man_pages = [
    (
        "reference/commands",
        "fednode",
        "train a model together with no server, no shared data and no trusted party",
        author,
        1,
    ),
    ("reference/configuration", "fednode-node.yaml", "the configuration of a node", author, 5),
    ("reference/genesis", "fednode-genesis.yaml", "what the members of a federation agree on", author, 5),
]
