"""Batches of texts that are tokenised on demand."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import Dataset

from stepscope.data.datasets.text import Texts
from stepscope.data.image_transforms import Batch
from stepscope.data.sample_order import BatchKey


class TextBatches(Dataset[Batch]):
    """The batch of each `BatchKey`: int64 tokens [n, longest text] and labels.

    Shorter texts are padded to the longest of the batch.
    """

    def __init__(self, texts: Texts, tokenizer: Tokenizer) -> None:
        self._texts, self._tokenizer = texts, tokenizer

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, key: BatchKey) -> Batch:
        texts = [self._texts.text(index) for index in key.indices.tolist()]
        encoded = self._tokenizer.encode_batch_fast(texts)
        tokens = np.array([each.ids for each in encoded], dtype=np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(self._texts.labels[key.indices])
