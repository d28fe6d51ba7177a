"""WordPiece vocabularies, as BERT's, trained on the training texts, and batches of their tokens.

The `tokenizers` library numbers the parts of words (`##a`) in the order of a hash table, which
varies; passing the alphabet in order makes the vocabulary reproducible. Training takes seconds, so
vocabularies are stored in the user's cache under the checksum of their input.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from stepscope.data.image_index import shown
from stepscope.data.loaders.dataloader import Batch
from stepscope.data.sample_order import BatchKey
from stepscope.errors import DataError
from stepscope.files import cache_folder, replace_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer, models

    from stepscope.data.datasets.text import Texts

PADDING, UNKNOWN, START, END = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PADDING_ID = 0

_LARGEST_ALPHABET = 1000  # the limit of the trainer: rarer characters are unknown
_PART = "##"  # the prefix of a part that does not begin a word
_RECIPE = "1"  # change it when the same text gives another vocabulary


class TextBatches(Dataset[Batch]):
    """The batch of each `BatchKey`: int64 tokens, padded to the longest text, and labels."""

    def __init__(self, texts: Texts, tokenizer: Tokenizer) -> None:
        self._texts, self._tokenizer = texts, tokenizer

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, key: BatchKey) -> Batch:
        texts = [self._texts.text(index) for index in key.indices.tolist()]
        encoded = self._tokenizer.encode_batch_fast(texts)
        tokens = np.array([each.ids for each in encoded], dtype=np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(self._texts.labels[key.indices])


def make_tokenizer(tokens: Sequence[str], sequence_length: int) -> Tokenizer:
    """Return a tokeniser that truncates at a length and pads to the longest text."""
    missing = [token for token in SPECIAL if token not in tokens]
    if missing or tokens[PADDING_ID] != PADDING:
        wanted = f"{', '.join(SPECIAL)} in the vocabulary, {PADDING} first"
        found = f"no {', '.join(missing)}" if missing else f"{tokens[PADDING_ID]!r} first"
        raise DataError(f"wanted {wanted}; found {found}. Use a vocabulary of BERT.")
    # No thread pool of the library's own, so that the work counts for the loader's process.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import models, processors

    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = _splitting(models.WordPiece(vocab=numbers, unk_token=UNKNOWN))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        special_tokens=[(token, numbers[token]) for token in (START, END)],
    )
    tokenizer.enable_truncation(sequence_length)
    tokenizer.enable_padding(pad_id=PADDING_ID, pad_token=PADDING)
    return tokenizer


def vocabulary_of(texts: Sequence[str], most_tokens: int) -> list[str]:
    """Return the vocabulary of training texts, from the cache or newly trained."""
    checksum = hashlib.sha256(f"{_RECIPE} {most_tokens}".encode())
    for text in texts:
        checksum.update(b"\n" + text.encode())
    cache = cache_folder()
    if cache is None:
        return train_vocabulary(texts, most_tokens)
    cached = cache / "vocabularies" / f"{checksum.hexdigest()}.txt"
    try:
        return cached.read_text(encoding="utf-8").split("\n")
    except OSError:  # not cached yet, or the cache is unusable
        tokens = train_vocabulary(texts, most_tokens)
    with contextlib.suppress(OSError):  # a cache that is not writable: train again next time
        replace_file(cached, ["\n".join(tokens).encode()])
    return tokens


def train_vocabulary(texts: Sequence[str], most_tokens: int) -> list[str]:
    """Return a trained WordPiece vocabulary; the same texts give the same one."""
    from tokenizers import models, trainers

    tokenizer = _splitting(models.WordPiece(unk_token=UNKNOWN))
    alphabet = _alphabet(tokenizer.normalizer.normalize_str("\n".join(texts)))
    given = [*SPECIAL, *alphabet, *(f"{_PART}{character}" for character in alphabet)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=most_tokens,
        special_tokens=given,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=lambda token: numbers[token])


def read_vocabulary(folder: Path) -> list[str] | None:
    """Return the vocabulary of a pretrained network; None if it has none."""
    lines, whole = folder / "vocab.txt", folder / "tokenizer.json"
    try:
        if lines.is_file():
            return lines.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        if whole.is_file():
            numbers = json.loads(whole.read_text(encoding="utf-8"))["model"]["vocab"]
            return sorted(numbers, key=lambda token: int(numbers[token]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"cannot read the vocabulary in {shown(folder)}: {type(error).__name__}: {error}. "
            "Wanted vocab.txt, one token per line, or a WordPiece tokenizer.json."
        ) from error
    return None


def _splitting(model: models.WordPiece) -> Tokenizer:
    """Return a tokeniser that splits as uncased BERT: lower case, no accents, at punctuation."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _alphabet(text: str) -> list[str]:
    """Return the most frequent characters, sorted."""
    counts = Counter(text)
    most = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted([each for each in most if not each.isspace()][:_LARGEST_ALPHABET])
