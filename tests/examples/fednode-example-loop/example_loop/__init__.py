"""An example of loops of one's own: whatever trains the model in place, and says how it went."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from fednode.plugin import LightningLoop, LoopData, LoopRound


class Loop:
    """AdamW with warm-up and label smoothing, in plain PyTorch."""

    def train(self, model: nn.Module, data: LoopData, round: LoopRound) -> Mapping[str, float]:  # noqa: A002
        optimizer = torch.optim.AdamW(model.parameters(), lr=round.lr / 10)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        total = 0.0
        for x, y in data.batches(round):
            loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            warm_up.step()
            total += loss.item()
            round.on_step()
        return {"loss": total / max(round.steps, 1), "last_lr": float(warm_up.get_last_lr()[0])}


class LightningTraining(LightningLoop):
    """For models that are Lightning modules."""
