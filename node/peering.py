"""Who took what from whom in a round, recomputed from what the chain says, for whoever asks about a round.

The method's spec explains it from the block and its aggregate alone (`MethodSpec.explain`), in places of the block;
here those become members. Numpy, never torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.block import Block
from chain.genesis import Genesis
from chain.signing import encode_id
from ml.payload import decode_arrays
from ml.specs import MethodSpec
from node.exchange import get_offers
from node.on_demand import get_kinds
from node.pb import admin_pb2 as pb


def has_peering(spec: MethodSpec, height: int) -> bool:
    """Whether members take anything from single peers in this round."""
    return bool(get_kinds(spec, height))


def explain_peering(genesis: Genesis, spec: MethodSpec, block: Block, aggregate: bytes | None) -> pb.Peering:
    """`aggregate` is the block's, None when it is not held or there is none."""
    if aggregate is None and spec.rules(block.height):
        return pb.Peering(held=False)
    arrays = None if aggregate is None else decode_arrays(aggregate, len(aggregate))
    told = spec.explain(block.height, block.header.prev, get_offers(block), arrays)
    return _show(genesis, block, told or {"nodes": ()})


def _show(genesis: Genesis, block: Block, told: Mapping[str, Any]) -> pb.Peering:
    authors = [contribution.author for contribution in block.contributions]
    names = [genesis.members[genesis.member_ids.index(author)].name for author in authors]
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
