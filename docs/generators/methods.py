"""The pages of the methods' options: those that many have, and each method's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from generators.words import Descriptions, code, make_table, show_default
from ml.specs import METHODS
from ml.specs.hyperparameters import Hyperparameters

PLAIN_METHODS = ("fedavg", "dfpl", "uapdfl")  # whose options that others share are on the page of the reference


def write_shared_options(words: Descriptions) -> str:
    """Those that many methods have; each method's page has its own."""
    names = [name for name in METHODS if name != "local"]
    texts = {
        "local training": "All methods have these.",
        "aggregation": (
            "For methods in which all members compute one aggregate. See "
            "[Members that lie](../faults.md#members-that-lie)."
        ),
        "payloads": "For methods that send models.",
        "outer optimiser": (
            "For methods that vote on a model: the common model goes on by an optimiser's step. See "
            "[An outer optimiser](../methods/baselines.md#outer)."
        ),
        "peers": "For methods in which each client draws a few others.",
    }
    parts = [
        "# Options of all methods\n",
        "They stand under `method` in genesis. On the command line they are `--set KEY=VALUE` for `testnet`, `demo`, "
        "`simulate` and `genesis new`, and `method.KEY` in an experiment. The page of each "
        "[method](../methods/index.md) has its own options and the defaults that differ.\n",
    ]
    for title, keys in GROUPS.items():
        rows = []
        for key in keys:
            plain = METHODS[next(name for name in (*PLAIN_METHODS, *names) if key in get_keys(name))]
            rows.append(make_option_row(plain.name, key, words))
        parts += [
            f"## {title.capitalize()}\n",
            f"{texts[title]}\n",
            make_table(("option", "what it is", "value", "default"), rows),
        ]
    return "\n".join(parts)


GROUPS = {
    "local training": tuple(Hyperparameters.keys()),
    "aggregation": ("aggregation", "weight_cap", "clip"),
    "payloads": ("weights", "bn_buffers", "model_dtype"),
    "outer optimiser": tuple(f"outer.{name}" for name in ("optimizer", "lr", "beta1", "beta2", "eps")),
    "peers": ("num_peers",),
}
SHARED = {key for keys in GROUPS.values() for key in keys}


def write_options(name: str, words: Descriptions) -> str:
    """The options of one method that not all have, or that have another default there; a part of that method's page."""
    keys = get_keys(name)
    own = [key for key in keys if key not in SHARED or is_special(name, key)]
    text = make_table(("option", "what it is", "value", "default"), [make_option_row(name, key, words) for key in own])
    shared = []
    for group, members in GROUPS.items():
        there = [key for key in members if key in keys and key not in own]
        whole = len(there) + len([key for key in members if key in own]) == len(members)
        if there:
            target = f"[{group}](/reference/methods.md#{group.replace(' ', '-')})"
            shared.append(target if whole else f"{target} (only {', '.join(map(code, there))})")
    also = f"It {'also ' if own else ''}has the options of {join_words(shared)}.\n"
    return (text + "\n" if own else "") + also


def join_words(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def is_special(name: str, key: str) -> bool:
    """Whether an option that many share has another default, or other values, in this method."""
    usual = next(get_keys(plain)[key] for plain in PLAIN_METHODS if key in get_keys(plain))
    here = get_keys(name)[key]
    return (here.default, dict(here.metadata)) != (usual.default, dict(usual.metadata))


def get_keys(name: str) -> dict[str, Any]:
    """The options of a method by the name they have in genesis."""
    return METHODS[name].settings.keys()


def make_option_row(name: str, key: str, words: Descriptions) -> tuple[str, str, str, str]:
    found = get_keys(name)[key]
    rule = found.metadata
    if rule["type"] is str:
        value = ", ".join(map(code, rule["choices"]))
    elif rule["type"] is bool:
        value = "`true` or `false`"
    elif rule["type"] is int:
        value = "whole number, {} to {}".format(*rule["span"]) if "span" in rule else "whole number, at least 1"
    else:
        value = f"number in {rule['interval']}"
    return code(key), words.get("method", f"{name}.{key}", key), value, show_default(found.default)
