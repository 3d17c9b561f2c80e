"""FedAvg without a common model: each client averages its own with those of a few others (ALGORITHMS §9).

McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2017, in the peer-to-peer
form that UA-PDFL is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.peers import PeerSpec


@dataclass(frozen=True)
class FedAvgP2pSpec(PeerSpec):
    """The spec of FedAvg among peers, with `g` and `h` on demand, both wanted of all of Q."""

    name: ClassVar[str] = "fedavg_p2p"
