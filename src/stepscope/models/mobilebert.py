"""MobileBERT (arXiv:2004.02984) of the transformers library, for text classification.

Its only input is token numbers [n, length]; the attention mask comes from the padding.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import MobileBertConfig, MobileBertForSequenceClassification

PADDING = 0


class MobileBert(nn.Module):
    """MobileBERT with a classification head."""

    def __init__(self, config: MobileBertConfig, num_classes: int) -> None:
        super().__init__()
        config.num_labels = num_classes
        self.config = config
        self.network = MobileBertForSequenceClassification(config)  # type: ignore[no-untyped-call]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the class scores of texts: int64 tokens [n, length], padded at the end."""
        longest = self.config.max_position_embeddings
        if tokens.shape[-1] > longest:
            raise ValueError(f"a text has at most {longest} tokens, found {tokens.shape[-1]}")
        scores: torch.Tensor = self.network(
            input_ids=tokens, attention_mask=tokens != PADDING
        ).logits
        return scores


def mobilebert(num_classes: int) -> MobileBert:
    """Return MobileBERT in its published configuration."""
    return MobileBert(MobileBertConfig(), num_classes)


def mobilebert_small(num_classes: int) -> MobileBert:
    """Return a small MobileBERT that a board can train: fewer, narrower blocks and layer norm."""
    config = MobileBertConfig(
        vocab_size=8192,
        embedding_size=64,
        hidden_size=128,
        intra_bottleneck_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_feedforward_networks=2,
        normalization_type="layer_norm",
    )
    return MobileBert(config, num_classes)
