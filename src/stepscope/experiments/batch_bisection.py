"""Which batch to try next, from what the trials so far have shown: rules without state.

    nothing tried yet      the batch to begin with
    none fits so far       down: by the forecast and by what the one that died took, then by halves
    none is too large yet  up: along the line of measured peaks, or of the forecast and one peak
    some fit, some do not  between the two, where that line nears the limit

It ends when the data has no more samples, when the measured peak leaves no room for some 5 % more,
when what fits and what does not are within 8 %, or after seven trials. Nothing is ever said of a
batch that was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepscope.records import schema
from stepscope.records.types import BatchTrialRecord
from stepscope.supervisor.memory_guard import Limits

MOST_TRIALS = 7

# Of the limit. Above the edge a run is ended. A search aims lower, and stays where it comes near:
# a long run takes some percent more than a short one.
EDGE = Limits.near_share
AIM = 0.9
NEAR = 0.92

_ROUND = 8  # people like such batches, and so do caches
_ROUND_ABOVE = 16
_WORTH_MORE = 1.05
_CLOSE = 0.08
_SHOWS_SLOPE = 8  # of fewer samples, a peak tells more of the rest than of them
_APART = 1.1  # two peaks whose batches are closer than this make no line: they differ by chance


@dataclass(frozen=True)
class BatchTrial:
    """What one trial was of, and how it ended; a peak is None where the system keeps none."""

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
        """Whether something else than memory ended it."""
        return self.status == schema.FAILED

    def to_json(self) -> BatchTrialRecord:
        """Return it as plain values."""
        return {
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
            "checkpoint_activations": self.checkpoint_activations,
            "forecast_bytes": self.forecast_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "status": self.status,
            "reason": self.reason,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Line:
    """A forecast for every batch: what a run takes without samples, and what each one adds."""

    base_bytes: float
    sample_bytes: float

    def batch_at(self, size_bytes: float) -> int:
        """Return the batch that takes so much, 0 where there is none."""
        return max(0, int((size_bytes - self.base_bytes) / max(1.0, self.sample_bytes)))


@dataclass(frozen=True)
class Question:
    """What is asked: the largest batch up to `most` within a limit, `first` the one to begin with.

    `line` is None where there is no forecast.
    """

    limit_bytes: int
    most: int
    first: int
    line: Line | None = None


def search(question: Question, try_batch: Callable[[int], BatchTrial]) -> list[BatchTrial]:
    """Try batches until the largest is known well enough; return every trial.

    A trial that failed for another reason than memory ends the search.
    """
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
    """Return the batch to try next, or None when it is not worth another trial."""
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
    sample_bytes = _sample_bytes(question, trials)
    if low.batch_size >= question.most or _has_no_room(question, low, up, sample_bytes):
        return None
    guess = _guess(question, low, sample_bytes)
    if high is None:
        return min(question.most, max(up, round_batch(guess)))
    gap = high.batch_size - low.batch_size
    if gap <= _CLOSE * low.batch_size:
        return None
    within = min(max(guess, low.batch_size + gap // 4), high.batch_size - gap // 4)
    batch = max(round_batch(within), _next_round(low.batch_size))
    return batch if batch < high.batch_size else None


def round_batch(batch: int) -> int:
    """Round a batch down to one that people like, never below 1."""
    return max(1, batch if batch <= _ROUND_ABOVE else batch // _ROUND * _ROUND)


def _next_round(batch: int) -> int:
    return batch + 1 if batch < _ROUND_ABOVE else (batch // _ROUND + 1) * _ROUND


def _below(question: Question, high: BatchTrial, tried: int) -> int | None:
    """Return a batch below the smallest that died, while nothing fits."""
    if high.batch_size == 1:
        return None
    if tried == MOST_TRIALS - 1:
        return 1  # so that "none fits" is never said without it
    guess = high.batch_size // 2
    if tried == 1 and question.line is not None and high.peak_memory_bytes is not None:
        # What died had taken at least this much: its line is no steeper than the truth.
        base = question.line.base_bytes
        taken = Line(base, (high.peak_memory_bytes - base) / high.batch_size)
        aim_bytes = AIM * question.limit_bytes
        guesses = (taken.batch_at(aim_bytes), question.line.batch_at(aim_bytes))
        guess = min(*guesses, high.batch_size * 3 // 4)
    return round_batch(guess)


def _guess(question: Question, low: BatchTrial, sample_bytes: float | None) -> int:
    if sample_bytes is None or low.peak_memory_bytes is None:
        return low.batch_size * 2
    room = AIM * question.limit_bytes - low.peak_memory_bytes
    return low.batch_size + int(room / sample_bytes)


def _has_no_room(question: Question, low: BatchTrial, up: int, sample_bytes: float | None) -> bool:
    if sample_bytes is None or low.peak_memory_bytes is None:
        return False
    expected = low.peak_memory_bytes + sample_bytes * (up - low.batch_size)
    return expected > NEAR * question.limit_bytes


def _sample_bytes(question: Question, trials: Sequence[BatchTrial]) -> float | None:
    """Return what a sample adds: by the peaks of two that fit, else by forecast and one peak."""
    peaks = {t.batch_size: t.peak_memory_bytes for t in trials if t.fits and t.peak_memory_bytes}
    most = max(peaks, default=0)
    less = max((batch for batch in peaks if batch * _APART <= most), default=None)
    if less is not None and peaks[most] > peaks[less]:
        return (peaks[most] - peaks[less]) / (most - less)
    if question.line is None or question.line.sample_bytes <= 0:
        return None
    expected = question.line.sample_bytes
    if most >= _SHOWS_SLOPE:  # a forecast that was too low is not believed again
        expected = max(expected, (peaks[most] - question.line.base_bytes) / most)
    return expected
