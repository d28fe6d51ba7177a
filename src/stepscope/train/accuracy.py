"""Counting hits: at which rank, of the first five, the right class came.

Counting after every step took 4 % of a LeNet step on two cores. So scores wait, and are counted
many steps at once; nothing here waits for an asynchronous device except `total`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

RANKS = 5
COUNT_EVERY = 32


class HitCounter:
    """Count hits of batches whose scores are handed over; begin with what was counted before."""

    def __init__(
        self, device: torch.device, counted: Sequence[int] = (0,) * RANKS, of_samples: int = 0
    ) -> None:
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Hits by rank, and last how many samples they are of.
        self._sums = torch.tensor([*counted, of_samples], device=device)
        self._copy = torch.zeros(RANKS + 1, dtype=torch.int64, pin_memory=device.type == "cuda")

    def add(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Take the scores of a batch. They are held for at most `COUNT_EVERY` batches."""
        self._waiting.append((scores.detach(), labels))
        if len(self._waiting) >= COUNT_EVERY:
            self._count()

    def glance(self) -> float | None:
        """Return the accuracy of what was counted so far, up to `COUNT_EVERY` batches behind.

        Counts nothing itself: doing so put 2.6 ms into one step of a hundred, for a display.
        """
        first, samples = int(self._copy[0]), int(self._copy[-1])
        return first / samples if samples else None

    def total(self) -> list[int]:
        """Return the hits by rank of all batches. Waits for the device: not for use in a step."""
        self._count()
        return [int(count) for count in self._sums[:RANKS].tolist()]

    def _count(self) -> None:
        if not self._waiting:
            return
        scores = torch.cat([scores for scores, _ in self._waiting])
        labels = torch.cat([labels for _, labels in self._waiting])
        self._waiting.clear()
        ranked = scores.topk(min(RANKS, scores.shape[1])).indices
        hits = ranked.eq(labels[:, None]).sum(0)
        self._sums[: len(hits)] += hits
        self._sums[-1] += len(labels)
        self._copy.copy_(self._sums, non_blocking=True)
