"""The largest batch that fits, found by trying; and for one that does not, what does instead.

    forecast     once, for a first guess, and for the pool that is full first
    search       by trials of more and fewer samples (`fit_search`)
    the batch that was asked for, where it does not fit
                 divided: the largest part of it that fits, with gradients added up
                 recomputed: whole, its activations recomputed in the backward pass

What is recommended was tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stepscope.errors import AnswerIsNo, Interrupted
from stepscope.estimate.memory_bill import Limit
from stepscope.experiments import preflight
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.fit_answer import Answer, Onlooker, limit_now
from stepscope.experiments.fit_search import (
    AIM,
    NEAR,
    Line,
    Question,
    Trial,
    round_batch,
    search,
)
from stepscope.experiments.forecast import forecast
from stepscope.experiments.fork_server import ForkServer
from stepscope.experiments.trial import try_out
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of
from stepscope.units import format_bytes

_MOST_DIVISIONS = 2

# Of the bill, what grows with the batch, the allocator's part of activations included.
_GROWING = {"activations": 1.25, "batch": 1.0, "prefetch": 1.0, "workspace": 1.0}


def fit(spec: RunSpec, onlooker: Onlooker, summarize: Summarize, *, asked: bool) -> Answer:
    """Find the largest batch; `asked` says that the spec's own is wanted.

    Interrupted, it gives the trials so far.

    Raises:
        StepscopeError: the run could not be made with any batch.
    """
    preflight.check(spec.model_copy(update={"batch_size": 1, "accumulate": 1}))
    most = max(1, _samples(spec) // spec.accumulate)
    limit = limit_now(spec.memory_limit)
    first = spec.batch_size if asked else min(spec.batch_size, most)
    spec = spec.model_copy(update={"memory_limit": limit.bytes, "batch_size": first})
    answer = Answer(
        spec.model,
        limit,
        spec.batch_size if asked else None,
        most,
        accumulate=spec.accumulate,
        checkpoint_activations=spec.checkpoint_activations,
    )

    fork_server = ForkServer()

    def attempt(into: list[Trial], **changed: Any) -> Trial:
        tried = spec.model_copy(update=changed)
        onlooker.trying(tried.model_dump())
        trial = try_out(tried, answer.limit, summarize, answer.pool, fork_server)
        into.append(trial)
        onlooker.tried(trial.to_json())
        return trial

    try:
        question = _question(spec, answer, most, onlooker, fork_server)
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
    finally:
        fork_server.close()
    return answer


def _question(
    spec: RunSpec, answer: Answer, most: int, onlooker: Onlooker, fork_server: ForkServer
) -> Question | None:
    """Put the search's question, with a forecast where there can be one.

    None where the libraries alone are too large, which then is the answer. The answer learns which
    pool it is about; without a forecast that is the host's.
    """
    limit = answer.limit
    onlooker.forecasting()
    try:
        bill = forecast(spec, fork_server)
    except AnswerIsNo:  # not of this device or network: without it there are a few more trials
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
    """A pool, its limit, what it takes at any batch, and the batch that nearly fills it."""

    pool: str
    limit: Limit
    line: Line
    batch_size: int


def first_full(bill: dict[str, Any], batch_size: int, host: Limit) -> Full:
    """Find in the bill of one batch the pool that is full first when batches grow.

    `host` is the limit that the bill was made for. Shared memory is a part of the host's.
    """
    found = []
    for pool, each in bill["limits"].items():
        if pool == "shared memory":
            continue
        limit = host if each["bytes"] == host.bytes else Limit(each["of"], each["bytes"])
        line = _line(bill, pool, batch_size)
        found.append(Full(pool, limit, line, line.batch_at(AIM * limit.bytes)))
    return min(found, key=lambda full: full.batch_size)


def _line(bill: dict[str, Any], pool: str, batch_size: int) -> Line:
    """Draw what one batch takes of a pool out to all others."""
    items = {name: item["bytes"] for name, item in bill["items"].items() if item["pool"] == pool}
    growing = sum(items.get(name, 0) * share for name, share in _GROWING.items())
    return Line(sum(items.values()) - growing, growing / batch_size)


def _samples(spec: RunSpec) -> int:
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    dataset = catalogue.find(spec.data, reading_of(spec))
    return dataset.count("train", spec.samples) - spec.validation


def _divisions(spec: RunSpec, most: int) -> Iterator[dict[str, int]]:
    """Give ways to go over the same samples a step in equal parts that are small enough."""
    parts = range(min(most, spec.batch_size - 1), 0, -1)
    for part in [part for part in parts if spec.batch_size % part == 0][:_MOST_DIVISIONS]:
        yield {
            "batch_size": part,
            "accumulate": spec.accumulate * (spec.batch_size // part),
        }
