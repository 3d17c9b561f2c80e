"""Python processes of our own, and whose `node`, `chain` and `ml` they import: ours, whatever else has such a name.

A user's `ml/` or `node.py` may lie in the working directory or on PYTHONPATH, before us. So the packages are imported
once, from beside this file, before anything asks for them; what is imported from them later is looked for in them. The
search path itself stays as the user has it, for models of their own.

    python -P child.py MODULE [ARGUMENTS]     as `python -m MODULE`, with our packages and without the directory
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

NAMES = ("fednode", "node", "chain", "ml")  # all that the distribution brings
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def make_arguments(module: str, *arguments: str) -> tuple[str, ...]:
    """The arguments with which a Python interpreter runs `module` of ours as its program."""
    return ("-P", os.path.abspath(__file__), module, *arguments)


def make_command(module: str, *arguments: str) -> tuple[str, ...]:
    """A command line that runs `module` of ours in a process of its own, by the interpreter that runs this one."""
    return (sys.executable, *make_arguments(module, *arguments))


def claim_names() -> None:
    """Imports our packages under their names. Raises ImportError where a module of somebody else's has one already."""
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
    """Meanwhile whatever lies beside our packages is found before anything else, also by processes that are spawned."""
    sys.path.insert(0, ROOT)
    try:
        yield
    finally:
        sys.path.remove(ROOT)


def leave_out_directory() -> None:
    """Takes the working directory off the search path, where `python -m` has put it: a command never looks there."""
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
