"""The page of genesis.yaml: every key that all members share."""

from __future__ import annotations

from dataclasses import asdict, fields

from chain.genesis import PROTOCOL_VERSION
from chain.rules import MAX_ABS, QUORUMS, PowRules
from chain.waits import PROFILES
from generators.words import Descriptions, code, make_table, show_default

GENESIS_KEYS: tuple[tuple[str, str, str], ...] = (
    ("protocol", str(PROTOCOL_VERSION), "required"),
    ("chain_name", "text", "required"),
    ("created_at", "time in UTC", "required"),
    ("members", "list", "required"),
    ("method", "mapping", "required"),
    ("model", "mapping", "required"),
    ("classes", "list of text", "required"),
    ("task", "classification, multilabel or regression", "classification"),
    ("target", "mapping", "none"),
    ("input", "mapping", "required"),
    ("initial_model", "64 hexadecimal digits", "required"),
    ("schema", "mapping", "required"),
    ("rounds", "whole number", "required"),
    ("select", "mapping", "none"),
    ("select.by", "`loss` or `auc`", code("loss")),
    ("select.patience", "whole number", code("0")),
    ("select.min_delta", "0 to 1", code("0")),
    ("select.evaluate", "`true` or `false`", code("false")),
    ("quorum", ", ".join(map(code, QUORUMS)), "required"),
    ("profile", ", ".join(map(code, PROFILES)), "required"),
    ("waits", "mapping", "by `profile`"),
    *(
        (f"pow.{item.name}", "whole number", "by `difficulty`" if item.name in ("min", "max") else "required")
        for item in fields(PowRules)
    ),
    ("pow.adaptive", "`true` or `false`", code("false")),
    *(
        (f"limits.{name}", kind, default)
        for name, kind, default in (
            ("max_weight", "whole number", "required"),
            ("payload_mib", "whole number", "required"),
            ("max_abs", "number above 0", show_default(MAX_ABS)),
        )
    ),
    ("min_contributions", "1 to the quorum", "the quorum"),
    ("keep_heights", "whole number, at least 1", code("2")),
    ("evidence_heights", "whole number", code("100")),
    ("forked_from", "mapping", "none"),
)


def write_genesis(words: Descriptions) -> str:
    parts = [
        "# genesis.yaml\n",
        "What all members share. Its hash names the chain, so whoever changes a value other than an address starts "
        "another chain. `fednode genesis new` and `fednode testnet` write it with every default spelled out; "
        "`fednode genesis show` checks and prints it.\n",
        make_table(
            ("key", "what it is", "value", "default"),
            [(code(key), words.get("genesis.yaml", key), kind, default) for key, kind, default in GENESIS_KEYS],
        ),
        "## waits\n",
        "`profile` sets all of them: `local` is for one machine, `site` for one network, `wide` for the internet.\n",
        make_table(
            ("key", "what it is", *(code(name) for name in PROFILES)),
            [
                (
                    code(f"waits.{item.name}"),
                    words.get("waits", item.name),
                    *(f"{asdict(p)[item.name]:g}" for p in PROFILES.values()),
                )
                for item in fields(PROFILES["local"])
            ],
        ),
    ]
    return "\n".join(parts)
