"""`make bench-defaults`: every arm on every fold of every table, and what follows from it site by site."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.defaults.arms import ARMS, RIVALS, cut_test_rows, judge, judge_mixed, judge_rival, play
from bench.defaults.tables import TABLES, Table
from ml.tasks import REGRESSION
from node.bench.figures import Report
from node.experiments.measured import describe_torch
from node.host.machine import get_machine

Row = dict[str, Any]
COMPARED = ("together", "mixed")  # with all other arms


def run_defaults_bench(
    names: Sequence[str], arms: Sequence[str], *, folds: int, repeats: int, rounds: int, report: Report
) -> dict[str, Any]:
    """By table and arm: the means over folds of all measures, site by site. `together` is always there. Raises as
    `simulate`."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of what is odd in the tables, which each fold would say again
    figures: dict[str, Any] = {"machine": {**get_machine(), **describe_torch(torch.device("cpu"), 1)}, "tables": {}}
    for name in names:
        table = TABLES[name]()
        if table is None:
            report(f"{name}: not here: make bench-defaults-data")
            continue
        report(f"{name}: {len(table.frame)} rows at {len(set(table.sites))} sites")
        figures["tables"][name] = found = _measure(table, arms, folds, repeats, rounds)
        report(f"{name}: {found['measure']} {found['arms']['together'][found['measure']]['mean']:.3f} together")
    return figures


def _measure(table: Table, arms: Sequence[str], folds: int, repeats: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[list[Row]]] = {}
    for seed in range(repeats):
        for fold in list(table.split(seed))[:folds]:
            for arm, rows in _play_all(table, fold, arms, rounds):
                found.setdefault(arm, []).append(rows)
    sites, measure = sorted(set(table.sites)), "r2" if table.task == REGRESSION else "auc"
    return {
        "sites": {site: int((table.sites == site).sum()) for site in sites},
        "measure": measure,
        "arms": {arm: _summarise(rows, len(sites)) for arm, rows in found.items()},
        **{arm: _compare(found, arm, len(sites), measure) for arm in COMPARED if arm in found},
    }


def _play_all(
    table: Table, fold: Mapping[str, Any], arms: Sequence[str], rounds: int
) -> Iterator[tuple[str, list[Row]]]:
    with tempfile.TemporaryDirectory(prefix="fednode-defaults-") as directory:
        owners = play(table, fold, ARMS["together"], Path(directory), rounds)
        yield "together", [judge(client) for client in owners]
        for name in arms:
            if name != "together" and table.task in ARMS[name].tasks:
                clients = play(table, fold, ARMS[name], Path(directory), rounds)
                if ARMS[name].mixed:
                    alone = play(table, fold, replace(ARMS[name], method="local"), Path(directory), rounds)
                    yield name, [judge_mixed(*both) for both in zip(clients, alone, strict=True)]
                    continue
                if ARMS[name].pooled:
                    yield name, [judge(clients[0], rows) for rows in cut_test_rows(clients[0], owners)]
                    continue
                yield name, [judge(client) for client in clients]
        for name in RIVALS:
            yield f"{name}, alone", [judge_rival(name, [owner], owner) for owner in owners]
            yield f"{name}, pooled", [judge_rival(name, owners, owner) for owner in owners]


def _summarise(folds: Sequence[Sequence[Row]], num_sites: int) -> dict[str, Any]:
    """The mean over folds by site, and over the sites of that."""
    keys = sorted({key for rows in folds for row in rows for key in row})
    by_site = {key: [_mean(rows[i].get(key) for rows in folds) for i in range(num_sites)] for key in keys}
    return {key: {"mean": _mean(values), "sites": values} for key, values in by_site.items()}


def _compare(found: Mapping[str, Sequence[Sequence[Row]]], own: str, num_sites: int, key: str) -> dict[str, Any]:
    """Paired differences of an arm from each other one, fold by fold: by site the mean and its standard error, and the
    share of sites that are not behind by more than that."""
    told = {}
    for arm, folds in found.items():
        pairs = zip(found[own], folds, strict=True)
        differences = [
            [ours[i].get(key, np.nan) - theirs[i].get(key, np.nan) for i in range(num_sites)] for ours, theirs in pairs
        ]
        array = np.array(differences)
        means = [_mean(column) for column in array.T]
        errors = [_compute_error(column) for column in array.T]
        known = [(mean, error) for mean, error in zip(means, errors, strict=True) if mean is not None]
        kept = [mean >= -error for mean, error in known]
        told[arm] = {"mean": _mean(means), "sites": means, "errors": errors, "not_behind": _mean(kept)}
    return {arm: row for arm, row in told.items() if arm != own}


def _mean(values: Any) -> float | None:
    kept = [float(value) for value in values if value is not None and not np.isnan(value)]
    return float(np.mean(kept)) if kept else None


def _compute_error(column: np.ndarray[Any, Any]) -> float:
    kept = column[~np.isnan(column)]
    return float(kept.std(ddof=1) / np.sqrt(len(kept))) if len(kept) > 1 else 0.0


def list_rows(figures: Mapping[str, Any], show: Callable[[float | None], str]) -> Iterator[list[str]]:
    """The table: a row an arm, a column a data set; what is not measured is a dash."""
    tables = figures["tables"]
    arms = list(dict.fromkeys(arm for table in tables.values() for arm in table["arms"]))
    yield ["", *tables]
    for arm in arms:
        yield [arm, *(show(t["arms"].get(arm, {}).get(t["measure"], {}).get("mean")) for t in tables.values())]
    for own in [arm for arm in COMPARED if arm in arms]:
        for rival in ("alone", "pooled"):
            compared = [table.get(own, {}).get(rival) for table in tables.values()]
            yield [f"{own} - {rival}", *(show(None if one is None else one["mean"]) for one in compared)]
            yield [
                f"not behind {rival}: {own}",
                *(show(None if one is None else one["not_behind"]) for one in compared),
            ]
