"""Which batch to try next, from the trials so far: rules without state.

    nothing tried yet      the first batch
    none fits so far       down: by the forecast and the peak of the one that died, then by halves
    none is too large yet  up: along the line of measured peaks, or of the forecast and one peak
    some fit, some do not  between the two, where that line nears the limit

The search ends when the data has no more samples, when the peak leaves no room for 5 % more, when
what fits and what does not are within 8 %, or after seven trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from stepscope.records import schema
from stepscope.records.types import BatchTrialRecord
from stepscope.supervisor.memory_guard import NEAR_SHARE

MOST_TRIALS = 7

# Shares of the limit. Above EDGE a run is ended. A search aims lower and stops above NEAR: a long
# run takes a few percent more than a short one.
EDGE = NEAR_SHARE
AIM = 0.9
NEAR = 0.92

_ROUND = 8  # batches above _ROUND_ABOVE are multiples of it
_ROUND_ABOVE = 16
_WORTH_MORE = 1.05
_CLOSE = 0.08
_SHOWS_SLOPE = 8  # with fewer samples, a peak says little about the memory of a sample
_APART = 1.1  # peaks of batches closer than this differ by chance


@dataclass(frozen=True)
class BatchTrial:
    """The settings of a trial and how it ended; a peak is None if the system does not keep it."""

    batch_size: int
    fits: bool
    peak_memory_bytes: int | None = None
    forecast_bytes: int | None = None
    accumulate: int = 1
    checkpoint_activations: bool = False
    status: str = schema.COMPLETED
    reason: str | None = None
    exit_code: int = 0

    @property
    def failed(self) -> bool:
        """Whether it failed for another reason than memory."""
        return self.status == schema.FAILED

    def to_json(self) -> BatchTrialRecord:
        """Return it as plain values."""
        values = {name: value for name, value in vars(self).items() if name != "exit_code"}
        return cast("BatchTrialRecord", values)


@dataclass(frozen=True)
class Line:
    """The forecast memory of any batch: a base, and so much for each sample."""

    base_bytes: float
    sample_bytes: float

    def batch_at(self, size_bytes: float) -> int:
        """Return the batch that takes so much, 0 if there is none."""
        return max(0, int((size_bytes - self.base_bytes) / max(1.0, self.sample_bytes)))


@dataclass(frozen=True)
class Question:
    """Find the largest batch up to `most` within a limit, starting with `first`.

    `line` is None without a forecast.
    """

    limit_bytes: int
    most: int
    first: int
    line: Line | None = None


def search(question: Question, try_batch: Callable[[int], BatchTrial]) -> list[BatchTrial]:
    """Try batches until the largest is known well enough, or one fails; return every trial."""
    trials: list[BatchTrial] = []
    while len(trials) < MOST_TRIALS and not (trials and trials[-1].failed):
        batch = next_batch(question, trials)
        if batch is None:
            break
        trials.append(try_batch(batch))
    return trials


def largest(trials: Sequence[BatchTrial]) -> BatchTrial | None:
    """Return the trial of the largest batch that fits."""
    return max((each for each in trials if each.fits), key=lambda t: t.batch_size, default=None)


def next_batch(question: Question, trials: Sequence[BatchTrial]) -> int | None:
    """Return the batch to try next, or None if none is worth another trial."""
    if not trials:
        return question.first
    low = largest(trials)
    beyond = [t for t in trials if not t.fits and (low is None or t.batch_size > low.batch_size)]
    high = min(beyond, key=lambda trial: trial.batch_size, default=None)
    if low is None:
        assert high is not None, "a trial either fits or does not"
        return _below(question, high, len(trials))
    a_little_more = max(_next_round(low.batch_size), round_batch(int(low.batch_size * _WORTH_MORE)))
    up = min(question.most, a_little_more)
    if low.batch_size >= question.most:
        return None
    guess, sample_bytes = low.batch_size * 2, _sample_bytes(question, trials)
    if sample_bytes is not None and low.peak_memory_bytes is not None:
        expected = low.peak_memory_bytes + sample_bytes * (up - low.batch_size)
        if expected > NEAR * question.limit_bytes:
            return None
        room = AIM * question.limit_bytes - low.peak_memory_bytes
        guess = low.batch_size + int(room / sample_bytes)
    if high is None:
        return min(question.most, max(up, round_batch(guess)))
    gap = high.batch_size - low.batch_size
    if gap <= _CLOSE * low.batch_size:
        return None
    within = min(max(guess, low.batch_size + gap // 4), high.batch_size - gap // 4)
    batch = max(round_batch(within), _next_round(low.batch_size))
    return batch if batch < high.batch_size else None


def round_batch(batch: int) -> int:
    """Round a batch down to a multiple of 8, but not below 1."""
    return max(1, batch if batch <= _ROUND_ABOVE else batch // _ROUND * _ROUND)


def _next_round(batch: int) -> int:
    return batch + 1 if batch < _ROUND_ABOVE else (batch // _ROUND + 1) * _ROUND


def _below(question: Question, high: BatchTrial, tried: int) -> int | None:
    """Return a batch below the smallest that died, while nothing fits."""
    if high.batch_size == 1:
        return None
    if tried == MOST_TRIALS - 1:
        return 1  # "none fits" needs a trial of it
    guess = high.batch_size // 2
    if tried == 1 and question.line is not None and high.peak_memory_bytes is not None:
        # The trial that died took at least this much: its line is no steeper than the truth.
        base = question.line.base_bytes
        taken = Line(base, (high.peak_memory_bytes - base) / high.batch_size)
        aim_bytes = AIM * question.limit_bytes
        guesses = (taken.batch_at(aim_bytes), question.line.batch_at(aim_bytes))
        guess = min(*guesses, high.batch_size * 3 // 4)
    return round_batch(guess)


def _sample_bytes(question: Question, trials: Sequence[BatchTrial]) -> float | None:
    """Return what a sample adds, by two peaks that fit, else by the forecast and one peak."""
    peaks = {t.batch_size: t.peak_memory_bytes for t in trials if t.fits and t.peak_memory_bytes}
    most = max(peaks, default=0)
    less = max((batch for batch in peaks if batch * _APART <= most), default=None)
    if less is not None and peaks[most] > peaks[less]:
        return (peaks[most] - peaks[less]) / (most - less)
    if question.line is None or question.line.sample_bytes <= 0:
        return None
    expected = question.line.sample_bytes
    if most >= _SHOWS_SLOPE:  # the forecast was too low
        expected = max(expected, (peaks[most] - question.line.base_bytes) / most)
    return expected
