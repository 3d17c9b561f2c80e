"""Coming protocols, and whether this release speaks them: a warning long before, and a clean stop if it does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from chain.changes.rules import Upgrade
from chain.proposals import Proposal
from chain.protocol import describe_spoken, speaks
from chain.tip import Tip
from node.errors import ConfigError
from node.p2p.peers import Peers
from node.version import get_version


class ReleaseTooOld(ConfigError):
    """A protocol is in force that this release does not speak. Nothing is signed under it, and all data stay."""


def check_release(tip: Tip, peers: Peers) -> None:
    """Raises ReleaseTooOld if this release cannot judge the block after this tip."""
    protocol = tip.state.protocol
    if not speaks(protocol):
        raise ReleaseTooOld(
            f"protocol {protocol} is in force from height {tip.height + 1} on, and this release, {get_version()}, "
            f"speaks {describe_spoken()}; install one that speaks it and start again: nothing is lost"
            f"{_describe_releases(peers, protocol)}"
        )


def describe_upgrade(proposals: Iterable[Proposal], peers: Peers, quorum: int) -> str | None:
    """Says what an open change would do to a node that keeps this release; None if it does no harm."""
    coming = [each for each in proposals if _is_beyond(each)]
    if not coming:
        return None
    proposal = min(coming, key=lambda each: each.change.first)
    kind = proposal.change.kind
    assert isinstance(kind, Upgrade)  # noqa: S101 - `_is_beyond` says so
    agreed = "agreed on" if len(proposal.approvals) >= quorum else "proposed"
    return (
        f"protocol {kind.protocol} is {agreed} from height {proposal.change.first} on, and this release, "
        f"{get_version()}, speaks {describe_spoken()}: the node would stop there; install one that speaks it before"
        f"{_describe_releases(peers, kind.protocol)}"
    )


def _is_beyond(proposal: Proposal) -> bool:
    kind = proposal.change.kind
    return isinstance(kind, Upgrade) and not speaks(kind.protocol)


def _describe_releases(peers: Peers, protocol: int) -> str:
    """Returns the releases that speak a protocol, as the members' statuses say."""
    speakers: defaultdict[str, list[str]] = defaultdict(list)
    for peer in peers:
        if peer.status is not None and peer.status.protocol >= protocol:
            speakers[peer.status.version or "one that does not say its version"].append(peer.name)
    if not speakers:
        return ""
    told = "; ".join(f"{', '.join(sorted(names))}: {version}" for version, names in sorted(speakers.items()))
    return f" ({told})"
