"""The largest batch that fits, found by trying; and for one that does not, what does instead.

    forecast     once, for a first guess
    search       by trials of more and fewer samples (`fit_search`)
    the batch that was asked for, where it does not fit
                 divided: the largest part of it that fits, with gradients added up
                 recomputed: whole, its activations recomputed in the backward pass

What is recommended was tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepscope.errors import AnswerIsNo, Interrupted
from stepscope.estimate.limits import host_limit
from stepscope.estimate.memory_bill import Limit
from stepscope.experiments import preflight
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.fit_search import (
    AIM,
    NEAR,
    Line,
    Question,
    Trial,
    largest,
    round_batch,
    search,
)
from stepscope.experiments.forecast import forecast
from stepscope.experiments.trial import try_out
from stepscope.hardware import host
from stepscope.spec import RunSpec
from stepscope.units import format_bytes

_MOST_DIVISIONS = 2

# Of the bill, what grows with the batch, the allocator's part of activations included.
_GROWING = {"activations": 1.25, "batch": 1.0, "prefetch": 1.0, "workspace": 1.0}


class Onlooker(Protocol):
    """Somebody who shows how a search goes; a trial is what `Trial.to_json` gives."""

    def forecasting(self) -> None:
        """Learn that a forecast is being made."""

    def trying(self, spec: RunSpec) -> None:
        """Learn what is tried now."""

    def tried(self, trial: dict[str, Any]) -> None:
        """Learn how it ended."""


@dataclass
class Answer:
    """What was asked, what was tried, and what follows from it.

    `asked` is the batch that somebody wants, None for the largest. `trials` with other settings
    than the spec's, batch apart, are in `instead`.
    """

    spec: RunSpec
    limit: Limit
    asked: int | None
    most: int
    trials: list[Trial] = field(default_factory=list)
    instead: list[Trial] = field(default_factory=list)
    too_small: str | None = None
    interrupted: bool = False

    @property
    def largest(self) -> Trial | None:
        """The largest batch that was tried and fits."""
        return largest(self.trials)

    @property
    def asked_fits(self) -> bool | None:
        """Whether the batch that was asked for fits; None where none was, or nobody knows."""
        if self.asked is None:
            return None
        if self.too_small is not None:
            return False
        tried = [each for each in self.trials if each.batch_size == self.asked]
        return tried[0].fits if tried and not tried[0].failed else None

    @property
    def recommended(self) -> list[Trial]:
        """What fits and answers the question best: never anything that was not tried."""
        if self.asked_fits:
            return [each for each in self.trials if each.batch_size == self.asked]
        fitting = [each for each in self.instead if each.fits]
        divided = [each for each in fitting if each.accumulate != self.spec.accumulate]
        whole = [each for each in fitting if each.accumulate == self.spec.accumulate]
        instead = divided[-1:] + whole  # the last parts tried leave the most room
        return instead or ([self.largest] if self.largest else [])

    @property
    def reason(self) -> str | None:
        """Why the answer is no, or none at all."""
        if self.interrupted:
            return "interrupted"
        if self.trials and self.trials[-1].failed:
            return self.trials[-1].reason
        return self.too_small

    @property
    def exit_code(self) -> int:
        """0: it fits; 1: it does not; or what a trial failed with."""
        if self.interrupted:
            return Interrupted.exit_code
        wanted = self.asked_fits if self.asked is not None else self.largest is not None
        if wanted:
            return 0
        failed = bool(self.trials) and self.trials[-1].failed and self.asked_fits is None
        return self.trials[-1].exit_code if failed else 1

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        best = self.largest
        return {
            "model": self.spec.model,
            "limit_bytes": self.limit.bytes,
            "limit_of": self.limit.of,
            "largest_batch": best.batch_size if best else None,
            "peak_memory_bytes": best.peak_memory_bytes if best else None,
            "is_all_the_data": best is not None and best.batch_size == self.most,
            "trials": [each.to_json() for each in (*self.trials, *self.instead)],
            "recommended": [
                {
                    "settings": _changed(self.spec, each),
                    "peak_memory_bytes": each.peak_memory_bytes,
                    "tested": True,
                }
                for each in self.recommended
            ],
            "asked": None
            if self.asked is None
            else {"batch_size": self.asked, "fits": self.asked_fits},
            "reason": self.reason,
        }


def fit(spec: RunSpec, onlooker: Onlooker, summarize: Summarize, *, asked: bool) -> Answer:
    """Find the largest batch; `asked` says that the spec's own is wanted.

    Interrupted, it gives the trials so far.

    Raises:
        StepscopeError: the run could not be made with any batch.
    """
    preflight.check(spec.model_copy(update={"batch_size": 1, "accumulate": 1}))
    most = max(1, _samples(spec) // spec.accumulate)
    if not asked:
        spec = spec.model_copy(update={"batch_size": min(spec.batch_size, most)})
    answer = Answer(spec, _limit(spec), spec.batch_size if asked else None, most)

    def attempt(into: list[Trial], **changed: Any) -> Trial:
        tried = spec.model_copy(update=changed)
        onlooker.trying(tried)
        trial = try_out(tried, answer.limit, summarize)
        into.append(trial)
        onlooker.tried(trial.to_json())
        return trial

    try:
        question = _question(answer, onlooker)
        if question is not None:
            search(question, lambda batch: attempt(answer.trials, batch_size=batch))
        if answer.asked_fits is False and answer.largest is not None:
            for changed in _divisions(spec, answer.largest.batch_size):
                trial = attempt(answer.instead, **changed)
                if trial.fits and (trial.peak_memory_bytes or 0) <= NEAR * answer.limit.bytes:
                    break
            if not spec.checkpoint_activations:
                attempt(answer.instead, checkpoint_activations=True)
    except (Interrupted, KeyboardInterrupt):
        answer.interrupted = True
    return answer


def _question(answer: Answer, onlooker: Onlooker) -> Question | None:
    """Put the search's question, with a forecast where there can be one.

    None where the libraries alone are too large, which then is the answer.
    """
    spec, limit = answer.spec, answer.limit
    onlooker.forecasting()
    try:
        bill = forecast(spec.model_copy(update={"memory_limit": limit.bytes}))
    except AnswerIsNo:  # not of this device or network: without it there are a few more trials
        return Question(limit.bytes, answer.most, spec.batch_size)
    runtime_bytes = bill["items"]["runtime"]["bytes"]
    if runtime_bytes > limit.bytes:
        answer.too_small = (
            f"the libraries alone take {format_bytes(runtime_bytes)}, and the limit is "
            f"{format_bytes(limit.bytes)} ({limit.of})"
        )
        return None
    line, first = _line(bill, spec.batch_size), spec.batch_size
    if answer.asked is None:
        first = min(answer.most, line.batch_at(AIM * limit.bytes))
        first = first if first == answer.most else round_batch(first)
    return Question(limit.bytes, answer.most, first, line)


def _line(bill: dict[str, Any], batch_size: int) -> Line:
    """Draw the bill of one batch out to all others."""
    growing = sum(bill["items"][name]["bytes"] * share for name, share in _GROWING.items())
    return Line(bill["total_bytes"] - growing, growing / batch_size)


def _limit(spec: RunSpec) -> Limit:
    """Return the limit that was asked for or, without one, what there is and others leave."""
    limit, available_bytes = host_limit(spec.memory_limit), host.available_bytes()
    if spec.memory_limit is None and available_bytes < limit.bytes:
        return Limit("memory available now", available_bytes)
    return limit


def _samples(spec: RunSpec) -> int:
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    return catalogue.find(spec.data).count("train", spec.samples)


def _divisions(spec: RunSpec, most: int) -> Iterator[dict[str, int]]:
    """Give ways to go over the same samples a step in equal parts that are small enough."""
    parts = range(min(most, spec.batch_size - 1), 0, -1)
    for part in [part for part in parts if spec.batch_size % part == 0][:_MOST_DIVISIONS]:
        yield {
            "batch_size": part,
            "accumulate": spec.accumulate * (spec.batch_size // part),
        }


def _changed(spec: RunSpec, trial: Trial) -> dict[str, Any]:
    """Name the settings with which a trial differs from what was asked; the batch always."""
    settings: dict[str, Any] = {"batch_size": trial.batch_size}
    if trial.accumulate != spec.accumulate:
        settings["accumulate"] = trial.accumulate
    if trial.checkpoint_activations != spec.checkpoint_activations:
        settings["checkpoint_activations"] = trial.checkpoint_activations
    return settings
