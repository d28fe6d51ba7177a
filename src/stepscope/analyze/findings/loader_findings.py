"""Findings on waiting for data: how long, why, and in which pattern."""

from __future__ import annotations

from collections import defaultdict

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.stats import median
from stepscope.units import format_duration, format_share

_MUCH_WAITING = 0.1
_MOSTLY = 0.5
_FEWEST_BATCHES = 10  # of each worker, for a comparison
_UNEVEN = 1.5
_RHYTHM = 2.0  # ratio to the other steps
_FEWEST_TURNS = 8


def waiting_for_data(view: RunView) -> Finding | None:
    """Report the share of a step that waits for data, and what the loader did meanwhile."""
    share = view.share("data")
    if share < _MUCH_WAITING:
        return None
    data_s = view.mean("data_s") or 0.0
    step_s = sum(view.step_s) / len(view.step_s)
    evidence = [
        f"{format_duration(data_s)} of a mean step of {format_duration(step_s)} waits for data"
    ]
    load_s, on_cpu = view.mean("load_s"), _share_on_cpu(view)
    doing = ""
    if load_s:
        evidence.append(f"a batch takes {format_duration(load_s)} to make")
    if load_s and on_cpu is not None:
        evidence[-1] += f", {format_share(on_cpu)} of it on a CPU"
        works = on_cpu >= _MOSTLY
        doing = ", mostly at work on samples" if works else ", mostly waiting for storage or a CPU"
    workers = view.workers
    if workers and load_s:
        each = format_duration(load_s / workers)
        evidence.append(f"{workers} workers give a batch every {each} at best")
    where = ", in the training process itself" if workers == 0 else ""
    by = f" that {workers} workers make" if workers else ""
    text = f"{format_share(share)} of the time waits for batches{by}{where}{doing}."
    return Finding("waiting_for_data", text, tuple(evidence), view.again("workers"), share)


def _share_on_cpu(view: RunView) -> float | None:
    """Return the share of loading time spent on a CPU, over the steps that record it."""
    both = zip(view.column("load_cpu_s"), view.column("load_s"), strict=True)
    known = [(cpu_s, load_s) for cpu_s, load_s in both if cpu_s is not None and load_s is not None]
    all_s = sum(load_s for _, load_s in known)
    return sum(cpu_s for cpu_s, _ in known) / all_s if all_s else None


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
    share = view.share("data")
    return Finding(
        "uneven_workers",
        f"Worker {slowest} takes {middles[slowest] / middles[fastest]:.1f} times as long for a "
        f"batch as worker {fastest}, and batches are used in turn: all wait for it.",
        tuple(
            f"worker {worker}: {format_duration(middle)} a batch (median of {len(took_s[worker])})"
            for worker, middle in sorted(middles.items())
        ),
        view.again("bottleneck") if view.run.info.get("kind") != "trace" else view.again("workers"),
        share,
    )


def waits_in_turns(view: RunView) -> Finding | None:
    """Report waits that recur once in as many steps as there are workers."""
    workers = view.workers
    waits = view.column("data_s")
    if not workers or workers < 2 or len(waits) < workers * _FEWEST_TURNS:
        return None
    turns = [median(waits[first::workers]) for first in range(workers)]
    longest = max(turns)
    others = [each for number, each in enumerate(turns) if number != turns.index(longest)]
    if longest < _RHYTHM * max(others) or longest < _MUCH_WAITING * view.median_s:
        return None
    return Finding(
        "waits_in_turns",
        f"One step in {workers} waits: the {workers} workers deliver their batches together "
        "and are then waited for together, so they do not keep up.",
        (
            f"{format_duration(longest)} at that step, at most {format_duration(max(others))} "
            "at the others (medians)",
        ),
        view.again("workers"),
        view.share("data"),
    )
