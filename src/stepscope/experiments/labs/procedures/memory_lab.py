"""Why does it use so much, which part of the code frees memory, and when?

Three looks at the same training. The bill: a short run, whose forecast stands beside its measured
peak. The phases: a few steps in a process that reads its own size at the end of each phase, and
the most that it was meanwhile. The ways to hold less: each tried for some steps, in turns with the
training as it is, so that a machine that drifts does so for both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
from stepscope.stats import known_median, median
from stepscope.supervisor import preflight, start_run
from stepscope.supervisor.ask_process import MEMORY_TRIAL, ask_process
from stepscope.supervisor.child_supervisor import RunListener
from stepscope.units import format_bytes

# --- When the memory of a training goes, and which call lets it go: in words that name the code.


_NEVER, _PROCESS_END = "not before the training ends", "the end of the process"

# By kind of memory: the item of the bill that it is, or None for tensors that are alive at the peak
# of a step; when it goes; and which call lets it go.
_FREED: dict[str, tuple[str | None, str, str]] = {
    "activations": (
        None,
        "in the backward pass, layer by layer, the last layer's first",
        "loss.backward(); loss.detach() lets go of what is left of the graph",
    ),
    "temporaries": (
        None,
        "within the backward pass, as soon as the layer before has used them",
        "loss.backward()",
    ),
    "gradients": (
        None,
        "after the step, all at once",
        "optimizer.zero_grad(), which sets them to None",
    ),
    "batch": (
        None,
        "in the next step, when the next batch is there",
        "images, labels = ... bound again; outputs and loss likewise, by the next forward",
    ),
    "parameters": (None, _NEVER, _PROCESS_END),
    "optimizer state": ("optimizer_state", f"{_NEVER}; made by the first step()", _PROCESS_END),
    "data set": ("dataset", _NEVER, _PROCESS_END),
    "workers": (
        "workers",
        "at the end of every epoch and test",
        "the loader's iterator, when it goes",
    ),
    "batches made ahead": (
        "prefetch",
        "one by one, as the loop takes them",
        "next(batches); the rest with the loader's iterator",
    ),
    "kept by the allocator": (
        "slack",
        "when it is told to, which the loop does before every epoch",
        "malloc_trim(0), or the end of the process",
    ),
    "runtime": ("runtime", _NEVER, _PROCESS_END),
}
_PERSISTENT = (_NEVER, "persistent workers live until the loader goes")


def what_frees(bill: MemoryForecast, spec: RunSpec) -> list[FreedMemory]:
    """List the kinds of memory, each with its bytes at the peak and what ends it."""
    freed: list[FreedMemory] = []
    for kind, (item, when, by) in _FREED.items():
        size = bill["at_peak"][kind] if item is None else bill["items"][item]["bytes"]
        if kind == "workers" and spec.persistent_workers:
            when, by = _PERSISTENT
        if size:
            freed.append({"kind": kind, "bytes": size, "when": when, "by": by})
    return freed


# --- Readings of a process's memory, put together phase by phase


# Of two phases that come so near each other, the first one has made the process grow: the kernel
# keeps the counters of each core for a while before it adds them up.
_SAME_BYTES = 2**19


def by_phase(readings: Sequence[PhaseReading]) -> list[MemoryByPhase]:
    """Put the readings of a phase together: most in the first step and later, medians at its end.

    `change_bytes` is by how much what the program holds grew in the phase, in the middle of the
    later steps; what the allocator keeps is not in it.
    """
    changes: list[int | None] = []
    before: int | None = None
    for reading in readings:
        now = reading["in_use_bytes"]
        changes.append(None if now is None or before is None else now - before)
        before = now
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
    """Name the phase in which the process first was about as large as it ever was."""
    known = [(peak, each["phase"]) for each in readings if (peak := each["peak_bytes"]) is not None]
    most = max((peak for peak, _ in known), default=0)
    return next((phase for peak, phase in known if peak >= most - _SAME_BYTES), None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _middle(values: Iterable[int | None]) -> int | None:
    middle = known_median(values)
    return None if middle is None else round(middle)


# --- Ways to make a training hold less: which there are for a spec, and how each is tried


PARTS = 4

# glibc's own first value, in bytes. Set by hand it stays: otherwise it rises to the largest block
# that was ever freed, up to 32 MiB, and what is below comes from the heap.
_MAP_FROM_BYTES = 131072


@dataclass(frozen=True)
class Way:
    """One change: of settings, of what the loop does, or of the process's environment."""

    name: str
    how: str
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    options: MemoryTrialOptions = field(default_factory=MemoryTrialOptions)
    environment: Mapping[str, str] = field(default_factory=dict)


def ways_for(spec: RunSpec) -> Iterator[Way]:
    """Go through what may save memory in a training. Whether it does is for a trial to show."""
    yield Way(
        "gradients freed earlier",
        "step and clear inside backward(), by register_post_accumulate_grad_hook",
        options={"step_in_backward": True},
    )
    yield Way(
        "outputs and batch dropped",
        "del outputs, images, labels before backward()",
        options={"drop_early": True},
    )
    yield Way("allocator trimmed", "malloc_trim(0) after every step", options={"trim": True})
    yield Way(
        "large blocks mapped",
        f"environment MALLOC_MMAP_THRESHOLD_={_MAP_FROM_BYTES}",
        environment={"MALLOC_MMAP_THRESHOLD_": str(_MAP_FROM_BYTES)},
    )
    if not spec.checkpoint_activations:
        yield Way(
            "activations recomputed",
            "--checkpoint-activations",
            settings={"checkpoint_activations": True},
        )
    if spec.batch_size % PARTS == 0:
        size, times = spec.batch_size // PARTS, spec.accumulate * PARTS
        yield Way(
            "smaller batch, accumulated",
            f"--batch-size {size} --accumulate {times}",
            settings={"batch_size": size, "accumulate": times},
        )
    if not spec.workers:
        return
    kept = not spec.persistent_workers
    flag = "--persistent-workers" if kept else "--no-persistent-workers"
    name = "workers kept between epochs" if kept else "workers ended between epochs"
    yield Way(name, flag, settings={"persistent_workers": kept})
    fewer = spec.workers // 2
    if fewer:
        yield Way("fewer workers", f"--workers {fewer}", settings={"workers": fewer})
    none = {"workers": 0, "persistent_workers": False}
    yield Way("no workers", "--workers 0", settings=none)


# --- Two kinds of trials compared: what a change did, and whether that is a difference


class MeasuredChange(NamedTuple):
    """The median of what a change did round by round, and how far the rounds lie apart."""

    median: float
    spread: float
    differs: bool


def saving(without_bytes: Sequence[int], with_bytes: Sequence[int]) -> MeasuredChange:
    """Compare peaks of trials that were made in turns: what was saved, or, below 0, lost."""
    saved = [before - after for before, after in zip(without_bytes, with_bytes, strict=True)]
    return _change(saved, neutral=0)


def cost(without_s: Sequence[Sequence[float]], with_s: Sequence[Sequence[float]]) -> MeasuredChange:
    """Compare the steps of trials that were made in turns: by what their medians are multiplied."""
    ratios = [
        median(after) / median(before) for before, after in zip(without_s, with_s, strict=True)
    ]
    return _change(ratios, neutral=1)


def _change(rounds: Sequence[float], neutral: float) -> MeasuredChange:
    middle, spread = median(rounds), max(rounds) - min(rounds)
    return MeasuredChange(middle, spread, abs(middle - neutral) > spread)


# --- A few real steps in a separate process, which reports their memory


def try_steps(
    spec: RunSpec, options: MemoryTrialOptions, environment: Mapping[str, str] | None = None
) -> MemoryTrialFigures:
    """Have `processes.memory_trial` take some steps of a spec, and return what it saw.

    Raises:
        StepscopeError: it cannot be done; a RequestError where the change does not apply.
    """
    asked: MemoryTrialRequest = {"spec": spec.model_dump(mode="json"), "options": options}
    return ask_process(MEMORY_TRIAL, asked, environment)


DEFAULTS = {"batch_size": 128, "device": "cpu"}

ROUNDS = 3
STEPS = 8
# In the first two steps torch still loads what it needs, and the optimiser makes its state.
_UNTIMED = 2


def run_lab(
    spec: RunSpec,
    listener: RunListener,
    *,
    rounds: int = ROUNDS,
    ways: Iterable[Way] | None = None,
) -> MemoryLabAnswer:
    """Make the bill, the phases and the trials of what would save memory."""
    if not spec.device.startswith("cpu"):
        raise RequestError(f"lab memory looks at the CPU's memory, found device {spec.device}.")
    preflight.check(spec)
    steps = min(spec.max_steps or STEPS, STEPS)
    listener.output("a short run, for the bill and the peak")
    bill = _bill_of_a_run(spec, steps, listener)
    listener.output("the same steps, phase by phase")
    epochs = 2 if spec.workers else 1
    readings = try_steps(spec, {"phases": True, "steps": steps, "epochs": epochs})["phases"]
    tried = list(ways_for(spec) if ways is None else ways)
    remedies = _try_ways(spec, tried, steps, epochs, rounds, listener)
    largest = peak_phase(readings)
    return {
        "lab": "memory",
        "answer": _answer(bill, largest, remedies),
        "holds": True,
        "spec": spec.model_dump(mode="json"),
        "bill": bill,
        "phases": by_phase(readings),
        "peak_phase": largest,
        "readings": readings,
        "freed": what_frees(bill, spec),
        "remedies": remedies,
    }


def _bill_of_a_run(spec: RunSpec, steps: int, listener: RunListener) -> MemoryBill:
    with tempfile.TemporaryDirectory() as out:
        short = {"epochs": 1, "max_steps": steps, "layers": 0, "out": out}
        path, outcome = start_run.start(spec.model_copy(update=short), listener)
        summary = load_run(path).summary
    if outcome.exit_code:
        kind = OutOfMemoryError if outcome.exit_code == 4 else StepscopeError
        raise kind(f"the short run ended without a bill: {outcome.reason}")
    bill = summary["memory_bill"]
    if bill is None:
        raise AnswerIsNo(f"no bill: {summary['absent']['memory_bill']}.")
    return bill


def _try_ways(
    spec: RunSpec, ways: list[Way], steps: int, epochs: int, rounds: int, listener: RunListener
) -> list[MemoryRemedy]:
    """Try the training as it is and every way, in turns; the largest saving comes first."""
    as_it_is = Way("as it is", "")
    trials: dict[str, list[MemoryTrialFigures]] = {way.name: [] for way in [as_it_is, *ways]}
    refused: dict[str, str] = {}
    # The samples of these steps and no more: the whole data set is read for the bill, and would
    # only take time here.
    few = steps * spec.batch_size * spec.accumulate
    samples = min(spec.samples or few, few)
    for turn in range(1, rounds + 1):
        for way in [as_it_is, *ways]:
            if way.name in refused:
                continue
            listener.output(f"trying, {turn} of {rounds}: {way.name}")
            changed = spec.model_copy(update={"samples": samples, **way.settings})
            options: MemoryTrialOptions = {"steps": steps, "epochs": epochs, **way.options}
            try:
                trials[way.name].append(try_steps(changed, options, way.environment))
            except RequestError as error:
                if way is as_it_is:
                    raise
                refused[way.name] = str(error)
    without = trials[as_it_is.name]
    remedies = [_weigh(way, without, trials[way.name], refused.get(way.name)) for way in ways]
    return sorted(remedies, key=lambda each: (not each["applies"], -(each["saved_bytes"] or 0)))


def _weigh(
    way: Way,
    without: Sequence[MemoryTrialFigures],
    tried: Sequence[MemoryTrialFigures],
    refused: str | None,
) -> MemoryRemedy:
    before = [peak for trial in without if (peak := trial["peak_bytes"]) is not None]
    after = [peak for trial in tried if (peak := trial["peak_bytes"]) is not None]
    if refused is None and len(before) + len(after) < len(without) + len(tried):
        refused = "this system keeps no high-water mark that can begin anew"
    if refused is not None:
        return {
            "name": way.name,
            "how": way.how,
            "applies": False,
            "reason": refused,
            "saved_bytes": None,
        }
    saved, slower = saving(before, after), cost(_timed(without), _timed(tried))
    return {
        "name": way.name,
        "how": way.how,
        "applies": True,
        "reason": None,
        "saved_bytes": round(saved.median),
        "spread_bytes": round(saved.spread),
        "differs": saved.differs,
        "step_time_ratio": slower.median,
        "step_time_spread": slower.spread,
        "step_time_differs": slower.differs,
        "same_losses": all(trial["losses"] == without[0]["losses"] for trial in tried),
        "without_bytes": before,
        "with_bytes": after,
    }


def _timed(trials: Sequence[MemoryTrialFigures]) -> list[list[float]]:
    return [trial["step_s"][_UNTIMED:] or trial["step_s"] for trial in trials]


def _answer(bill: MemoryBill, phase: str | None, remedies: Sequence[MemoryRemedy]) -> str:
    items = sorted(bill["items"].items(), key=lambda item: -item[1]["bytes"])[:3]
    largest = ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(item['bytes'])}" for name, item in items
    )
    peak = bill["peak_memory_bytes"]
    said = [
        f"The training took {format_bytes(peak)} at its peak; most of it: {largest}."
        if peak
        else f"By forecast the training takes {format_bytes(bill['total_bytes'])}: {largest}."
    ]
    if phase is not None:
        said.append(f"The process was largest in: {phase}.")
    best = next((each for each in remedies if each["applies"] and each["differs"]), None)
    saved_bytes = 0 if best is None else best["saved_bytes"] or 0
    if best is None or saved_bytes <= 0:
        said.append("Nothing that was tried saves more than trials differ by.")
    else:
        slower = f"{best['step_time_ratio']:.2f} times" if best["step_time_differs"] else "about"
        said.append(
            f"What saves most: {best['how']}, {format_bytes(saved_bytes)}, "
            f"at {slower} the time of a step."
        )
    return " ".join(said)
