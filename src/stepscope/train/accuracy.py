"""Top-1 and top-5 accuracy, counted for many batches at once.

Counting after every step took 4 % of a LeNet step on two cores, so scores are buffered. Only
`total` waits for an asynchronous device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

RANKS = 5
COUNT_EVERY = 32


class AccuracyCounter:
    """Count correct predictions by rank: the position of the label among the top five classes."""

    def __init__(
        self, device: torch.device, counted: Sequence[int] = (0,) * RANKS, of_samples: int = 0
    ) -> None:
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Correct predictions by rank; the last value counts the samples.
        self._sums = torch.tensor([*counted, of_samples], device=device)
        self._copy = torch.zeros(RANKS + 1, dtype=torch.int64, pin_memory=device.type == "cuda")

    def add(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the scores of a batch. They are kept for at most `COUNT_EVERY` batches."""
        self._waiting.append((scores.detach(), labels))
        if len(self._waiting) >= COUNT_EVERY:
            self._count()

    def glance(self) -> float | None:
        """Return the accuracy without the buffered scores: counting them would delay a step."""
        first, samples = int(self._copy[0]), int(self._copy[-1])
        return first / samples if samples else None

    def total(self) -> list[int]:
        """Return the correct predictions by rank. Waits for the device: do not call in a step."""
        self._count()
        return [int(count) for count in self._sums[:RANKS].tolist()]

    def _count(self) -> None:
        if not self._waiting:
            return
        scores = torch.cat([scores for scores, _ in self._waiting])
        labels = torch.cat([labels for _, labels in self._waiting])
        self._waiting.clear()
        ranked = scores.topk(min(RANKS, scores.shape[1])).indices
        correct = ranked.eq(labels[:, None]).sum(0)
        self._sums[: len(correct)] += correct
        self._sums[-1] += len(labels)
        self._copy.copy_(self._sums, non_blocking=True)
