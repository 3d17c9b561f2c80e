"""The part of a report that says how samples were hidden, and what this site has told of any of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.accountant import compute_epsilon, has_accountant
from ml.specs.privacy import CLIP, DELTA, PROTOTYPE_NOISE
from node.report.elements import Html, count, make_facts, make_paragraph, make_section
from node.training.privacy_ledger import PRIVACY_FILE, read_told

if TYPE_CHECKING:
    from chain.run import Run


@dataclass(frozen=True, slots=True)
class Hidden:
    """The noise of a run, and of this site, over all its runs: epsilon and the local phases it is of; None where its
    account is not at hand."""

    noise: float
    clip: float
    prototype_noise: float
    prototype_clip: float
    delta: float
    epsilon: float | None = None
    phases: int | None = None

    @classmethod
    def of(cls, run: Run, data_dir: Path | None) -> Hidden | None:
        """None of a run that hides nothing. Raises MlError for an account that is damaged."""
        method = run.method
        if "dp_noise" not in method:
            return None
        delta, epsilon, phases = method.get("dp_delta", DELTA), None, None
        if data_dir is not None and has_accountant():
            told = read_told(data_dir / PRIVACY_FILE)
            epsilon, phases = compute_epsilon(told, delta), told.phases
        return cls(
            method["dp_noise"],
            method.get("dp_clip", CLIP),
            method.get("dp_prototype_noise", PROTOTYPE_NOISE),
            method.get("dp_prototype_clip", CLIP),
            delta,
            epsilon,
            phases,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def render_privacy(hidden: Hidden | None) -> Html:
    """Nothing of a run that hides nothing."""
    if hidden is None:
        return Html("")
    facts = [
        ("noise in steps", f"{hidden.noise:g} by a gradient of {hidden.clip:g} at most"),
        ("noise in prototypes", f"{hidden.prototype_noise:g} by an embedding of {hidden.prototype_clip:g} at most"),
        ("delta", f"{hidden.delta:g}"),
    ]
    if hidden.epsilon is not None and hidden.phases is not None:
        facts.append(("epsilon of this site", f"{hidden.epsilon:.2f}, of {count(hidden.phases, 'local phase')}"))
    said = (
        "Epsilon of this site was not at hand for this report: fednode privacy shows it."
        if hidden.epsilon is None
        else "The account is of all runs of this site up to now, and counts what was trained and never sent, too."
    )
    return make_section(
        "privacy",
        "What can be told of a single sample",
        make_paragraph(
            "In this run each site hides every one of its samples by noise. Epsilon bounds what anyone can find out of "
            "whether one sample was there: no conclusion is more than e to the epsilon times as likely with it than "
            "without, but for a chance of delta. How many samples a site has, and of which classes, is not hidden."
        ),
        make_facts(facts),
        make_paragraph(said),
    )
