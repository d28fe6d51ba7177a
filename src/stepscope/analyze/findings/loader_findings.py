"""Findings on the loader: what it spends its time on, and how many workers it needs."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.step_model import StepModel, loading_on_cpu, restart_s, step_model
from stepscope.stats.intervals import median
from stepscope.units import format_count, format_duration, format_share

_MUCH_WAITING = 0.1
_MOSTLY = 0.5
_FEWEST_BATCHES = 10  # of each worker, for a comparison
_UNEVEN = 1.5
_MUCH_OF_LOADING = 0.4
_FEWEST_SAMPLES = 10  # of the stack
_MUCH_IN_SLOW_SAMPLES = 0.2
_WORTHWHILE = 1.05
_MUCH_RESTARTING = 0.03
_TOO_MANY = 2  # times the CPUs
_SLOW_SAMPLES = "slow_samples"

# The cause, the part of loading that it is, and what to do about it.
_PARTS = {
    "transform": ("slow_transform", "the transform {name} takes", "make {name} cheaper"),
    "read": ("slow_reads", "reading files takes", "read less, or from a faster disk or a cache"),
    "decode": ("slow_decoding", "decoding takes", "store the data decoded, or smaller"),
    "collate": ("slow_collate", "collating the batch takes", "make collate_fn cheaper"),
    "dataset": ("slow_dataset", "{line} takes", "make the code at {line} cheaper"),
}


class _Part(NamedTuple):
    """The part of the loader's work that takes most of it."""

    cause: str
    text: str
    change: str
    share: float


class _Change(NamedTuple):
    """A change of the loader, and the expected time of a step with it."""

    cause: str
    text: str
    step_s: float


def waiting_for_data(view: RunView) -> Finding | None:
    """Report the share of a step that waits for data, why, and what to change."""
    share = view.share("data")
    if share < _MUCH_WAITING:
        return None
    part, model = _largest_part(view), step_model(view)
    evidence = _evidence(view, part)
    if model is None:
        text = f"{_waits(view, share)}."
        return Finding("waiting_for_data", text, evidence, view.again("workers"), share)
    change = _best_change(view, model, part)
    saves_s = (view.mean_step_s - change.step_s) * len(view.run.steps)
    if model.workers:  # the first wait of an epoch is for its workers to start
        saves_s -= restart_s(view)
    elif part is not None and part.cause == _SLOW_SAMPLES:
        saves_s += _slow_samples_of_evaluations_s(view)
    elif part is not None and change.cause == part.cause:  # evaluations load in the same way
        saves_s += part.share * sum(row["loading_s"] or 0.0 for row in view.evaluations)
    where = f" from {format_count(model.workers, 'worker')}"
    text = _waits(view, share)
    text += where if model.workers else ", loaded in the training process"
    text += f": {part.text} {format_share(part.share)} of loading." if part else "."
    return Finding(
        part.cause if part else change.cause,
        text,
        evidence,
        view.again("workers"),
        share,
        saves_s=max(0.0, saves_s),
        change=change.text,
    )


def _waits(view: RunView, share: float) -> str:
    if view.device is None:
        return f"{format_share(share)} of every step waits for data"
    return f"The device waits for data {format_share(share)} of the time"


def _best_change(view: RunView, model: StepModel, part: _Part | None) -> _Change:
    """Return more workers, where they save most of the waiting, or less work in loading."""
    best = model.best_workers()
    text = f"set {_settings(view, best)}"
    workers = _Change("too_few_workers", text, model.step_with(best))
    if part is None:
        less_s = model.step_without_loading()
        less = _Change("slow_loading", "make loading cheaper: cache or simplify it", less_s)
    else:
        less = _Change(part.cause, part.change, model.with_cheaper_loading(part.share))
    if less.cause == _SLOW_SAMPLES:
        # More workers hardly help: a slow sample holds up its batch all the same.
        return less._replace(step_s=_step_without_slow_samples(view) or less.step_s)
    if best <= model.workers or model.step_s < _WORTHWHILE * workers.step_s:
        return less
    enough_s = model.step_s - _MOSTLY * (model.step_s - less.step_s)
    return less if workers.step_s > enough_s else workers


def _step_without_slow_samples(view: RunView) -> float | None:
    """Return the mean time of steps whose batch has no slow sample; None if they are few."""
    loader = view.run.summary.get("loader")
    slow = loader["slow_samples"] if loader else []
    slow_s = min((each["took_s"] for each in slow), default=0.0)
    both = zip(view.step_s, view.column("load_s"), strict=True)
    quick = [step_s for step_s, load_s in both if load_s is not None and load_s < slow_s / 2]
    return sum(quick) / len(quick) if len(quick) >= _FEWEST_BATCHES else None


def _slow_samples_of_evaluations_s(view: RunView) -> float:
    """Return the time of slow samples that the training process loads for evaluations."""
    loader, trained = view.run.summary.get("loader"), view.run.summary.get("samples")
    if loader is None or trained is None or not loader["sample_s"]:
        return 0.0
    others = max(0, loader["samples"] - trained)
    evaluation_s = sum(row["total_s"] for row in view.evaluations)
    return min(evaluation_s, others * loader["sample_s"] * loader["slow_share"])


def _settings(view: RunView, workers: int) -> str:
    """Return the settings of a loader with so many workers, which are started once."""
    persistent = ", persistent_workers=True" if len(view.trained) > 1 else ""
    return f"num_workers={workers}{persistent}"


def _largest_part(view: RunView) -> _Part | None:
    """Return what takes most of the loader's time, if anything stands out."""
    loader = view.run.summary.get("loader")
    if loader is None:
        return None
    slow = loader["slow_samples"]
    if slow and loader["slow_share"] >= _MUCH_IN_SLOW_SAMPLES:
        worst = slow[0]
        took = format_duration(worst["took_s"])
        text = f"a few slow samples (index {worst['index']}: {took}) take"
        return _Part(_SLOW_SAMPLES, text, "repair or drop these samples", loader["slow_share"])
    shares: dict[tuple[str, str], float] = defaultdict(float)
    lines: dict[tuple[str, str], str | None] = {}
    for each in loader["parts"]:
        name = each["name"] if each["kind"] == "transform" else each["line"] or each["name"]
        key = (each["kind"], name if each["kind"] in ("transform", "dataset") else each["kind"])
        shares[key] += each["share"]
        lines.setdefault(key, each["line"])
    total = sum(each["samples"] for each in loader["parts"])
    if not shares or total < _FEWEST_SAMPLES:
        return None
    (kind, name), share = max(shares.items(), key=lambda each: each[1])
    if share < _MUCH_OF_LOADING:
        return None
    cause, text, change = _PARTS[kind]
    line = lines[kind, name] or "the data set"
    said, advice = (each.format(name=name, line=line) for each in (text, change))
    return _Part(cause, said, advice, share)


def _evidence(view: RunView, part: _Part | None) -> tuple[str, ...]:
    load_s, workers = view.mean("load_s"), view.workers
    step = format_duration(view.mean_step_s)
    evidence = [f"{format_duration(view.mean_s('data'))} of a mean step of {step} waits for data"]
    if load_s:
        on_cpu = loading_on_cpu(view)
        said = f"a batch takes {format_duration(load_s)} to load"
        if on_cpu is not None:
            said += f", {format_share(on_cpu)} of it on a CPU"
        evidence.append(said)
    if load_s and workers:
        each = format_duration(load_s / workers)
        evidence.append(
            f"{format_count(workers, 'worker')} can deliver one batch every {each} at most"
        )
    loader = view.run.summary.get("loader")
    if loader is None:
        return tuple(evidence)
    largest = [
        f"{each['name']}{' (' + each['line'] + ')' if each['line'] else ''} "
        f"{format_share(each['share'])}"
        for each in loader["parts"][:4]
    ]
    if largest:
        evidence.append(f"loading: {', '.join(largest)}")
    if part is not None and part.cause == _SLOW_SAMPLES:
        slow = [
            f"{each['index']} ({format_duration(each['took_s'])})"
            for each in loader["slow_samples"][:5]
        ]
        evidence.append(f"slowest samples by index: {', '.join(slow)}")
    return tuple(evidence)


def restarted_workers(view: RunView) -> Finding | None:
    """Report the time that starting the workers again takes in every epoch."""
    wall_s, spent_s = view.run.summary.get("wall_s"), restart_s(view)
    if not wall_s or not view.workers or spent_s < _MUCH_RESTARTING * wall_s:
        return None
    if too_many_workers(view) is not None:  # which recommends the same
        return None
    epochs = len(view.trained) - 1
    return Finding(
        "worker_restarts",
        f"Every epoch starts its {format_count(view.workers, 'worker')} anew, which takes "
        f"{format_duration(spent_s / max(epochs, 1))} each time.",
        (f"{format_duration(spent_s)} in {epochs} epochs after the first",),
        weight=spent_s / wall_s,
        saves_s=spent_s,
        change="set persistent_workers=True",
    )


def too_many_workers(view: RunView) -> Finding | None:
    """Report more workers than the CPUs can run, if fewer would be as fast."""
    model = step_model(view)
    if model is None or model.workers <= _TOO_MANY * model.machine.cores:
        return None
    best, again_s = max(1, model.best_workers()), restart_s(view)
    return Finding(
        "too_many_workers",
        f"{model.workers} workers share {format_count(model.machine.cores, 'CPU')} with the "
        f"training: {best} would load as fast.",
        (f"starting them again takes {format_duration(again_s)} after the first epoch",),
        view.again("workers"),
        min(1.0, max(0.05, again_s / (view.run.summary.get("wall_s") or 1.0))),
        saves_s=again_s,
        change=f"set {_settings(view, best)}",
    )


def uneven_workers(view: RunView) -> Finding | None:
    """Report a worker that takes much longer for its batches than another."""
    took_s: dict[int, list[float]] = defaultdict(list)
    for worker, load_s in zip(view.column("load_worker"), view.column("load_s"), strict=True):
        if worker is not None and worker >= 0 and load_s is not None:
            took_s[worker].append(load_s)
    if len(took_s) < 2 or min(map(len, took_s.values())) < _FEWEST_BATCHES:
        return None
    middles = {worker: median(values) for worker, values in took_s.items()}
    slowest, fastest = max(middles, key=middles.__getitem__), min(middles, key=middles.__getitem__)
    if not middles[fastest] or middles[slowest] < _UNEVEN * middles[fastest]:
        return None
    return Finding(
        "uneven_workers",
        f"Worker {slowest} takes {middles[slowest] / middles[fastest]:.1f} times as long per batch "
        f"as worker {fastest}. Batches are used in turn, so all workers wait for it.",
        tuple(
            f"worker {worker}: {format_duration(middle)} per batch (median of "
            f"{len(took_s[worker])})"
            for worker, middle in sorted(middles.items())
        ),
        view.again("bottleneck" if view.run.info.get("kind") != "trace" else "workers"),
        view.share("data"),
    )


def lost_workers(view: RunView) -> Finding | None:
    """Report that the loader continued with fewer workers."""
    lost = [event for event in view.run.events if event["event"] == "workers_fallback"]
    if not lost:
        return None
    return Finding(
        "lost_workers",
        f"Loader workers died: the run continued with {lost[-1]['to']} of {lost[0]['from']}, so "
        "its figures mix both.",
        tuple(f"epoch {each['epoch']}, batch {each['batch']}: {each['reason']}" for each in lost),
        view.again("workers"),
        1.0,
    )


def bad_samples(view: RunView) -> Finding | None:
    """Report samples that could not be read."""
    bad = [event for event in view.run.events if event["event"] == "bad_sample"]
    if not bad:
        return None
    evidence = [f"{each['path']}: {each['reason']}" for each in bad[:5]]
    if len(bad) > 5:
        evidence.append(f"and {len(bad) - 5} more in events.jsonl")
    text = f"{len(bad)} samples could not be read and were skipped."
    return Finding("bad_samples", text, tuple(evidence), weight=1.0)


def retried_requests(view: RunView) -> Finding | None:
    """Report requests to an object store that were retried."""
    retried = [event for event in view.run.events if event["event"] == "requests_retried"]
    if not retried:
        return None
    waited_s = sum(each.get("waited_s") or 0.0 for each in retried)
    wall_s = view.run.summary.get("wall_s")
    return Finding(
        "retried_requests",
        f"{sum(each['retries'] for each in retried)} requests to the object store were retried, "
        f"after {waited_s:.1f} s of waiting.",
        tuple(sorted({str(reason) for each in retried for reason in each.get("reasons") or ()})),
        weight=min(1.0, waited_s / wall_s) if wall_s else 0.05,
    )
