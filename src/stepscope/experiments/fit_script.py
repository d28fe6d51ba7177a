"""The largest batch that fits for somebody's own script, found by trying it.

A trial is the script itself, for a few steps, with another batch size in its loaders: two steps at
least, since the second meets the state that the optimiser made in the first, and one more than its
workers keep batches ready. There is no forecast. Where no batch is asked for, the first trial has
the script's own, and so learns how the script loads its data.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.errors import (
    Interrupted,
    MachineError,
    OutOfMemoryError,
    RequestError,
    StepscopeError,
)
from stepscope.estimate.memory_bill import Limit
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.fit_answer import Answer, Onlooker, limit_now
from stepscope.experiments.fit_search import Question, Trial, search
from stepscope.experiments.script_loaders import NO_LOADER, training_loader
from stepscope.experiments.script_trial import run_script
from stepscope.experiments.supervise import Outcome
from stepscope.experiments.traced import TraceRequest, check_script, hide_secrets
from stepscope.experiments.trial import Nobody, why_not
from stepscope.experiments.trial_folder import temporary_folder
from stepscope.records import reader, schema

_STEPS = 3
_NO_END = 2**30  # data whose length nobody knows
_OURS = (MachineError.exit_code, StepscopeError.exit_code)


def fit_script(
    request: TraceRequest,
    onlooker: Onlooker,
    summarize: Summarize,
    *,
    batch_size: int | None,
    memory_limit_bytes: int | None,
) -> Answer:
    """Find the largest batch for a script; a `batch_size` that somebody wants is tried first.

    Interrupted, it gives the trials so far.

    Raises:
        RequestError: there is no such script, or its batch size cannot be set.
    """
    check_script(request)
    request = replace(request, max_steps=request.max_steps or _STEPS)
    called = shlex.join([*request.target, *hide_secrets(request.arguments)])
    limit = limit_now(memory_limit_bytes)
    answer = Answer(request.target[-1], limit, batch_size, script=called)

    def attempt(batch: int | None) -> Trial:
        onlooker.trying({"batch_size": batch})
        trial, samples = _try(request, batch, limit, summarize)
        answer.most = samples if answer.most is None else answer.most
        answer.trials.append(trial)
        onlooker.tried(trial.to_json())
        return trial

    try:
        first = attempt(batch_size)
        _check_there_are(batch_size, answer.most)
        question = Question(limit.bytes, answer.most or _NO_END, first.batch_size)
        search(question, lambda batch: first if batch == first.batch_size else attempt(batch))
    except OutOfMemoryError as error:
        answer.too_small = str(error)
    except (Interrupted, KeyboardInterrupt):
        answer.interrupted = True
    return answer


def _check_there_are(asked: int | None, samples: int | None) -> None:
    if asked is not None and samples is not None and asked > samples:
        raise RequestError(
            f"batch_size: wanted up to {samples}, the samples of the script's data set, "
            f"found {asked}."
        )


def _try(
    request: TraceRequest, batch: int | None, limit: Limit, summarize: Summarize
) -> tuple[Trial, int | None]:
    """Run the script with a batch, or with its own; return also how many samples it has."""
    loader = {} if batch is None else {"batch_size": batch}
    with temporary_folder(Path(request.out)) as out:
        path = Path(out) / "trial"
        outcome = run_script(
            replace(request, loader=loader),
            path,
            Nobody(),
            summarize,
            memory_limit_bytes=limit.bytes,
            through_prefetch=True,
        )
        if outcome.status == schema.INTERRUPTED:
            raise Interrupted("interrupted")
        run = reader.load_run(path)
        made = training_loader(run)
        own_batch = _own_batch(made, outcome) if batch is None else batch
        return _judge(run, outcome, own_batch, limit), made["samples"] if made else None


def _own_batch(loader: dict[str, Any] | None, outcome: Outcome) -> int:
    """Return the batch that the script has by itself, which is no more than its samples.

    Raises:
        RequestError: it has none that could be set.
        OutOfMemoryError: memory ended it before that was known.
    """
    if loader is None:
        if outcome.status == schema.OUT_OF_MEMORY:
            raise OutOfMemoryError(f"{outcome.reason}, and had made no DataLoader yet")
        raise RequestError(outcome.reason or NO_LOADER)
    if loader["batches_by"] != "loader":
        raise RequestError(
            "the batch size cannot be set in the script's DataLoader: its "
            f"{loader['batches_by']} makes the batches."
        )
    batch: int = loader["found"]["batch_size"]
    return batch if loader["samples"] is None else min(batch, loader["samples"])


def _judge(run: reader.Run, outcome: Outcome, batch: int, limit: Limit) -> Trial:
    """Say from a folder whether the script fits with a batch."""
    peak = outcome.peak_memory_bytes
    status, reason, exit_code = outcome.status, outcome.reason, outcome.exit_code
    if status == schema.COMPLETED and exit_code == 0:
        reason = why_not(run, limit, peak)
    elif status != schema.OUT_OF_MEMORY:  # without a step there is nothing to measure
        status, exit_code = schema.FAILED, exit_code if exit_code in _OURS else 2
    fits = status == schema.COMPLETED and reason is None
    return Trial(batch, fits, peak, status=status, reason=reason, exit_code=exit_code)
