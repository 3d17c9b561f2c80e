"""A site's own best round: the one after whose exchange the model here answered the site's val samples best. The best
round of the run (`chain.selection`) is computed from all members' measures; in personal methods a site's own model may
be best after another round. It is sent to nobody, and kept in a file beside the kept rounds of its run."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from chain.select import AUC
from ml.measures.val import ValMeasures
from node.errors import NodeError
from node.host.whole_file import writing_whole

_log = logging.getLogger(__name__)
FILE = "own-best.json"


@dataclass(frozen=True, slots=True)
class OwnBest:
    """Names the site's own best round, and its `score`: the val loss, or the val AUC, as `by` says."""

    round: int
    by: str
    score: float

    @classmethod
    def read(cls, run_dir: Path) -> OwnBest | None:
        """Returns the own best round; None where no round was measured, or the file is damaged."""
        try:
            told = json.loads((run_dir / FILE).read_bytes())
            return cls(int(told["round"]), str(told["by"]), float(told["score"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("%s: %s; the site's own best round is found anew", run_dir / FILE, error)
            return None

    def write(self, run_dir: Path) -> None:
        """Writes the file. Raises NodeError."""
        with writing_whole(run_dir / FILE, over=True) as file:
            file.write(json.dumps(asdict(self)).encode())

    def is_behind(self, score: float) -> bool:
        return score > self.score if self.by == AUC else score < self.score


def note_own_best(run_dir: Path, number: int, by: str, metrics: Mapping[str, float]) -> None:
    """Compares the measures of an applied round, and keeps the round as own best where it is better than all before."""
    measured = ValMeasures.from_metrics(metrics)
    score = None if measured is None else measured.auc if by == AUC else measured.loss
    if score is None or not run_dir.is_dir():  # a worker that keeps states makes it
        return
    best = OwnBest.read(run_dir)
    if best is not None and best.by == by and not best.is_behind(score):
        return
    try:
        OwnBest(number, by, score).write(run_dir)
    except (NodeError, OSError) as error:
        _log.error("The site's own best round could not be noted: %s", error)
