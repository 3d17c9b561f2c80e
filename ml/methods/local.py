"""Local: everyone trains alone; no messages (ALGORITHMS §9). What any exchange has to beat."""

from __future__ import annotations

from collections.abc import Mapping

from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import Classifies
from ml.payload import Arrays
from ml.specs import LocalSpec


class Local(Classifies[LocalSpec]):
    """Cross-entropy on the client's own samples."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        return 1, {}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        pass
