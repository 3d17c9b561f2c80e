"""The explanation of a round: which members' payloads each member took, and what the method set for it, recomputed from
the chain on request.

The method's spec explains the round from the block, its aggregate and the block whose sets training read
(`MethodSpec.explain`). It names authors by their places in the block; here those become members. Numpy, never torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.block import Block, Id
from chain.signing import encode_id
from chain.state import State
from ml.payload import decode_arrays
from ml.specs import Offer
from node.ledger.names import get_name
from node.payloads.on_demand import get_kinds
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound, RunSpecs
from node.training.exchange import get_offers


def is_explained(round_: RunRound) -> bool:
    """Returns whether there is something to explain about this round beyond what every round has."""
    return bool(get_kinds(round_)) or round_.spec.explain(round_.number, bytes(32), (), None) is not None


def add_work_unit(shown: pb.Round, runs: RunSpecs) -> None:
    """Sets whether the local work of this round is counted in epochs, by its own run, as another run may have another
    method."""
    if (round_ := runs.find(shown.height)) is not None:
        shown.counts_epochs = round_.spec.hyperparameters.counts_epochs


def explain_round(
    state: State,
    round_: RunRound,
    block: Block,
    beacon: bytes,
    aggregate: bytes | None,
    shared: Block | None = None,
) -> pb.Round:
    """Returns a round with only its `peering`, `schedule` and `statistics`, each where there is one. `state` judged its
    block; `beacon` is that of its height; `aggregate` is the block's, None when it is not held or there is none;
    `shared` is the block of `RunSpecs.find_shared`."""
    spec, number = round_.spec, round_.number
    if aggregate is None and get_kinds(round_) and spec.rules(number):
        return pb.Round(peering=pb.Peering(held=False))
    arrays = None if aggregate is None else decode_arrays(aggregate, len(aggregate))
    read = () if shared is None else get_offers(shared)
    stale = {author: number - age for author, age in spec.list_stale(arrays) if state.is_active(author)}
    offers = (*get_offers(block), *(Offer(author, 1, {}) for author in stale))
    told = spec.explain(number, beacon, offers, arrays, shared=read) or {"nodes": ()}
    shown = pb.Round()
    if told.get("statistics"):
        shown.statistics = told["statistics"]
    if "epochs" in told:
        shown.schedule.CopyFrom(pb.Schedule(**{key: told[key] for key in ("epochs", "lambda_c", "lambda_dis")}))
    if "nodes" in told:
        shown.peering.CopyFrom(_show(state, block, stale, told))
    return shown


def _show(state: State, block: Block, stale: Mapping[Id, int], told: Mapping[str, Any]) -> pb.Peering:
    authors = [contribution.author for contribution in block.contributions]
    names = [get_name(state, author) for author in authors]
    names += [f"{get_name(state, author)} (of round {number})" for author, number in stale.items()]
    shown = pb.Peering(held=True, div=told.get("div"), threshold=told.get("threshold"))
    for i, node in enumerate(told["nodes"]):
        taker = shown.nodes.add(id=encode_id(authors[i]), name=names[i], branch=node.get("branch"))
        taker.peers.extend(names[place] for place in node["peers"])
        taker.similar.extend(names[place] for place in node.get("similar", ()))
        if node.get("donor") is not None:
            taker.donor = names[node["donor"]]
        for key in ("divergences", "weights"):
            if key in told:
                getattr(taker, key).extend(told[key][i])
    return shown
