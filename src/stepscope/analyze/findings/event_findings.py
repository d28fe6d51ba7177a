"""Findings on failures that the run recovered from."""

from __future__ import annotations

from stepscope.analyze.findings.finding import Finding, RunView


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
