"""Is a training bound by compute, by preprocessing or by storage? The same training three ways."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope.analyze.bottleneck_shares import Way, data_stalls
from stepscope.analyze.sweep_summary import mean_step, rate_interval
from stepscope.errors import AnswerIsNo, RequestError
from stepscope.experiments import sweep_run
from stepscope.experiments.sweep_run import SweepListener
from stepscope.experiments.workload import TrainingWorkload, short_training
from stepscope.hardware.disk import caches_beyond_reach
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import BottleneckAnswer, SettingValue, StepFigures, WayFigures
from stepscope.settings import RunSpec
from stepscope.stats.intervals import interval_of

REPEATS = 3


def find_stalls(
    workload: TrainingWorkload,
    listener: SweepListener,
    *,
    repeats: int,
    out: Path,
    name: str,
) -> BottleneckAnswer:
    """Run the three ways in rounds, and return the time lost to each cause.

    Raises:
        RequestError: the training has no source to read from.
        AnswerIsNo: one of the ways did not complete.
    """
    began = time.monotonic()
    spec = workload.spec({})
    settings = ways_of(spec)
    request = sweep_run.SweepRequest(list(settings.values()), repeats, out, name, kind="stalls")
    sweep = sweep_run.start(short_training(workload.asked, spec), request, listener)
    by_way = {way: _completed(sweep, way, values) for way, values in settings.items()}
    samples_a_step = spec.batch_size * spec.accumulate
    rounds = [data_stalls(figures, samples_a_step, spec.workers) for figures in _rounds(by_way)]
    pooled = data_stalls(
        {way: _mean_step_of(trials) for way, trials in by_way.items()}, samples_a_step, spec.workers
    )
    words = [each["bound_by"] for each in rounds]
    agreed = 2 * words.count(pooled["bound_by"]) > len(words)
    cold = by_way["source"][0].metrics.get("page_cache")
    return {
        **pooled,
        "bound_by": pooled["bound_by"] if agreed else "unclear",
        "lost_by_round": [each["lost"] for each in rounds],
        "workers": spec.workers,
        "ways": {way: _way_figures(settings[way], trials) for way, trials in by_way.items()},
        "page_cache": cold,
        "caches_not_emptied": caches_beyond_reach(
            Path(spec.data_dir), None if cold is None else cold["cold_share"]
        ),
        "cost_s": time.monotonic() - began,
        "path": str(sweep.path),
    }


def _mean_step_of(trials: Sequence[Trial]) -> StepFigures:
    return mean_step(trial.metrics["steady"] for trial in trials)


def _rounds(by_way: Mapping[Way, list[Trial]]) -> list[dict[Way, StepFigures]]:
    """Return the figures of the three ways for each round that all of them completed."""
    seen = {way: {t.repeat: t.metrics["steady"] for t in trials} for way, trials in by_way.items()}
    shared = set.intersection(*(set(rounds) for rounds in seen.values()))
    return [{way: rounds[number] for way, rounds in seen.items()} for number in sorted(shared)]


def ways_of(spec: RunSpec) -> dict[Way, dict[str, SettingValue]]:
    """Return the settings of each way; artificial delays only in the way that they belong to."""
    if spec.source == "synthetic":
        raise RequestError("source: synthetic batches read nothing. Use memory, local or a store.")
    at_hand: dict[str, SettingValue] = {"page_cache": "keep", "source_delay_ms": 0.0}
    source = "local" if spec.source == "memory" else spec.source
    return {
        "synthetic": {
            **at_hand,
            "source": "synthetic",
            "workers": 0,
            "persistent_workers": False,
            "pipeline_delay_ms": 0.0,
        },
        "memory": {**at_hand, "source": "memory"},
        "source": {"source": source, "page_cache": "cold-epochs"},
    }


def _completed(sweep: Sweep, way: Way, values: Mapping[str, SettingValue]) -> list[Trial]:
    trials = [trial for trial in sweep.trials if trial.values == values]
    done = [t for t in trials if t.status == schema.COMPLETED and t.metrics["steady_steps"]]
    if not done:
        reason = trials[0].reason or "its epoch has only start-up steps"
        raise AnswerIsNo(f"the training {_WORDS[way]} gave no figures: {reason}")
    return done


_WORDS: dict[Way, str] = {
    "synthetic": "on synthetic batches",
    "memory": "with its data in memory",
    "source": "with data from its source",
}


def _way_figures(values: Mapping[str, SettingValue], trials: Sequence[Trial]) -> WayFigures:
    rates = (trial.metrics["steady_samples_per_s"] for trial in trials)
    return {
        "settings": dict(values),
        "samples_per_s": rate_interval(interval_of([rate for rate in rates if rate is not None])),
        "runs": len(trials),
        **_mean_step_of(trials),
    }
