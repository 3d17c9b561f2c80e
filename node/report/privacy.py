"""The section of a report on how samples, or sites, were hidden by noise, and how much this site has revealed about any
of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.accountant import compute_epsilon, has_accountant
from ml.specs.privacy import CLIP, DELTA, PROTOTYPE_NOISE
from node.finite import to_finite
from node.report.elements import Html, count, make_facts, make_paragraph, make_section
from node.training.privacy_ledger import PRIVACY_FILE, read_account

if TYPE_CHECKING:
    from chain.run import Run


@dataclass(frozen=True, slots=True)
class Hidden:
    """The noise of a run, and the privacy of this site over all its runs: `epsilon` over so many local `phases`; None
    where the site's account is not available. With `hides_sites` the noise is in whole updates, and prototypes have
    none. `own_from` is the height from which the site adds noise of its own to that of the run's rule; None where it
    does not. In `guessable` phases the noise can be guessed, which makes epsilon infinite unless the site has chosen to
    leave that out of account."""

    noise: float
    clip: float
    prototype_noise: float
    prototype_clip: float
    delta: float
    epsilon: float | None = None
    phases: int | None = None
    hides_sites: bool = False
    own_from: int | None = None
    guessable: int = 0

    @classmethod
    def of(cls, run: Run, data_dir: Path | None) -> Hidden | None:
        """Reads the noise of a run and the site's account; None for a run in which this site hides nothing. Raises
        MlError for a damaged account."""
        account = None if data_dir is None else read_account(data_dir / PRIVACY_FILE)
        trained = None if account is None else account.runs.get(run.number)
        noise = {**run.method, **(trained.noise if trained is not None else {})}
        hides_sites = "dp_update_noise" in noise
        if "dp_noise" not in noise and not hides_sites:
            return None
        key, clip = ("dp_update_noise", "dp_update_clip") if hides_sites else ("dp_noise", "dp_clip")
        delta, epsilon, phases = run.method.get("dp_delta", DELTA), None, None
        if account is not None and has_accountant():
            epsilon, phases = compute_epsilon(account.counted, delta), account.told.phases
        return cls(
            noise[key],
            noise.get(clip, CLIP),
            noise.get("dp_prototype_noise", PROTOTYPE_NOISE),
            noise.get("dp_prototype_clip", CLIP),
            delta,
            epsilon,
            phases,
            hides_sites,
            own_from=account.own_since + 1 if account is not None and account.own_since is not None else None,
            guessable=0 if account is None else account.told.guessable,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields for JSON; epsilon is null also where it is infinite."""
        shown: dict[str, Any] = to_finite(asdict(self))
        return shown


def render_privacy(hidden: Hidden | None) -> Html:
    """Renders the section; nothing for a run that hides nothing."""
    if hidden is None:
        return Html("")
    facts = [("noise in updates", f"{hidden.noise:g} by an update of {hidden.clip:g} at most")]
    if not hidden.hides_sites:
        facts = _list_noises(hidden)
    facts.append(("delta", f"{hidden.delta:g}"))
    if hidden.epsilon is not None and hidden.phases is not None:
        shown = f"{hidden.epsilon:.2f}" if math.isfinite(hidden.epsilon) else "infinite"
        facts.append(("epsilon of this site", f"{shown}, of {count(hidden.phases, 'local phase')}"))
    what, one = "every one of its samples", "one sample was"
    open_facts = "How many samples a site has, and of which classes, is not hidden."
    if hidden.hides_sites:
        what, one = "all that it has learned in a round", "its samples were"
        open_facts = "How many samples a site has is not hidden, nor that it took part."
    who = "In this run each site hides"
    if hidden.own_from is not None:
        who = f"By its own choice, beside what the run asks for, from height {hidden.own_from} on this site hides"
    said = (
        "Epsilon of this site was not at hand for this report: fednode privacy shows it."
        if hidden.epsilon is None
        else "The account is of all runs of this site up to now, and counts what was trained and never sent, too."
    )
    return make_section(
        "privacy",
        "What can be told of this site" if hidden.hides_sites else "What can be told of a single sample",
        make_paragraph(
            f"{who} {what} by noise. Epsilon bounds what anyone can find out of whether "
            f"{one} there: no conclusion is more than e to the epsilon times as likely with that than without, but for "
            f"a chance of delta. {open_facts}"
        ),
        make_facts(facts),
        make_paragraph(said),
        make_paragraph(_describe_guessable(hidden)) if hidden.guessable else Html(""),
    )


def _describe_guessable(hidden: Hidden) -> str:
    said = (
        f"The noise of {count(hidden.guessable, 'local phase')} can be guessed: an earlier release drew it, from a "
        "generator that keeps no secrets."
    )
    if hidden.epsilon is None:
        return said
    if math.isfinite(hidden.epsilon):
        return f"{said} The site has set that aside: epsilon is as if nobody guessed."
    return f"{said} It counts as none, so that epsilon is infinite."


def _list_noises(hidden: Hidden) -> list[tuple[str, str]]:
    return [
        ("noise in steps", f"{hidden.noise:g} by a gradient of {hidden.clip:g} at most"),
        ("noise in prototypes", f"{hidden.prototype_noise:g} by an embedding of {hidden.prototype_clip:g} at most"),
    ]
