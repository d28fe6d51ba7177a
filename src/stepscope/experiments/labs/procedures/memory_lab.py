"""Why does a training take so much memory, what frees it and when, and what saves some?

A short run gives the bill, its forecast beside the measured peak. A few steps in another process
give the memory by phase. The remedies and the unchanged training are tried in rounds of balanced
random orders, so that a drift of the machine affects all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from stepscope.errors import AnswerIsNo, OutOfMemoryError, RequestError, StepscopeError
from stepscope.records.run_reader import load_run
from stepscope.records.types import (
    FreedMemory,
    MemoryBill,
    MemoryByPhase,
    MemoryForecast,
    MemoryLabAnswer,
    MemoryRemedy,
    MemoryTrialFigures,
    MemoryTrialOptions,
    MemoryTrialRequest,
    PhaseReading,
    SettingValue,
)
from stepscope.settings import RunSpec
from stepscope.stats.decide import FASTER, SLOWER, contrast, design, family
from stepscope.stats.intervals import known_median, median
from stepscope.supervisor import preflight, start_run
from stepscope.supervisor.ask_process import MEMORY_TRIAL, ask_process
from stepscope.supervisor.child_supervisor import RunListener
from stepscope.units import format_bytes

DEFAULTS = {"batch_size": 128, "device": "cpu"}
ROUNDS = 3
STEPS = 8
# In the first two steps torch still loads libraries, and the optimiser creates its state.
_UNTIMED = 2

_NEVER = ("after the training", "end of the process")

# Kinds of memory: the item of the bill, None for tensors that exist at the peak of a step; when it
# is freed; and what frees it.
_FREED: dict[str, tuple[str | None, str, str]] = {
    "activations": (None, "in backward, by layer", "loss.backward()"),
    "temporaries": (None, "within backward", "loss.backward()"),
    "gradients": (None, "after the step", "optimizer.zero_grad()"),
    "batch": (None, "in the next step", "the next batch"),
    "parameters": (None, *_NEVER),
    "optimizer state": ("optimizer_state", *_NEVER),
    "data set": ("dataset", *_NEVER),
    "workers": ("workers", "after every epoch", "end of the iterator"),
    "prefetched batches": ("prefetch", "as the loop takes them", "next() of the iterator"),
    "allocator cache": ("slack", "before every epoch", "malloc_trim(0)"),
    "runtime": ("runtime", *_NEVER),
}


def what_frees(bill: MemoryForecast, spec: RunSpec) -> list[FreedMemory]:
    """List the kinds of memory, each with its bytes at the peak and what frees it."""
    freed: list[FreedMemory] = []
    for kind, (item, when, by) in _FREED.items():
        size = bill["at_peak"][kind] if item is None else bill["items"][item]["bytes"]
        if kind == "workers" and spec.persistent_workers:
            when, by = _NEVER[0], "end of the loader"
        if size:
            freed.append({"kind": kind, "bytes": size, "when": when, "by": by})
    return freed


# Of two phases this close, the first made the process grow: the kernel adds up the counters of its
# cores with a delay.
_SAME_BYTES = 2**19


def by_phase(readings: Sequence[PhaseReading]) -> list[MemoryByPhase]:
    """Summarise the readings of each phase: peaks of the first and later steps, medians at its end.

    `change_bytes` is the growth of memory in use, without what the allocator keeps.
    """
    in_use = [None, *(reading["in_use_bytes"] for reading in readings)]
    changes = [
        None if now is None or before is None else now - before for before, now in pairwise(in_use)
    ]
    found: list[MemoryByPhase] = []
    for name in dict.fromkeys(reading["phase"] for reading in readings):
        own = [pair for pair in zip(readings, changes, strict=True) if pair[0]["phase"] == name]
        later = [pair for pair in own if pair[0]["step"] != 1] or own
        first = [reading["peak_bytes"] for reading, _ in own if reading["step"] == 1]
        found.append(
            {
                "phase": name,
                "times": len(own),
                "first_step_peak_bytes": _most(first) if len(later) < len(own) else None,
                "peak_bytes": _most(reading["peak_bytes"] for reading, _ in later),
                "end_bytes": _middle(reading["end_bytes"] for reading, _ in later),
                "in_use_bytes": _middle(reading["in_use_bytes"] for reading, _ in later),
                "kept_bytes": _middle(reading["kept_bytes"] for reading, _ in later),
                "change_bytes": _middle(change for _, change in later),
            }
        )
    return found


def peak_phase(readings: Sequence[PhaseReading]) -> str | None:
    """Return the phase in which the process first came near its largest size."""
    known = [(peak, each["phase"]) for each in readings if (peak := each["peak_bytes"]) is not None]
    most = max((peak for peak, _ in known), default=0)
    return next((phase for peak, phase in known if peak >= most - _SAME_BYTES), None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _middle(values: Iterable[int | None]) -> int | None:
    middle = known_median(values)
    return None if middle is None else round(middle)


_PARTS = 4
# glibc's initial value, in bytes. Unless it is set, it rises to the largest block freed, up to
# 32 MiB, and smaller blocks come from the heap.
_MMAP_THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Remedy:
    """A change of the settings, of the loop or of the environment that may save memory."""

    name: str
    how: str
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    options: MemoryTrialOptions = field(default_factory=MemoryTrialOptions)
    environment: Mapping[str, str] = field(default_factory=dict)


def remedies_for(spec: RunSpec) -> Iterator[Remedy]:
    """Yield the changes that may save memory in a training."""
    hook = "post-accumulate-grad hook"
    yield Remedy("step inside backward()", hook, options={"step_in_backward": True})
    dropped = "del outputs, images, labels"
    yield Remedy("drop outputs and batch", dropped, options={"drop_early": True})
    yield Remedy("trim the allocator", "malloc_trim(0) every step", options={"trim": True})
    threshold = "MALLOC_MMAP_THRESHOLD_=131072"
    yield Remedy("map large blocks", threshold, environment=_MMAP_THRESHOLD)
    if not spec.checkpoint_activations:
        flag = "--checkpoint-activations"
        yield Remedy("recompute activations", flag, settings={"checkpoint_activations": True})
    if spec.batch_size % _PARTS == 0:
        size, times = spec.batch_size // _PARTS, spec.accumulate * _PARTS
        flags = f"--batch-size {size} --accumulate {times}"
        settings = {"batch_size": size, "accumulate": times}
        yield Remedy("accumulate gradients", flags, settings=settings)
    if not spec.workers:
        return
    if spec.persistent_workers:
        name, flag = "end workers per epoch", "--no-persistent-workers"
    else:
        name, flag = "keep workers", "--persistent-workers"
    yield Remedy(name, flag, settings={"persistent_workers": not spec.persistent_workers})
    if fewer := spec.workers // 2:
        yield Remedy("fewer workers", f"--workers {fewer}", settings={"workers": fewer})
    none = {"workers": 0, "persistent_workers": False}
    yield Remedy("no workers", "--workers 0", settings=none)


def try_steps(
    spec: RunSpec, options: MemoryTrialOptions, environment: Mapping[str, str] | None = None
) -> MemoryTrialFigures:
    """Measure a few steps in another process; raise RequestError if a change does not apply."""
    request: MemoryTrialRequest = {"spec": spec.model_dump(mode="json"), "options": options}
    return ask_process(MEMORY_TRIAL, request, environment)


def run_lab(spec: RunSpec, listener: RunListener) -> MemoryLabAnswer:
    """Measure the bill, the phases and the remedies of a training."""
    if not spec.device.startswith("cpu"):
        raise RequestError(f"device: lab memory runs on the cpu, found {spec.device}.")
    preflight.check(spec)
    steps = min(spec.max_steps or STEPS, STEPS)
    listener.output("a short run, for the bill and the peak")
    bill = _bill_of_a_run(spec, steps, listener)
    listener.output("the same steps, phase by phase")
    epochs = 2 if spec.workers else 1
    readings = try_steps(spec, {"phases": True, "steps": steps, "epochs": epochs})["phases"]
    tried, orders = _try_remedies(spec, {"steps": steps, "epochs": epochs}, listener)
    largest = peak_phase(readings)
    return {
        "lab": "memory",
        "answer": _answer(bill, largest, tried),
        "holds": True,
        "spec": spec.model_dump(mode="json"),
        "bill": bill,
        "phases": by_phase(readings),
        "peak_phase": largest,
        "readings": readings,
        "freed": what_frees(bill, spec),
        "remedies": tried,
        "orders": orders,
    }


def _bill_of_a_run(spec: RunSpec, steps: int, listener: RunListener) -> MemoryBill:
    with tempfile.TemporaryDirectory() as out:
        short = {"epochs": 1, "max_steps": steps, "layers": 0, "out": out}
        path, outcome = start_run.start(spec.model_copy(update=short), listener)
        summary = load_run(path).summary
    if outcome.exit_code:
        kind = OutOfMemoryError if outcome.exit_code == 4 else StepscopeError
        raise kind(f"the short run failed: {outcome.reason}")
    bill = summary["memory_bill"]
    if bill is None:
        raise AnswerIsNo(f"no memory bill: {summary['absent']['memory_bill']}.")
    return bill


_UNCHANGED = "unchanged"


def _try_remedies(
    spec: RunSpec, length: MemoryTrialOptions, listener: RunListener
) -> tuple[list[MemoryRemedy], list[list[str]]]:
    """Try the unchanged training and every remedy in rounds, each in another balanced order.

    Return the remedies, the largest saving first, and the orders.
    """
    remedies = {_UNCHANGED: Remedy(_UNCHANGED, ""), **{r.name: r for r in remedies_for(spec)}}
    trials: dict[str, list[MemoryTrialFigures]] = {name: [] for name in remedies}
    refused: dict[str, str] = {}
    # Only the samples of these steps: the bill has counted the whole data set.
    few = length["steps"] * spec.batch_size * spec.accumulate
    limited = spec.model_copy(update={"samples": min(spec.samples or few, few)})
    orders = design([*remedies], ROUNDS)
    for number, order in enumerate(orders, 1):
        for each in [remedies[name] for name in order if name not in refused]:
            listener.output(f"round {number} of {ROUNDS}: {each.name}")
            changed = limited.model_copy(update=dict(each.settings))
            try:
                figures = try_steps(changed, {**length, **each.options}, each.environment)
            except RequestError as error:
                refused[each.name] = str(error)
            else:
                trials[each.name].append(figures)
    if any(trial["peak_bytes"] is None for made in trials.values() for trial in made):
        why = "this system has no resettable peak of a process's memory"
        refused = dict.fromkeys(remedies, why)
    del remedies[_UNCHANGED]
    tried = weigh_remedies([r for r in remedies.values() if r.name not in refused], trials)
    results = [
        tried.get(each.name) or _refused(each, refused[each.name]) for each in remedies.values()
    ]
    results.sort(key=lambda each: (not each["applies"], -(each["saved_bytes"] or 0)))
    return results, orders


def _refused(remedy: Remedy, reason: str | None) -> MemoryRemedy:
    return {
        "name": remedy.name,
        "how": remedy.how,
        "applies": reason is None,
        "reason": reason,
        "saved_bytes": None,
    }


def weigh_remedies(
    remedies: Sequence[Remedy], trials: Mapping[str, Sequence[MemoryTrialFigures]]
) -> dict[str, MemoryRemedy]:
    """Compare the peaks and the step times with those of the unchanged training.

    The verdicts on all peaks hold together, and so do those on all step times.
    """
    unchanged = trials[_UNCHANGED]
    peaks, times_s = (
        {name: figure_of(made) for name, made in trials.items()}
        for figure_of in (_peaks, _step_times)
    )
    weighed_peaks, weighed_times = (
        family([partial(contrast, of[_UNCHANGED], of[each.name]) for each in remedies])
        for of in (peaks, times_s)
    )
    before = median(peaks[_UNCHANGED]) if unchanged else 0.0
    found: dict[str, MemoryRemedy] = {}
    for remedy, by_peak, by_time in zip(remedies, weighed_peaks, weighed_times, strict=True):
        assert by_peak.ratio is not None, "every remedy was tried in every round"
        assert by_time.ratio is not None, "every step takes some time"
        peak, step = by_peak.ratio, by_time.ratio
        known = peak.low is not None and peak.high is not None
        ends = (peak.high, peak.low) if known else ()
        found[remedy.name] = {
            **_refused(remedy, None),
            "saved_bytes": round((1 - peak.ratio) * before),
            "saved_interval_bytes": [round((1 - (end or 0.0)) * before) for end in ends] or None,
            "differs": by_peak.verdict in (FASTER, SLOWER),
            "step_time_ratio": step.ratio,
            "step_time_interval": [step.low, step.high] if step.low and step.high else None,
            "step_time_differs": by_time.verdict in (FASTER, SLOWER),
            "same_losses": all(
                trial["losses"] == unchanged[0]["losses"] for trial in trials[remedy.name]
            ),
            "without_bytes": [round(peak) for peak in peaks[_UNCHANGED]],
            "with_bytes": [round(peak) for peak in peaks[remedy.name]],
        }
    return found


def _peaks(trials: Sequence[MemoryTrialFigures]) -> list[float]:
    return [peak for trial in trials if (peak := trial["peak_bytes"]) is not None]


def _step_times(trials: Sequence[MemoryTrialFigures]) -> list[float]:
    return [median(trial["step_s"][_UNTIMED:] or trial["step_s"]) for trial in trials]


def _answer(bill: MemoryBill, phase: str | None, remedies: Sequence[MemoryRemedy]) -> str:
    items = sorted(bill["items"].items(), key=lambda item: -item[1]["bytes"])[:3]
    largest = ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(item['bytes'])}" for name, item in items
    )
    peak = bill["peak_memory_bytes"]
    took = f"takes {format_bytes(bill['total_bytes'])} by forecast"
    if peak:
        took = f"took {format_bytes(peak)} at its peak"
    reached = "" if phase is None else f", first reached in {phase}"
    best = next((each for each in remedies if each["applies"] and each["differs"]), None)
    saved_bytes = 0 if best is None else best["saved_bytes"] or 0
    if best is None or saved_bytes <= 0:
        advice = "No remedy is shown to save memory."
    else:
        step = "no difference in the time of a step is detected"
        if best["step_time_differs"]:
            step = f"a step takes {best['step_time_ratio']:.2f} times as long"
        advice = (
            f"The largest saving seen is that of {best['name']} ({best['how']}), "
            f"{format_bytes(saved_bytes)}; {step}."
        )
    return f"The training {took}{reached}; most of it: {largest}. {advice}"
