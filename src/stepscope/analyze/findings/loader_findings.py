"""Findings on the loader: waiting for data, and failures that the run recovered from."""

from __future__ import annotations

from collections import defaultdict

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.stats import median
from stepscope.units import format_duration, format_share

_MUCH_WAITING = 0.1
_MOSTLY = 0.5
_FEWEST_BATCHES = 10  # of each worker, for a comparison
_UNEVEN = 1.5


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
    load_s, workers = view.mean("load_s"), view.workers
    both = zip(view.column("load_cpu_s"), view.column("load_s"), strict=True)
    known = [(cpu_s, took_s) for cpu_s, took_s in both if cpu_s is not None and took_s is not None]
    known_s = sum(took_s for _, took_s in known)
    doing = ""
    if load_s:
        evidence.append(f"a batch takes {format_duration(load_s)} to load")
    if load_s and known_s:
        on_cpu = sum(cpu_s for cpu_s, _ in known) / known_s
        evidence[-1] += f", {format_share(on_cpu)} of it on a CPU"
        works = on_cpu >= _MOSTLY
        doing = "; loading is mostly " + ("CPU work" if works else "waiting for storage or a CPU")
    if load_s and workers:
        each = format_duration(load_s / workers)
        evidence.append(f"{workers} workers deliver at most one batch every {each}")
    where = {None: "", 0: " loaded in the training process"}.get(
        workers, f" from {workers} workers"
    )
    text = f"{format_share(share)} of the time is spent waiting for data{where}{doing}."
    return Finding("waiting_for_data", text, tuple(evidence), view.again("workers"), share)


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
    return Finding("bad_samples", text, tuple(evidence), None, 0.01)


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
        None,
        min(1.0, waited_s / wall_s) if wall_s else 0.05,
    )
