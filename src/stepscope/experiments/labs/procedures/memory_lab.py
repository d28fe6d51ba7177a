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
from typing import Any

from stepscope.errors import AnswerIsNo, OutOfMemoryError, RequestError, StepscopeError
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, cost, saving
from stepscope.records.run_reader import load_run
from stepscope.records.types import MemoryBill
from stepscope.settings import RunSpec
from stepscope.stats import median
from stepscope.supervisor import preflight, start_run
from stepscope.supervisor.ask_process import ask_process
from stepscope.units import format_bytes

# --- When the memory of a training goes, and which call lets it go: in words that name the code.


_NEVER = "not before the training ends"


def what_frees(bill: MemoryBill, spec: RunSpec) -> list[dict[str, Any]]:
    """List the kinds of memory, each with its bytes at the peak and what ends it.

    `bytes` are counted: tensors as they are alive at the peak of a step, the rest from the bill.
    """
    return [
        {"kind": kind, "bytes": size, "when": when, "by": by}
        for kind, size, when, by in _kinds(bill, spec)
        if size
    ]


def _kinds(bill: MemoryBill, spec: RunSpec) -> Iterator[tuple[str, int, str, str]]:
    alive, items = bill["at_peak"], bill["items"]
    yield (
        "activations",
        alive["activations"],
        "in the backward pass, layer by layer, the last layer's first",
        "loss.backward(); loss.detach() lets go of what is left of the graph",
    )
    yield (
        "temporaries",
        alive["temporaries"],
        "within the backward pass, as soon as the layer before has used them",
        "loss.backward()",
    )
    yield (
        "gradients",
        alive["gradients"],
        "after the step, all at once",
        "optimizer.zero_grad(), which sets them to None",
    )
    yield (
        "batch",
        alive["batch"],
        "in the next step, when the next batch is there",
        "images, labels = ... bound again; outputs and loss likewise, by the next forward",
    )
    yield ("parameters", alive["parameters"], _NEVER, "the end of the process")
    yield (
        "optimizer state",
        items["optimizer_state"]["bytes"],
        f"{_NEVER}; made by the first step()",
        "the end of the process",
    )
    yield ("data set", items["dataset"]["bytes"], _NEVER, "the end of the process")
    if spec.persistent_workers:
        ended = (_NEVER, "persistent workers live until the loader goes")
    else:
        ended = ("at the end of every epoch and test", "the loader's iterator, when it goes")
    yield ("workers", items["workers"]["bytes"], *ended)
    yield (
        "batches made ahead",
        items["prefetch"]["bytes"],
        "one by one, as the loop takes them",
        "next(batches); the rest with the loader's iterator",
    )
    yield (
        "kept by the allocator",
        items["slack"]["bytes"],
        "when it is told to, which the loop does before every epoch",
        "malloc_trim(0), or the end of the process",
    )
    yield ("runtime", items["runtime"]["bytes"], _NEVER, "the end of the process")


# --- Readings of a process's memory, put together phase by phase


# Of two phases that come so near each other, the first one has made the process grow: the kernel
# keeps the counters of each core for a while before it adds them up.
_SAME_BYTES = 2**19


def by_phase(readings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the readings of a phase together: most in the first step and later, medians at its end.

    `change_bytes` is by how much what the program holds grew in the phase, in the middle of the
    later steps; what the allocator keeps is not in it.
    """
    in_use = [reading["in_use_bytes"] for reading in readings]
    changes = [_difference(*pair) for pair in zip(in_use, [None, *in_use], strict=False)]
    found = []
    for name in dict.fromkeys(reading["phase"] for reading in readings):
        numbers = [number for number, each in enumerate(readings) if each["phase"] == name]
        later = [number for number in numbers if readings[number]["step"] != 1] or numbers
        first = [number for number in numbers if number not in later]
        found.append(
            {
                "phase": name,
                "times": len(numbers),
                "first_step_peak_bytes": _most(readings, first, "peak_bytes"),
                "peak_bytes": _most(readings, later, "peak_bytes"),
                "end_bytes": _middle([readings[number]["end_bytes"] for number in later]),
                "in_use_bytes": _middle([readings[number]["in_use_bytes"] for number in later]),
                "kept_bytes": _middle([readings[number]["kept_bytes"] for number in later]),
                "change_bytes": _middle([changes[number] for number in later]),
            }
        )
    return found


def peak_phase(readings: Sequence[dict[str, Any]]) -> str | None:
    """Name the phase in which the process first was about as large as it ever was."""
    known = [reading for reading in readings if reading["peak_bytes"] is not None]
    if not known:
        return None
    most = max(reading["peak_bytes"] for reading in known)
    return next(
        str(reading["phase"]) for reading in known if reading["peak_bytes"] >= most - _SAME_BYTES
    )


def _most(readings: Sequence[dict[str, Any]], numbers: list[int], name: str) -> int | None:
    known = [readings[number][name] for number in numbers if readings[number][name] is not None]
    return max(known, default=None)


def _middle(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


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
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
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
    if spec.workers:
        yield from _of_workers(spec)


def _of_workers(spec: RunSpec) -> Iterator[Way]:
    kept = not spec.persistent_workers
    flag = "--persistent-workers" if kept else "--no-persistent-workers"
    name = "workers kept between epochs" if kept else "workers ended between epochs"
    yield Way(name, flag, settings={"persistent_workers": kept})
    fewer = spec.workers // 2
    if fewer:
        yield Way("fewer workers", f"--workers {fewer}", settings={"workers": fewer})
    none = {"workers": 0, "persistent_workers": False}
    yield Way("no workers", "--workers 0", settings=none)


# --- A few real steps in a process of their own, which tells what memory they took


def try_steps(
    spec: RunSpec, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Have `processes.memory_trial` take some steps of a spec, and return what it saw.

    Raises:
        StepscopeError: it cannot be done; a RequestError where the change does not apply.
    """
    asked = {"spec": spec.model_dump(mode="json"), "options": dict(options)}
    seen: dict[str, Any] = ask_process("stepscope.processes.memory_trial", asked, environment)
    return seen


DEFAULTS = {"batch_size": 128, "device": "cpu"}

ROUNDS = 3
STEPS = 8
# In the first two steps torch still loads what it needs, and the optimiser makes its state.
_UNTIMED = 2


def investigate(
    spec: RunSpec, tools: Tools, *, rounds: int = ROUNDS, ways: Iterable[Way] | None = None
) -> LabFinding:
    """Make the bill, the phases and the trials of what would save memory."""
    if not spec.device.startswith("cpu"):
        raise RequestError(f"lab memory looks at the CPU's memory, found device {spec.device}.")
    preflight.check(spec)
    steps = min(spec.max_steps or STEPS, STEPS)
    tools.say("a short run, for the bill and the peak")
    bill = _bill_of_a_run(spec, steps, tools)
    tools.say("the same steps, phase by phase")
    epochs = 2 if spec.workers else 1
    seen = try_steps(spec, {"phases": True, "steps": steps, "epochs": epochs})
    remedies = _try_ways(
        spec, list(ways_for(spec) if ways is None else ways), steps, epochs, rounds, tools
    )
    phases = by_phase(seen["phases"])
    figures = {
        "spec": spec.model_dump(mode="json"),
        "bill": bill,
        "phases": phases,
        "peak_phase": peak_phase(seen["phases"]),
        "readings": seen["phases"],
        "freed": what_frees(bill, spec),
        "remedies": remedies,
    }
    return LabFinding(_answer(bill, figures["peak_phase"], remedies), figures=figures)


def _bill_of_a_run(spec: RunSpec, steps: int, tools: Tools) -> MemoryBill:
    with tempfile.TemporaryDirectory() as out:
        short = {"epochs": 1, "max_steps": steps, "layers": 0, "out": out}
        path, outcome = start_run.start(spec.model_copy(update=short), tools.listener)
        summary = load_run(path).summary
    if outcome.exit_code:
        kind = OutOfMemoryError if outcome.exit_code == 4 else StepscopeError
        raise kind(f"the short run ended without a bill: {outcome.reason}")
    bill = summary["memory_bill"]
    if bill is None:
        raise AnswerIsNo(f"no bill: {summary['absent']['memory_bill']}.")
    return bill


def _try_ways(
    spec: RunSpec, ways: list[Way], steps: int, epochs: int, rounds: int, tools: Tools
) -> list[dict[str, Any]]:
    """Try the training as it is and every way, in turns; the largest saving comes first."""
    as_it_is = Way("as it is", "")
    trials: dict[str, list[dict[str, Any]]] = {way.name: [] for way in [as_it_is, *ways]}
    refused: dict[str, str] = {}
    for turn in range(1, rounds + 1):
        for way in [as_it_is, *ways]:
            if way.name in refused:
                continue
            tools.say(f"trying, {turn} of {rounds}: {way.name}")
            try:
                trials[way.name].append(_try_way(spec, way, steps, epochs))
            except RequestError as error:
                if way is as_it_is:
                    raise
                refused[way.name] = str(error)
    tried = [_weigh(way, trials[as_it_is.name], trials[way.name], refused) for way in ways]
    return sorted(tried, key=lambda each: (not each["applies"], -(each["saved_bytes"] or 0)))


def _try_way(spec: RunSpec, way: Way, steps: int, epochs: int) -> dict[str, Any]:
    # The samples of these steps and no more: the whole data set is read for the bill, and would
    # only take time here.
    few = steps * spec.batch_size * spec.accumulate
    changed = {"samples": min(spec.samples or few, few), **way.settings}
    options = {"steps": steps, "epochs": epochs, **way.options}
    return try_steps(spec.model_copy(update=changed), options, way.environment)


def _weigh(
    way: Way,
    without: list[dict[str, Any]],
    tried: list[dict[str, Any]],
    refused: dict[str, str],
) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": way.name,
        "how": way.how,
        "applies": False,
        "reason": refused.get(way.name),
        "saved_bytes": None,
    }
    if way.name in refused:
        return known
    before, after = ([trial["peak_bytes"] for trial in each] for each in (without, tried))
    if None in before or None in after:
        return {**known, "reason": "this system keeps no high-water mark that can begin anew"}
    saved, slower = saving(before, after), cost(_timed(without), _timed(tried))
    return {
        **known,
        "applies": True,
        "saved_bytes": saved.saved_bytes,
        "spread_bytes": saved.spread_bytes,
        "differs": saved.differs,
        "step_time_ratio": slower.ratio,
        "step_time_spread": slower.spread,
        "step_time_differs": slower.differs,
        "same_losses": all(trial["losses"] == without[0]["losses"] for trial in tried),
        "without_bytes": before,
        "with_bytes": after,
    }


def _timed(trials: list[dict[str, Any]]) -> list[list[float]]:
    return [trial["step_s"][_UNTIMED:] or trial["step_s"] for trial in trials]


def _answer(bill: MemoryBill, phase: str | None, remedies: list[dict[str, Any]]) -> str:
    items = sorted(bill["items"].items(), key=lambda item: -int(item[1]["bytes"]))[:3]
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
    if best is None or best["saved_bytes"] <= 0:
        said.append("Nothing that was tried saves more than trials differ by.")
    else:
        slower = f"{best['step_time_ratio']:.2f} times" if best["step_time_differs"] else "about"
        said.append(
            f"What saves most: {best['how']}, {format_bytes(best['saved_bytes'])}, "
            f"at {slower} the time of a step."
        )
    return " ".join(said)
