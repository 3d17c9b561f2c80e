"""The model: a small BERT that is frozen, LoRA adapters in its attention, and a linear classifier.

A sample is a row of token ids, as float32, which all ids below 2^24 are without loss. 0 is padding.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertModel

PADDING = 0


class AdaptedText(nn.Module):
    """The embedding is the mean of the last hidden states over the tokens of a text, [B, width]."""

    def __init__(self, encoder: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        tokens_BT = x.flatten(1).long()
        is_word_BT = (tokens_BT != PADDING).long()
        hidden_BTD = self.encoder(input_ids=tokens_BT, attention_mask=is_word_BT).last_hidden_state
        weights_BT1 = is_word_BT.unsqueeze(-1).to(hidden_BTD.dtype)
        mean: Tensor = (hidden_BTD * weights_BT1).sum(1) / weights_BT1.sum(1).clamp(min=1)
        return mean

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.head(z)
        return logits


def make(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 256,
    width: int = 64,
    layers: int = 2,
    rank: int = 4,
    **settings: Any,
) -> nn.Module:
    """A BERT for texts of `input_shape[0]` tokens. `peft` freezes all of it but the adapters."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=torch.Size(input_shape).numel(),
        pad_token_id=PADDING,
        attn_implementation="eager",
        **settings,
    )
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
    encoder = get_peft_model(BertModel(config, add_pooling_layer=False), adapters)
    return AdaptedText(encoder, width, num_classes)
