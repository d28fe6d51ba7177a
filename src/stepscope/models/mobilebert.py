"""MobileBERT (Sun et al. 2020), the network of the transformers library, as one of the zoo.

It takes the numbers of tokens alone, [n, length], and gives a score a class: which of them are
padding it sees itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import MobileBertConfig, MobileBertForSequenceClassification

PADDING = 0

# Blocks as MobileBERT's, with their bottlenecks, trigram input and stacked feed-forward networks;
# fewer and narrower, and with the layer norms that the published network gave up for speed.
_SMALL: dict[str, Any] = {
    "vocab_size": 8192,
    "embedding_size": 64,
    "hidden_size": 128,
    "true_hidden_size": 64,
    "intra_bottleneck_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_feedforward_networks": 2,
    "normalization_type": "layer_norm",
}


class MobileBert(nn.Module):
    """MobileBERT with a head for classes."""

    def __init__(self, config: MobileBertConfig) -> None:
        super().__init__()
        self.config = config
        self.network = MobileBertForSequenceClassification(config)  # type: ignore[no-untyped-call]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Score texts, given as int64 tokens [n, length] with padding behind them."""
        longest = self.config.max_position_embeddings
        if tokens.shape[-1] > longest:
            raise ValueError(f"a text has at most {longest} tokens, found {tokens.shape[-1]}")
        scores: torch.Tensor = self.network(
            input_ids=tokens, attention_mask=tokens != PADDING
        ).logits
        return scores


def mobilebert(num_classes: int) -> MobileBert:
    """Build MobileBERT in its published configuration."""
    return _build(MobileBertConfig(), num_classes)


def mobilebert_small(num_classes: int) -> MobileBert:
    """Build a MobileBERT that a board can train from scratch."""
    return _build(MobileBertConfig(**_SMALL), num_classes)


def _build(config: MobileBertConfig, num_classes: int) -> MobileBert:
    config.num_labels = num_classes
    return MobileBert(config)
