"""The writers of the generated reference, one module a page; `docs/generate.py` runs them."""
