"""The account of what a site has told: it outlives its worker, ends where the budget does, and is never begun anew."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

import node.training.privacy_ledger
from ml.accountant import Release, Told, compute_epsilon, count_phases_within
from ml.errors import Abandoned, MlError
from node.training.checkpoint import Checkpoints
from node.training.privacy_ledger import LOOK_AHEAD, PrivacyLedger, read_account, read_told
from node.training.session import Built, Session
from node.training.trainer import NOTHING_TAKEN

DELTA = 1e-5
RELEASE = Release(20, 0.15, 2.0, 5.0)


class Steps:
    """A clock that goes by a second at each look, and by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that have begun to add up epsilon."""
    begun, start = list[threading.Thread](), threading.Thread.start

    def note(thread: threading.Thread) -> None:
        if thread.name == "epsilon":
            begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    return begun


def open_ledger(path: Path, budget: float | None = None) -> PrivacyLedger:
    return PrivacyLedger.open(path, DELTA, budget)


def test_what_was_counted_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    assert read_told(path) == Told()
    open_ledger(path).add(RELEASE, 1)
    again = open_ledger(path)
    again.add(Release(7, 0.3, 1.0), 2)
    assert read_told(path) == again.told == Told.of([RELEASE, Release(7, 0.3, 1.0)])
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.outer
def test_no_phase_takes_epsilon_above_the_budget(tmp_path: Path) -> None:
    path, budget = tmp_path / "privacy.json", 3.0
    fitting = count_phases_within(budget, DELTA, Told(), RELEASE)
    assert fitting > 1
    for _ in range(fitting):
        ledger = open_ledger(path, budget)  # as after each restart
        ledger.check(RELEASE)
        ledger.add(RELEASE, 1)
    assert compute_epsilon(read_told(path), DELTA) <= budget
    with pytest.raises(
        MlError, match=r"the privacy budget is spent: epsilon is 2\.\d\d at delta 1e-05, .*privacy_budget, 3$"
    ):
        open_ledger(path, budget).check(RELEASE)
    ledger.check(Release(1, 0.01, 8.0))  # a smaller phase may fit still
    open_ledger(path).check(RELEASE)  # without a budget there is no end


class Abandoning:
    """A client that is asked to stop once it has made steps, which stay in its model."""

    def validate_common(self, round_number: int) -> None:
        """Nothing goes by a common model."""

    def plan_release(self, round_number: int, num_iterations: int | None = None) -> Release:
        return RELEASE

    def train(self, *arguments: object, **options: object) -> None:
        assert read_told(self.file) == Told.of([RELEASE])  # on the disk before there is anything to lose
        raise Abandoned("abandoned after 3 of 20 steps")

    def __init__(self, file: Path) -> None:
        self.file = file


def test_a_phase_is_counted_before_it_begins_as_an_abandoned_one_leaves_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "privacy.json"
    client: Any = Abandoning(file)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    session = Session(Built(client, client, "cpu", ledger=open_ledger(file)), checkpoints, tmp_path, 1)
    with pytest.raises(Abandoned):
        session.train(1, b"", None, NOTHING_TAKEN, lambda: True, lambda done, total: None)
    checkpoints.close()
    assert read_told(file) == Told.of([RELEASE])


@pytest.mark.outer
@pytest.mark.parametrize(("num_phases", "look_ahead"), [(2, LOOK_AHEAD), (9, 2)], ids=["few", "more than looked at"])
def test_a_budget_is_watched_while_the_worker_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_phases: int, look_ahead: int
) -> None:
    monkeypatch.setattr(node.training.privacy_ledger, "LOOK_AHEAD", look_ahead)
    budget = compute_epsilon(Told.of([RELEASE] * num_phases), DELTA)
    ledger = open_ledger(tmp_path / "privacy.json", budget)
    for _ in range(num_phases):
        ledger.check(RELEASE)
        ledger.add(RELEASE, 1)
    with pytest.raises(MlError, match="the privacy budget is spent"):
        ledger.check(RELEASE)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 2, "phases": 1, "steps": [], "prototypes": []}',
        '{"format": 2, "phases": 1, "steps": [], "prototypes": [], "runs": {"1": [[1, 2]]}}',
        '{"format": 2, "phases": 1, "steps": [], "prototypes": [], "runs": {}, "checked": -1}',
        '{"format": 4, "phases": 1, "steps": [], "prototypes": [], "runs": {}}',
        '{"format": 3, "phases": 1, "steps": [], "prototypes": [], "runs": {}, "guessable": 2}',
        '{"format": 3, "phases": 1, "steps": [], "prototypes": [], "runs": {}, "secret_since": "1"}',
        '{"format": 1, "phases": 1}',
        '{"format": 1, "phases": Infinity, "steps": [], "prototypes": []}',
    ],
)
def test_a_damaged_account_is_not_taken_for_an_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "privacy.json"
    path.write_text(content)
    with pytest.raises(MlError, match="the account of what was told is damaged"):
        open_ledger(path)
    assert path.read_text() == content


def test_what_cannot_be_written_down_is_not_sent(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "gone" / "privacy.json")
    with pytest.raises(MlError, match="nothing is sent that cannot be counted"):
        ledger.add(RELEASE, 1)
    assert ledger.told == Told()


def test_the_file_says_what_it_counts(tmp_path: Path) -> None:
    open_ledger(tmp_path / "privacy.json").add(RELEASE, 1)
    written = json.loads((tmp_path / "privacy.json").read_text())
    assert written == {
        "format": 3,
        "phases": 1,
        "steps": [[0.15, 2.0, 20]],
        "prototypes": [[5.0, 1]],
        "runs": {"1": {"rounds": [[1, 1]], "assumed": [], "noise": {}}},
    }


def test_epsilon_is_added_up_beside_the_training_and_told_with_the_phases_it_is_of(
    tmp_path: Path, adding: list[threading.Thread]
) -> None:
    clock = Steps()
    ledger = PrivacyLedger(tmp_path / "privacy.json", DELTA, 3.0, clock=clock)
    ledger.add(RELEASE, 1)
    before = {"phases": 1, "epsilon": None, "epsilon_phases": 0, "delta": DELTA, "budget": 3.0}
    before |= {"guessable": 0, "set_aside": False}
    assert ledger.describe() == before  # which has begun to add up
    (first,) = adding
    first.join()
    of_one = compute_epsilon(Told.of([RELEASE]), DELTA)
    assert ledger.describe() == before | {"epsilon": of_one, "epsilon_phases": 1}
    ledger.add(RELEASE, 1)
    assert ledger.describe() == before | {"phases": 2, "epsilon": of_one, "epsilon_phases": 1}  # too soon for another
    assert len(adding) == 1
    of_two = compute_epsilon(Told.of([RELEASE] * 2), DELTA)
    assert ledger.describe(has_time=True) == before | {"phases": 2, "epsilon": of_two, "epsilon_phases": 2}
    clock.now_s += 1000  # it has rested
    ledger.describe()
    assert len(adding) == 1  # nothing has come to it
    ledger.add(RELEASE, 1)
    ledger.describe()
    _, second = adding
    second.join()
    assert ledger.describe()["epsilon_phases"] == 3


def test_without_an_accountant_epsilon_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adding: list[threading.Thread]
) -> None:
    monkeypatch.setattr(node.training.privacy_ledger, "has_accountant", lambda: False)
    ledger = open_ledger(tmp_path / "privacy.json")
    ledger.add(RELEASE, 1)
    assert ledger.describe()["epsilon"] is None
    assert adding == []


# ---- noise of earlier releases, which can be guessed

UPDATE = Release.of_update(4.0)


def write_as_before(path: Path, version: int) -> None:
    """An account of two phases, as earlier releases wrote it."""
    runs = {"runs": {"1": {"rounds": [[1, 2]], "assumed": [], "noise": {}}}, "chain": "ab", "checked": 2}
    told = Told.of([UPDATE] * 2)
    path.write_text(json.dumps({"format": version, **told.to_json(), **(runs if version == 2 else {})}))


@pytest.mark.parametrize("version", [1, 2])
def test_phases_of_earlier_releases_have_no_bound_and_a_budget_ends_there(tmp_path: Path, version: int) -> None:
    path = tmp_path / "privacy.json"
    write_as_before(path, version)
    ledger = open_ledger(path, 50.0)
    for _ in range(2):
        with pytest.raises(MlError, match=r"the noise of 2 of 2 local phases can be guessed: .* Epsilon is infinite"):
            ledger.check(UPDATE)
    shown = ledger.describe(has_time=True)
    assert (shown["epsilon"], shown["epsilon_phases"], shown["guessable"]) == (math.inf, 2, 2)
    without = open_ledger(path)
    without.check(UPDATE)  # who has no budget goes on
    without.add(UPDATE, 3)
    again = read_account(path)
    assert (again.told.phases, again.told.guessable) == (3, 2)
    assert json.loads(path.read_text())["format"] == 3


def test_phases_that_are_set_aside_count_by_how_much_noise_it_was(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    write_as_before(path, 2)
    ledger = PrivacyLedger.open(path, DELTA, 50.0, sets_aside=True)
    ledger.check(UPDATE)
    ledger.add(UPDATE, 3)
    shown, of_three = ledger.describe(has_time=True), compute_epsilon(Told.of([UPDATE] * 3), DELTA)
    assert (shown["epsilon"], shown["guessable"], shown["set_aside"]) == (of_three, 2, True)
    kept = read_account(path)
    assert (kept.told.guessable, kept.is_set_aside) == (2, True)
    assert kept.counted == Told.of([UPDATE] * 3)
    open_ledger(path)  # which sets nothing aside any more
    assert not read_account(path).is_set_aside
    tight = compute_epsilon(Told.of([UPDATE] * 3), DELTA)
    with pytest.raises(MlError, match="the privacy budget is spent: epsilon is"):
        PrivacyLedger.open(path, DELTA, tight, sets_aside=True).check(UPDATE)
