"""Findings on the steps: disproportionate phases, outliers, drift, noise, inferred steps."""

from __future__ import annotations

from collections import Counter

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.findings.wall_time_findings import work_in_loop
from stepscope.records import schema
from stepscope.stats.decide import FASTER, SLOWER, trend
from stepscope.stats.intervals import median, quantile
from stepscope.units import format_duration, format_share

_MUCH_START_UP = 0.2  # share of a later epoch
_LATER_EPOCHS = 2
_FAR = 3.0  # multiple of the median
_MUCH_FAR = 0.03  # share of the time
_AT_LEAST_FAR = 3
_NEAR_S = 1.0
_THIRD = 20  # steps in each third, for a comparison
_DRIFT = 0.1
_MUCH_OPTIMIZER = 0.25
_MUCH_TRANSFER = 0.1
_MUCH_OTHER = 0.1
_COSTLY = 0.03
_FEWEST_STEPS = 30
_NOISY = 0.3


def start_up(view: RunView) -> Finding | None:
    """Report the cost of the first epoch beyond that of a later one."""
    trained = [row for row in view.trained if row["total_s"]]
    if len(trained) < 1 + _LATER_EPOCHS:
        return None
    first, later = trained[0], trained[1:]
    later_s = median([row["total_s"] for row in later])
    longest_s = max(row["total_s"] for row in later)
    extra_s = first["total_s"] - later_s
    if extra_s < _MUCH_START_UP * later_s or first["total_s"] <= longest_s:
        return None
    starts_s = median([row["loader_start_s"] for row in later])
    return Finding(
        "start_up",
        f"The first epoch takes {format_duration(extra_s)} longer than the others. It is excluded "
        "from medians and shares.",
        (
            f"epoch 1: {format_duration(first['total_s'])}; later epochs: "
            f"{format_duration(later_s)} (median of {len(later)})",
            f"loader start: {format_duration(first['loader_start_s'])}; later "
            f"{format_duration(starts_s)}",
        ),
        weight=extra_s / sum(row["total_s"] for row in trained),
    )


def far_steps(view: RunView) -> Finding | None:
    """Report the time of steps far above the median, and the events during them."""
    limit_s = _FAR * view.median_s
    far = [number for number, took_s in enumerate(view.step_s) if took_s > limit_s]
    share = sum(view.step_s[number] - view.median_s for number in far) / sum(view.step_s)
    if len(far) < _AT_LEAST_FAR or share < _MUCH_FAR:
        return None
    phases: Counter[str] = Counter()
    for phase in schema.PHASES:
        values = view.column(f"{phase}_s")
        usual = median(values)
        phases[phase] = sum(max(0.0, values[number] - usual) for number in far)
    phase, excess_s = phases.most_common(1)[0]
    starts = view.column("start_s")
    times = [(starts[number] - _NEAR_S, starts[number] + view.step_s[number]) for number in far]
    events = Counter(
        event["event"]
        for event in view.run.events
        if any(begin_s <= event["time_s"] <= end_s for begin_s, end_s in times)
    )
    return Finding(
        "far_steps",
        f"{len(far)} outlier steps take {format_share(share)} of the time, mostly in `{phase}`.",
        (
            f"{len(far)} of {len(view.step_s)} steps take over {_FAR:g} times the median of "
            f"{format_duration(view.median_s)}; the longest takes "
            f"{format_duration(max(view.step_s))}",
            f"{format_share(excess_s / sum(phases.values()))} of their excess is in `{phase}`",
            *(f"{count} `{name}` events at those times" for name, count in events.items()),
        ),
        weight=share,
    )


def drift(view: RunView) -> Finding | None:
    """Report steps that got slower, or faster, from the first third to the last."""
    third = len(view.step_s) // 3
    if third < _THIRD:
        return None
    first, last = sorted(view.step_s[:third]), sorted(view.step_s[-third:])
    first_s, last_s = median(first), median(last)
    # Where the interquartile ranges of the thirds overlap, the difference may be noise.
    apart = quantile(last, 0.25) > quantile(first, 0.75) or (
        quantile(last, 0.75) < quantile(first, 0.25)
    )
    if not first_s or not apart or abs(last_s / first_s - 1) < _DRIFT:
        return None
    course = trend(view.step_s)
    if course not in (SLOWER, FASTER):
        return None
    return Finding(
        "drift",
        f"Steps get {course} during the run: the last third takes "
        f"{last_s / first_s:.2f} times as long as the first, so one figure describes neither.",
        (
            f"first third: {format_duration(first_s)}, last third: {format_duration(last_s)} "
            f"(medians of {third} steps)",
        ),
        weight=min(1.0, abs(last_s / first_s - 1)),
    )


def inferred_steps(view: RunView) -> Finding | None:
    """Report steps that were inferred: the script has no optimiser of torch."""
    summary = view.run.summary
    if not summary.get("steps_inferred"):
        return None
    return Finding(
        "inferred_steps",
        "The steps are inferred: no torch optimiser stepped, but weights changed after backward "
        "passes.",
        (f"optimizer_s: {(summary.get('absent') or {}).get('optimizer_s', 'not measured')}",),
    )


# --- Phases


def large_optimizer(view: RunView) -> Finding | None:
    """Report an optimiser that takes as long as the gradients should."""
    share, batch = view.share("optimizer"), view.mean("samples")
    if share < _MUCH_OPTIMIZER:
        return None
    evidence, command = [view.of_a_step(view.mean("optimizer_s"))], None
    if batch:
        evidence.append(f"{batch:g} samples per step")
        sizes = f"batch_size={batch:g},{2 * batch:g},{4 * batch:g}"
        command = view.again("sweep", "--over", sizes)
    text = (
        f"The optimiser takes {format_share(share)} of the time, whatever the batch size: use a "
        "larger batch or accumulate gradients."
    )
    return Finding("large_optimizer", text, tuple(evidence), command, share)


def large_transfer(view: RunView) -> Finding | None:
    """Report that transferring batches to the device takes much of a step."""
    share = view.share("transfer")
    if share < _MUCH_TRANSFER:
        return None
    what, flag = "Moving batches to the device", "pin_memory=false,true"
    if view.on_cpu:
        what, flag = "Converting batches", "memory_format=contiguous,channels_last"
    return Finding(
        "large_transfer",
        f"{what} takes {format_share(share)} of the time.",
        (view.of_a_step(view.mean("transfer_s")),),
        view.again("sweep", "--over", flag) if view.run.info.get("kind") == "run" else None,
        share,
    )


def unattributed(view: RunView) -> Finding | None:
    """Report that much of a step is in no phase."""
    share = view.share("other")
    if share < _MUCH_OTHER or work_in_loop(view):
        return None
    text = (
        f"{format_share(share)} of the time is in no phase of training: look for metrics, output "
        "or a loader of its own in the loop."
    )
    evidence = (view.of_a_step(view.mean("other_s")),)
    return Finding("unattributed", text, evidence, weight=share)


# --- What makes all figures unreliable


def costly_instrument(view: RunView) -> Finding | None:
    """Report a measuring overhead that matters."""
    instrument = view.run.info.get("instrument") or {}
    share, cost_s = instrument.get("overhead_share"), instrument.get("overhead_per_step_s")
    if not share or not cost_s or share < _COSTLY:
        return None
    text = f"Profiling takes {format_share(share)} of a step, because the steps are very short."
    return Finding("costly_instrument", text, (view.of_a_step(cost_s),), weight=share)


def too_short(view: RunView) -> Finding | None:
    """Report that the run has too few steps for reliable figures."""
    steps = len(view.step_s)
    if steps >= _FEWEST_STEPS:
        return None
    text = (
        f"Only {steps} steps were measured after warm-up: too few for reliable figures. Train for "
        "more steps."
    )
    evidence = f"{len(view.run.steps)} steps total; wanted {_FEWEST_STEPS} or more after warm-up"
    return Finding("too_short", text, (evidence,), weight=1.0)


def too_noisy(view: RunView) -> Finding | None:
    """Report steps so noisy that the median of a single run says little."""
    if len(view.step_s) < _FEWEST_STEPS:
        return None
    ordered = sorted(view.step_s)
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    spread = (high - low) / view.median_s
    if spread < _NOISY:
        return None
    again = ("sweep", "--over", "seed=1", "--repeats", "6")
    return Finding(
        "too_noisy",
        f"Steps are noisy: the interquartile range is {format_share(spread)} of the median. "
        "Repeat the run before you compare it.",
        (
            f"quartiles {format_duration(low)} and {format_duration(high)}, median "
            f"{format_duration(view.median_s)}",
        ),
        view.again(*again) if view.run.info.get("kind") == "run" else None,
        min(1.0, spread),
    )
