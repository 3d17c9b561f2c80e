"""Python processes of fednode, which import fednode's own `node`, `chain` and `ml`, even where others have those names.

A user's `ml/` or `node.py` may lie in the working directory or on PYTHONPATH, before fednode's. So the packages are
imported once, from beside this file, before anything else imports them; later imports from them search only in them.
The search path itself stays as the user has it, for models of their own.

    python -P child.py MODULE [ARGUMENTS]     as `python -m MODULE`, with fednode's packages, without the directory
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

NAMES = ("fednode", "node", "chain", "ml")  # the packages of the distribution
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def make_arguments(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns the arguments with which a Python interpreter runs fednode's `module` as its program."""
    return ("-P", os.path.abspath(__file__), module, *arguments)


def make_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns a command line that runs fednode's `module` in a process of its own, by this process's interpreter."""
    return (sys.executable, *make_arguments(module, *arguments))


def claim_names() -> None:
    """Imports fednode's packages under their names. Raises ImportError where a foreign module has one of them
    already."""
    with found_first():
        for name in NAMES:
            import_module(name)
    for name in NAMES:
        module = sys.modules[name]
        places = [os.path.realpath(place) for place in getattr(module, "__path__", ())]
        if os.path.realpath(os.path.join(ROOT, name)) not in places:
            found = getattr(module, "__file__", None) or ", ".join(places)
            raise ImportError(f"expected {name!r} to be fednode's package, got {found}; give that another name")


@contextmanager
def found_first() -> Iterator[None]:
    """Has modules beside fednode's packages found before any other, also by processes that are spawned, for as long as
    the context lasts."""
    sys.path.insert(0, ROOT)
    try:
        yield
    finally:
        sys.path.remove(ROOT)


def leave_out_directory() -> None:
    """Removes the working directory from the search path, where `python -m` has put it: a command never imports from
    there."""
    with suppress(FileNotFoundError):  # a directory that was removed
        if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
            del sys.path[0]


def _run(module: str) -> None:
    from runpy import run_module

    claim_names()
    run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    del sys.argv[0]
    _run(sys.argv[0])
