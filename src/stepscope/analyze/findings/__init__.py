"""Conclusions from a run's measurements, ranked, with their evidence and the next command."""

from __future__ import annotations

from stepscope.analyze.findings import (
    compute_findings,
    loader_findings,
    machine_findings,
    rank_findings,
    step_findings,
    wall_time_findings,
)
from stepscope.analyze.findings.finding import WORTHWHILE, Finding, RunView
from stepscope.records.run_reader import Run

__all__ = ["Finding", "RunView", "findings_of", "warnings_on_steps"]

_OF_STEPS = (
    loader_findings.waiting_for_data,
    loader_findings.uneven_workers,
    loader_findings.restarted_workers,
    loader_findings.too_many_workers,
    wall_time_findings.frequent_evaluation,
    wall_time_findings.frequent_checkpoints,
    wall_time_findings.gaps_between_epochs,
    compute_findings.unfused_optimizer,
    compute_findings.too_many_threads,
    compute_findings.contiguous_convolutions,
    compute_findings.double_precision,
    compute_findings.anomaly_detection,
    compute_findings.gradients_in_evaluation,
    compute_findings.unused_gradients,
    compute_findings.tiny_batch,
    compute_findings.launch_bound,
    compute_findings.recompilations,
    compute_findings.graph_breaks,
    machine_findings.busy_machine,
    step_findings.start_up,
    step_findings.far_steps,
    step_findings.drift,
    step_findings.large_optimizer,
    step_findings.large_transfer,
    rank_findings.straggler,
    rank_findings.blocking_communication,
    step_findings.unattributed,
    step_findings.costly_instrument,
    machine_findings.throttling,
    step_findings.inferred_steps,
    step_findings.too_short,
    step_findings.too_noisy,
)
_OF_ANY_RUN = (
    machine_findings.growing_memory,
    machine_findings.swapping,
    loader_findings.lost_workers,
    loader_findings.bad_samples,
    loader_findings.retried_requests,
)


def findings_of(run: Run) -> list[Finding]:
    """Return the findings of a run: those that save time first, then the weightiest.

    An empty list is a valid answer.
    """
    view = RunView(run)
    has_steps = view.step_s and view.median_s > 0
    kinds = _OF_STEPS + _OF_ANY_RUN if has_steps else _OF_ANY_RUN
    found = [finding for kind in kinds if (finding := kind(view)) is not None]
    if has_steps:
        found += wall_time_findings.work_in_loop(view)
    least_s = WORTHWHILE * (run.summary.get("wall_s") or 0.0)

    def importance(finding: Finding) -> tuple[float, float]:
        saves_s = finding.saves_s or 0.0
        return saves_s if saves_s > least_s else 0.0, finding.weight

    return sorted(found, key=importance, reverse=True)


def warnings_on_steps(run: Run) -> list[Finding]:
    """Return the findings that make the throughput of a run unreliable: drift and noise."""
    view = RunView(run)
    if not view.step_s or not view.median_s:
        return []
    kinds = (step_findings.drift, step_findings.too_noisy)
    return [finding for kind in kinds if (finding := kind(view)) is not None]
