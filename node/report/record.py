"""The record of a run's report: the chain's history, this node's measurements, and the verdict on the chain.

`gather` reads it from a running node or from the directory of a stopped one. As JSON it has the records of `rounds`,
`chain evidence` and `chain verify` under the same names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from chain.schema import format_time
from chain.signing import encode_id
from ml.errors import MlError
from node.admin.json_view import to_json
from node.admin.ledger_client import LedgerClient
from node.errors import NodeError
from node.finite import to_finite
from node.pb import admin_pb2 as pb
from node.report.history import ChainChange, RunHistory, read_history
from node.report.privacy import Hidden
from node.version import get_version


@dataclass(frozen=True, slots=True)
class RunReport:
    """The content of the page. `rounds` are as this node recorded them, the oldest first; `verified` is None where the
    chain was not verified; `node` names the node that reports, and is empty where that is unknown."""

    made_at: str
    version: str
    node: str
    history: RunHistory
    rounds: tuple[pb.Round, ...]
    evidence: tuple[pb.EvidenceView, ...]
    verified: pb.VerifyReport | None
    hidden: Hidden | None = None
    evaluations: tuple[pb.EvaluationView, ...] = ()  # of this run's models, at every site

    @property
    def measured(self) -> pb.Round | None:
        """Returns the newest round of the run that was measured here."""
        return next((each for each in reversed(self.rounds) if each.HasField("measures")), None)

    @property
    def published(self) -> pb.Round | None:
        """Returns the newest round for which members have published measures."""
        return next((each for each in reversed(self.rounds) if each.published), None)

    def to_mapping(self) -> dict[str, Any]:
        """Returns an object for JSON; numbers that are not finite are null."""
        history = self.history
        mapping: Mapping[str, Any] = {
            "made_at": self.made_at,
            "version": self.version,
            "node": self.node or None,
            "chain": {
                "id": history.genesis.chain_id.hex(),
                "name": history.genesis.chain_name,
                "founders": [
                    {"id": encode_id(founder.key), "name": founder.name} for founder in history.genesis.founders
                ],
                "head": asdict(history.head),
            },
            "run": {
                "number": history.run.number,
                "phase": history.phase,
                "terms": history.get_terms(),
                "rules": history.state.rules.to_mapping(),
                "rounds": history.run.rounds,
                "made": len(history.rounds),
                "began": history.began,
                "started": history.started,
                "last": history.last,
            },
            "changes": [_show_change(change) for change in history.changes],
            "participants": [asdict(one) for one in history.list_participants()],
            "weights_are_samples": history.counts_samples,
            "rounds": [to_json(each) for each in self.rounds],
            "evidence": [to_json(each) for each in self.evidence],
            "evaluations": [to_json(each) for each in self.evaluations],
            "verified": None if self.verified is None else to_json(self.verified),
            **({} if self.hidden is None else {"privacy": self.hidden.to_json()}),
        }
        shown: dict[str, Any] = to_finite(mapping)
        return shown


def _show_change(change: ChainChange) -> dict[str, Any]:
    shown = asdict(change)
    shown["differences"] = [{"path": each.path, "old": each.old, "new": each.new} for each in change.differences]
    return shown


def gather(
    source: LedgerClient,
    number: int = 0,
    *,
    node: str = "",
    data_dir: Path | None = None,
    verify: bool = True,
    on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
) -> RunReport:
    """Makes the report of the run of this number, 0 for the newest; with `verify` the whole chain is verified deeply.
    `data_dir`, if there is one, has the site's account of its privacy.

    Raises NotFound where there was no such run, and VerificationFailed for blocks that are no chain.
    """
    history = read_history(source.genesis, source.export(0, None), number)
    return RunReport(
        made_at=format_time(int(time.time()) * 1000),
        version=get_version(),
        node=node,
        history=history,
        rounds=tuple(_read_rounds(source, history)),
        evidence=tuple(each for each in source.list_evidence().evidence if history.began < each.height <= history.last),
        verified=source.verify(deep=True, on_progress=on_progress) if verify else None,
        hidden=_find_hidden(history, data_dir),
        evaluations=tuple(each for each in source.list_evaluations() if history.run.number in (each.run, each.of_run)),
    )


def _find_hidden(history: RunHistory, data_dir: Path | None) -> Hidden | None:
    try:
        return Hidden.of(history.run, data_dir)
    except MlError as error:
        raise NodeError(f"the report: {error}") from error


def _read_rounds(source: LedgerClient, history: RunHistory) -> Iterator[pb.Round]:
    rounds = source.iterate_rounds(history.began + 1, reverse=True) if history.began < history.last else ()
    return takewhile(lambda each: each.height <= history.last, rounds)
