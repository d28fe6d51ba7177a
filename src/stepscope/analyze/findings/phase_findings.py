"""Findings on disproportionate phases, and on what makes all figures unreliable."""

from __future__ import annotations

from stepscope.analyze.findings.finding import Finding, RunView
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
    share = view.share("optimizer")
    if share < _MUCH_OPTIMIZER:
        return None
    batch = view.mean("samples")
    return Finding(
        "large_optimizer",
        f"{format_share(share)} of the time updates weights, whatever the batch: a larger batch, "
        "or several for each update, would spread it.",
        (
            f"{format_duration(view.mean('optimizer_s') or 0.0)} of a step of "
            f"{format_duration(view.median_s)}",
            *([f"{batch:g} samples a step"] if batch else []),
        ),
        view.again("sweep", "--over", f"batch_size={batch:g},{2 * batch:g},{4 * batch:g}")
        if batch
        else None,
        share,
    )


def large_transfer(view: RunView) -> Finding | None:
    """Report that transferring batches to the device takes much of a step."""
    share = view.share("transfer")
    if share < _MUCH_TRANSFER:
        return None
    on_cpu = view.run.info.get("environment", {}).get("device", "cpu") == "cpu"
    what = "changes the batch's layout or type" if on_cpu else "moves the batch to the device"
    own = view.run.info.get("kind") == "run"
    flag = "memory_format=contiguous,channels_last" if on_cpu else "pin_memory=false,true"
    return Finding(
        "large_transfer",
        f"{format_share(share)} of the time {what}.",
        (
            f"{format_duration(view.mean('transfer_s') or 0.0)} of a step of "
            f"{format_duration(view.median_s)}",
        ),
        view.again("sweep", "--over", flag) if own else None,
        share,
    )


def unattributed(view: RunView) -> Finding | None:
    """Report that much of a step is in no phase."""
    share = view.share("other")
    if share < _MUCH_OTHER:
        return None
    return Finding(
        "unattributed",
        f"{format_share(share)} of the time is in no phase: what the loop does beside training, "
        "such as metrics, logging or printing.",
        (f"{format_duration(view.mean('other_s') or 0.0)} of {format_duration(view.median_s)}",),
        None,
        share,
    )


def costly_instrument(view: RunView) -> Finding | None:
    """Report a measuring overhead that matters."""
    instrument = view.run.info.get("instrument") or {}
    share, cost_s = instrument.get("overhead_share"), instrument.get("overhead_per_step_s")
    if not share or not cost_s or share < _COSTLY:
        return None
    return Finding(
        "costly_instrument",
        f"Measuring takes {format_share(share)} of a step: these steps are very short.",
        (f"{format_duration(cost_s)} of {format_duration(view.median_s)}",),
        None,
        share,
    )


def too_short(view: RunView) -> Finding | None:
    """Report that the run has too few steps for reliable figures."""
    steps = len(view.step_s)
    if steps >= _FEWEST_STEPS:
        return None
    return Finding(
        "too_short",
        f"Only {steps} steps were measured after start-up: too few to say much.",
        (f"{len(view.run.steps)} steps total; {_FEWEST_STEPS} or more after start-up are wanted",),
        None,
        1.0,
    )


def too_noisy(view: RunView) -> Finding | None:
    """Report steps so noisy that the median of a single run says little."""
    if len(view.step_s) < _FEWEST_STEPS:
        return None
    ordered = sorted(view.step_s)
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    spread = (high - low) / view.median_s
    if spread < _NOISY:
        return None
    return Finding(
        "too_noisy",
        f"Steps jump about: the middle half of them lies {format_share(spread)} apart. One run "
        "decides nothing; repeat it in rounds.",
        (
            f"quartiles {format_duration(low)} and {format_duration(high)}, median "
            f"{format_duration(view.median_s)}",
        ),
        view.again("sweep", "--over", "seed=1", "--repeats", "6")
        if view.run.info.get("kind") == "run"
        else None,
        min(1.0, spread),
    )
