"""Findings on disproportionate phases, and on what makes all figures unreliable."""

from __future__ import annotations

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.findings.script_findings import work_in_loop
from stepscope.stats import quantile
from stepscope.units import format_duration, format_share

_MUCH_OPTIMIZER = 0.25
_MUCH_TRANSFER = 0.1
_MUCH_OTHER = 0.1
_COSTLY = 0.03
_FEWEST_STEPS = 30
_NOISY = 0.3


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
    on_cpu = view.run.info.get("environment", {}).get("device", "cpu") == "cpu"
    what = "Converting batches" if on_cpu else "Moving batches to the device"
    flag = "memory_format=contiguous,channels_last" if on_cpu else "pin_memory=false,true"
    own = view.run.info.get("kind") == "run"
    return Finding(
        "large_transfer",
        f"{what} takes {format_share(share)} of the time.",
        (view.of_a_step(view.mean("transfer_s")),),
        view.again("sweep", "--over", flag) if own else None,
        share,
    )


def unattributed(view: RunView) -> Finding | None:
    """Report that much of a step is in no phase."""
    share = view.share("other")
    if share < _MUCH_OTHER or work_in_loop(view):
        return None
    text = (
        f"{format_share(share)} of the time is in no phase of training: look for metrics, logging "
        "or printing in the loop."
    )
    evidence = (view.of_a_step(view.mean("other_s")),)
    return Finding("unattributed", text, evidence, None, share)


def costly_instrument(view: RunView) -> Finding | None:
    """Report a measuring overhead that matters."""
    instrument = view.run.info.get("instrument") or {}
    share, cost_s = instrument.get("overhead_share"), instrument.get("overhead_per_step_s")
    if not share or not cost_s or share < _COSTLY:
        return None
    text = f"Profiling takes {format_share(share)} of a step, because the steps are very short."
    return Finding("costly_instrument", text, (view.of_a_step(cost_s),), None, share)


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
    return Finding("too_short", text, (evidence,), None, 1.0)


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
