"""The words of a report on what is hidden, and on what is not."""

from __future__ import annotations

import pytest

from node.report.privacy import Hidden, render_privacy


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


def test_a_run_without_noise_has_no_such_part() -> None:
    assert render_privacy(None) == ""
