"""Conclusions from a run's measurements, ranked, with their evidence and the next command.

A finding is only made if the measurements support it: each kind has a least number of steps and a
least share, and names both.
"""

from __future__ import annotations

from stepscope.analyze.findings.event_findings import bad_samples, lost_workers, retried_requests
from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.findings.loader_findings import (
    uneven_workers,
    waiting_for_data,
    waits_in_turns,
)
from stepscope.analyze.findings.machine_findings import throttling
from stepscope.analyze.findings.memory_findings import growing_memory, swapping
from stepscope.analyze.findings.phase_findings import (
    costly_instrument,
    large_optimizer,
    large_transfer,
    too_noisy,
    too_short,
    unattributed,
)
from stepscope.analyze.findings.rank_findings import exposed_communication, straggler
from stepscope.analyze.findings.step_findings import drift, far_steps, start_up
from stepscope.records.run_reader import Run

__all__ = ["Finding", "findings_of"]

_OF_STEPS = (
    waiting_for_data,
    uneven_workers,
    waits_in_turns,
    start_up,
    far_steps,
    drift,
    large_optimizer,
    large_transfer,
    straggler,
    exposed_communication,
    unattributed,
    costly_instrument,
    throttling,
    too_short,
    too_noisy,
)
_OF_ANY_RUN = (growing_memory, swapping, lost_workers, bad_samples, retried_requests)


def findings_of(run: Run) -> list[Finding]:
    """Return the findings of a run, the weightiest first; an empty list is a valid answer."""
    view = RunView(run)
    has_steps = view.step_s and view.median_s > 0
    kinds = _OF_STEPS + _OF_ANY_RUN if has_steps else _OF_ANY_RUN
    found = [finding for kind in kinds if (finding := kind(view)) is not None]
    return sorted(found, key=lambda finding: finding.weight, reverse=True)
