"""The bare arithmetic of a round, for `node.bench.round`: prints the seconds of each round of a simulation, a line
each.

Run as `python -m node.bench.bare METHOD MODEL PARTITION CLIENTS ROUNDS SEED [KEY=VALUE…]`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ml.simulation.results import RoundResult
from ml.simulation.run import SimulationConfig, simulate
from node.config.settings import apply_settings, make_input, make_model


def main(arguments: Sequence[str]) -> None:
    method, model, partition, clients, rounds, seed, *settings = arguments
    own = [setting for setting in settings if "." not in setting or setting.startswith(("method.", "model."))]
    source = apply_settings({"method": {"name": method}, "model": make_model(model)}, own, ("method", "model"))
    config = SimulationConfig(
        method=source.value["method"],
        model=source.value["model"],
        input=make_input({"format": "digits"}, source.value["model"], None),
        partition=partition,
        clients=int(clients),
        rounds=int(rounds),
        seed=int(seed),
    )
    last_s = time.perf_counter()

    def on_round(_: RoundResult) -> None:
        nonlocal last_s
        now_s = time.perf_counter()
        sys.stdout.write(f"{now_s - last_s}\n")
        last_s = now_s

    simulate(config, on_round=on_round)


if __name__ == "__main__":
    main(sys.argv[1:])
