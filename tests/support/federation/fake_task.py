"""The run that a fake worker is started for: its terms are a real one's, its initial model nobody looks at."""

from __future__ import annotations

from pathlib import Path

from node.training.trainer import RunTask
from support.data.chains import make_genesis, make_keys

GENESIS = make_genesis(make_keys(4))
TASK = RunTask(GENESIS.run, GENESIS.rules.limits, 4, Path("/nonexistent"))
