"""The largest batch that fits, found by trials; and settings that fit a batch that does not.

forecast     once, for a first guess, and for the pool that is full first
search       by trials of more and fewer samples (`batch_bisection`)
the requested batch, if it does not fit
             divided: the largest part of it that fits, with accumulated gradients
             recomputed: whole, with activation checkpointing

Only settings that were tried are recommended.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from stepscope.errors import AnswerIsNo, Interrupted, OutOfMemoryError, RequestError
from stepscope.experiments.batch_bisection import (
    AIM,
    NEAR,
    BatchTrial,
    Line,
    Question,
    largest,
    round_batch,
    search,
)
from stepscope.experiments.script_trial import try_batch
from stepscope.experiments.trial import try_out
from stepscope.experiments.workload import training_samples_of
from stepscope.hardware import host
from stepscope.memory_forecast.memory_bill import Limit, host_limit
from stepscope.records.types import BatchSettings, BatchTrialRecord, MaxBatchAnswer, MemoryForecast
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight
from stepscope.supervisor.ask_process import forecast
from stepscope.supervisor.script_child import TraceRequest, check_script, hide_secrets
from stepscope.supervisor.warm_start import ForkServer
from stepscope.units import format_bytes


class MaxBatchListener(Protocol):
    """Is notified of the search's progress; a trial is given as by `BatchTrial.to_json`."""

    def forecasting(self) -> None:
        """Receive notice that a forecast is being made."""

    def trying(self, settings: BatchSettings) -> None:
        """Receive the settings of the trial that starts."""

    def tried(self, trial: BatchTrialRecord) -> None:
        """Receive the result of a trial."""


@dataclass
class MaxBatchResult:
    """The request, the trials and the answer.

    `model` names what is trained, `script` is the command line of a user's script. `asked` is
    the requested batch, None for the largest; `most` is the largest that the data allows, None if
    unknown. `limit` and every peak are of the `pool`. Trials that change more than the batch are
    in `instead`.
    """

    model: str
    limit: Limit
    asked: int | None
    most: int | None = None
    script: str | None = None
    pool: str = "host"
    accumulate: int = 1
    checkpoint_activations: bool = False
    trials: list[BatchTrial] = field(default_factory=list)
    instead: list[BatchTrial] = field(default_factory=list)
    too_small: str | None = None
    interrupted: bool = False

    @property
    def largest(self) -> BatchTrial | None:
        """The largest batch that was tried and fits."""
        return largest(self.trials)

    @property
    def asked_fits(self) -> bool | None:
        """Whether the requested batch fits; None without a request, or if unknown."""
        if self.asked is None:
            return None
        if self.too_small is not None:
            return False
        tried = [each for each in self.trials if each.batch_size == self.asked]
        return tried[0].fits if tried and not tried[0].failed else None

    @property
    def recommended(self) -> list[BatchTrial]:
        """The trials to recommend."""
        if self.asked_fits:
            return [each for each in self.trials if each.batch_size == self.asked]
        fitting = [each for each in self.instead if each.fits]
        divided = [each for each in fitting if each.accumulate != self.accumulate]
        whole = [each for each in fitting if each.accumulate == self.accumulate]
        instead = divided[-1:] + whole  # the last parts tried leave the most room
        return instead or ([self.largest] if self.largest else [])

    @property
    def reason(self) -> str | None:
        """Why the answer is no, or why there is none."""
        if self.interrupted:
            return "interrupted"
        if self.trials and self.trials[-1].failed:
            return self.trials[-1].reason
        return self.too_small

    @property
    def exit_code(self) -> int:
        """0 if it fits, 1 if not, or the code that a trial failed with."""
        if self.interrupted:
            return Interrupted.exit_code
        wanted = self.asked_fits if self.asked is not None else self.largest is not None
        if wanted:
            return 0
        failed = bool(self.trials) and self.trials[-1].failed and self.asked_fits is None
        return self.trials[-1].exit_code if failed else 1

    def to_json(self) -> MaxBatchAnswer:
        """Return it as plain values."""
        best = self.largest
        return {
            "model": self.model,
            "script": self.script,
            "limit_bytes": self.limit.bytes,
            "limit_of": self.limit.of,
            "limit_pool": self.pool,
            "largest_batch": best.batch_size if best else None,
            "peak_memory_bytes": best.peak_memory_bytes if best else None,
            "is_all_the_data": best is not None and best.batch_size == self.most,
            "trials": [each.to_json() for each in (*self.trials, *self.instead)],
            "recommended": [
                {
                    "settings": self._changed(each),
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

    def _changed(self, trial: BatchTrial) -> BatchSettings:
        """Return the batch and the other settings that a trial changed."""
        settings: BatchSettings = {"batch_size": trial.batch_size}
        if trial.accumulate != self.accumulate:
            settings["accumulate"] = trial.accumulate
        if trial.checkpoint_activations != self.checkpoint_activations:
            settings["checkpoint_activations"] = trial.checkpoint_activations
        return settings


def limit_now(asked_bytes: int | None) -> Limit:
    """Return the requested limit or, without one, the memory that is available now."""
    limit, available_bytes = host_limit(asked_bytes), host.available_bytes()
    if asked_bytes is None and available_bytes < limit.bytes:
        return Limit("memory available now", available_bytes)
    return limit


_MOST_DIVISIONS = 2

# Items of the bill that grow with the batch; activations with the allocator's overhead.
_GROWING = {"activations": 1.25, "batch": 1.0, "prefetch": 1.0, "workspace": 1.0}


def fit(spec: RunSpec, listener: MaxBatchListener, *, asked: bool) -> MaxBatchResult:
    """Find the largest batch, or with `asked` whether the spec's own fits.

    If interrupted, return the trials so far.
    """
    preflight.check(spec.model_copy(update={"batch_size": 1, "accumulate": 1}))
    most = max(1, training_samples_of(spec) // spec.accumulate)
    limit = limit_now(spec.memory_limit)
    first = spec.batch_size if asked else min(spec.batch_size, most)
    spec = spec.model_copy(update={"memory_limit": limit.bytes, "batch_size": first})
    answer = MaxBatchResult(
        spec.model,
        limit,
        spec.batch_size if asked else None,
        most,
        accumulate=spec.accumulate,
        checkpoint_activations=spec.checkpoint_activations,
    )

    fork_server = ForkServer()

    def try_one(into: list[BatchTrial], **changed: bool | int) -> BatchTrial:
        tried = spec.model_copy(update=changed)
        listener.trying(
            {
                "batch_size": tried.batch_size,
                "accumulate": tried.accumulate,
                "checkpoint_activations": tried.checkpoint_activations,
            }
        )
        trial = try_out(tried, answer.limit, answer.pool, fork_server)
        into.append(trial)
        listener.tried(trial.to_json())
        return trial

    try:
        question = _question(spec, answer, most, listener, fork_server)
        if question is not None:
            search(question, lambda batch: try_one(answer.trials, batch_size=batch))
        if answer.asked_fits is False and answer.largest is not None:
            for changed in _divisions(spec, answer.largest.batch_size):
                trial = try_one(answer.instead, **changed)
                if trial.fits and (trial.peak_memory_bytes or 0) <= NEAR * answer.limit.bytes:
                    break
            if not spec.checkpoint_activations:
                try_one(answer.instead, checkpoint_activations=True)
    except (Interrupted, KeyboardInterrupt):
        answer.interrupted = True
    finally:
        fork_server.close()
    return answer


def _question(
    spec: RunSpec,
    answer: MaxBatchResult,
    most: int,
    listener: MaxBatchListener,
    fork_server: ForkServer,
) -> Question | None:
    """Return the search's question, with a forecast if possible, and set the answer's pool.

    None if the libraries alone are too large, which is the answer.
    """
    limit = answer.limit
    listener.forecasting()
    try:
        bill = forecast(spec, fork_server)
    except AnswerIsNo:  # not for this device or network: the search takes a few more trials
        return Question(limit.bytes, most, spec.batch_size)
    runtime_bytes = bill["items"]["runtime"]["bytes"]
    if runtime_bytes > limit.bytes:
        answer.too_small = (
            f"the libraries alone take {format_bytes(runtime_bytes)}, and the limit is "
            f"{format_bytes(limit.bytes)} ({limit.of})"
        )
        return None
    full = first_full(bill, spec.batch_size, limit)
    answer.pool, answer.limit, first = full.pool, full.limit, spec.batch_size
    if answer.asked is None:
        first = min(most, full.batch_size)
        first = first if first == most else round_batch(first)
    return Question(full.limit.bytes, most, first, full.line)


class Full(NamedTuple):
    """A pool, its limit, its memory by batch, and the batch that nearly fills it."""

    pool: str
    limit: Limit
    line: Line
    batch_size: int


def first_full(bill: MemoryForecast, batch_size: int, host: Limit) -> Full:
    """Find the pool that growing batches fill first; shared memory is part of the host's.

    `host` is the limit that the bill was made for.
    """
    found = []
    for pool, each in bill["limits"].items():
        if pool == "shared memory":
            continue
        limit = host if each["bytes"] == host.bytes else Limit(each["of"], each["bytes"])
        items = {
            name: item["bytes"] for name, item in bill["items"].items() if item["pool"] == pool
        }
        growing = sum(items.get(name, 0) * share for name, share in _GROWING.items())
        line = Line(sum(items.values()) - growing, growing / batch_size)
        found.append(Full(pool, limit, line, line.batch_at(AIM * limit.bytes)))
    return min(found, key=lambda full: full.batch_size)


def _divisions(spec: RunSpec, most: int) -> Iterator[dict[str, int]]:
    """Yield ways to split a step's samples into equal parts that are small enough."""
    parts = range(min(most, spec.batch_size - 1), 0, -1)
    for part in [part for part in parts if spec.batch_size % part == 0][:_MOST_DIVISIONS]:
        yield {"batch_size": part, "accumulate": spec.accumulate * (spec.batch_size // part)}


# --- The largest batch for a user's script


_STEPS = 3
_NO_END = 2**30  # data of unknown length


def fit_script(
    request: TraceRequest,
    listener: MaxBatchListener,
    *,
    batch_size: int | None,
    memory_limit_bytes: int | None,
) -> MaxBatchResult:
    """Find the largest batch for a script; a requested `batch_size` is tried first.

    If interrupted, return the trials so far. Raise RequestError if its batch size cannot be set.
    """
    check_script(request)
    request = replace(request, max_steps=request.max_steps or _STEPS)
    called = shlex.join([*request.target, *hide_secrets(request.arguments)])
    limit = limit_now(memory_limit_bytes)
    answer = MaxBatchResult(request.target[-1], limit, batch_size, script=called)

    def try_one(batch: int | None) -> BatchTrial:
        listener.trying({"batch_size": batch})
        trial, samples = try_batch(request, batch, limit)
        answer.most = samples if answer.most is None else answer.most
        answer.trials.append(trial)
        listener.tried(trial.to_json())
        return trial

    try:
        first = try_one(batch_size)
        if batch_size is not None and answer.most is not None and batch_size > answer.most:
            raise RequestError(
                f"batch_size: wanted up to {answer.most}, the samples of the script's data set, "
                f"found {batch_size}."
            )
        question = Question(limit.bytes, answer.most or _NO_END, first.batch_size)
        search(question, lambda batch: first if batch == first.batch_size else try_one(batch))
    except OutOfMemoryError as error:
        answer.too_small = str(error)
    except (Interrupted, KeyboardInterrupt):
        answer.interrupted = True
    return answer
