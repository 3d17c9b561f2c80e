"""The words of a report on what is hidden, and on what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ml.accountant import Release, compute_epsilon
from node.report.privacy import Hidden, render_privacy
from node.training.account import Account
from support.data.chains import make_genesis, make_keys


@pytest.mark.parametrize(
    ("hides_sites", "said"),
    [
        (False, "How many samples a site has, and of which classes, is not hidden."),
        (True, "How many samples a site has is not hidden, nor that it took part."),
    ],
    ids=["samples", "sites"],
)
def test_a_report_says_what_stays_in_sight(*, hides_sites: bool, said: str) -> None:
    assert said in render_privacy(Hidden(1.0, 1.0, 1.0, 1.0, 1e-5, hides_sites=hides_sites))


def test_a_report_says_from_when_a_site_had_noise_of_its_own(tmp_path: Path) -> None:
    run = make_genesis(make_keys(4)).run
    assert Hidden.of(run, tmp_path) is None
    noise = {"dp_noise": 2.0, "dp_clip": 0.5, "dp_prototype_noise": 5.0, "dp_prototype_clip": 1.0}
    release = Release(20, 0.1, 2.0, 5.0)
    account = Account(own_since=6).plus(release, 1, 7, noise=noise)
    (tmp_path / "privacy.json").write_bytes(account.encode())
    hidden = Hidden.of(run, tmp_path)
    assert hidden is not None
    assert (hidden.noise, hidden.clip, hidden.phases, hidden.own_from) == (2.0, 0.5, 1, 7)
    assert hidden.epsilon == compute_epsilon(account.told, 1e-5)
    page = render_privacy(hidden)
    assert "from height 7 on this site hides every one of its samples" in page
    assert Hidden.of(replace(run, number=2), tmp_path) is None  # of another run this says nothing


def test_a_report_says_what_noise_can_be_guessed_and_whether_that_was_set_aside(tmp_path: Path) -> None:
    run = make_genesis(make_keys(4)).run
    account = Account().plus(Release(20, 0.1, 2.0, 5.0), 1, 7, noise={"dp_noise": 2.0})
    account.told.guessable = 1
    for is_set_aside, shown, said in (
        (False, "infinite, of 1 local phase", "It counts as none, so that epsilon is infinite."),
        (True, f"{compute_epsilon(account.counted.set_aside(), 1e-5):.2f}, of 1", "The site has set that aside"),
    ):
        (tmp_path / "privacy.json").write_bytes(replace(account, is_set_aside=is_set_aside).encode())
        hidden = Hidden.of(run, tmp_path)
        assert hidden is not None
        page = render_privacy(hidden)
        assert shown in page
        assert "The noise of 1 local phase can be guessed" in page
        assert said in page
        assert (hidden.to_json()["epsilon"] is None) is not is_set_aside


def test_a_run_without_noise_has_no_such_part() -> None:
    assert render_privacy(None) == ""
