"""What is a training bound by? All figures are seconds of a mean step after start-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepscope.records.types import LostShares, StallsSummary, StepFigures
from stepscope.units import format_duration, format_share

Bound = Literal["compute", "preprocessing", "storage", "transfer", "host", "contention", "unclear"]

# Slowdown of the network beside workers from which on it lacks cores.
SLOWED = 1.15

_WAITS = 0.1  # of a step, for a loader that does not keep up
_MUCH = 0.3  # of a step, for what should be next to nothing
_MOSTLY = 0.5
_SLOWED_LOADING = 1.5  # beside other workers, of a batch that is not waited for
_READS_BYTES_PER_S = 1e6


@dataclass(frozen=True)
class Evidence:
    """The figures of one setting; `alone` is without workers, `from_memory` with data in memory."""

    figures: StepFigures
    workers: int
    cpus: int
    alone: StepFigures | None = None
    from_memory: StepFigures | None = None
    reads_files: bool | None = None
    read_bytes_per_s: float | None = None


def bound_by(evidence: Evidence) -> tuple[Bound, str]:
    """Return what binds a training, and why."""
    step_s = evidence.figures["step_s"]
    if not step_s:
        return "unclear", "no step was measured"
    waiting = wait_share(evidence.figures)
    bound, why = _waiting(evidence) if lags(waiting) else _busy(evidence, step_s)
    return bound, (
        f"{format_share(waiting)} of a step of {format_duration(step_s)} waits for data; {why}"
    )


def wait_share(figures: StepFigures) -> float:
    """Return the share of a step in which it waits for data."""
    return (figures["data_s"] or 0.0) / (figures["step_s"] or math.inf)


def lags(waiting: float) -> bool:
    """Return whether a loader with this share of waiting is the bottleneck."""
    return waiting >= _WAITS


def _busy(evidence: Evidence, step_s: float) -> tuple[Bound, str]:
    """Return the bottleneck of a training that hardly waits for its loader."""
    figures = evidence.figures
    phases: tuple[tuple[str, float | None, Bound], ...] = (
        ("transfer", figures["transfer_s"], "transfer"),
        ("other", figures["other_s"], "host"),
    )
    for phase, took_s, bound in phases:
        share = (took_s or 0.0) / step_s
        if share > _MUCH:
            return bound, f"{phase} takes {format_share(share)}"
    beside_s = compute_s(figures)
    alone_s = compute_s(evidence.alone) if evidence.alone and evidence.workers else None
    if beside_s and alone_s and beside_s > SLOWED * alone_s:
        return "contention", (
            f"the network takes {beside_s / alone_s:.2f} times as long with {evidence.workers} "
            f"workers as without: they share {evidence.cpus} CPUs"
        )
    return "compute", "the network and its optimiser take the rest"


def _waiting(evidence: Evidence) -> tuple[Bound, str]:
    """Return the bottleneck of a training whose loader does not keep up."""
    load_s, load_cpu_s = evidence.figures["load_s"], evidence.figures["load_cpu_s"]
    if not load_s:
        return "unclear", "the loader's work was not recorded"
    loads = f"a batch takes {format_duration(load_s)} to load"
    # The share of a batch's loading time that vanishes with the samples in memory.
    from_memory_s = evidence.from_memory["load_s"] if evidence.from_memory else None
    reading = max(0.0, 1 - from_memory_s / load_s) if from_memory_s else None
    if reading is not None and reading > _MOSTLY:
        return "storage", f"{loads}, {format_share(reading)} of it to read the samples"
    cpu_share = (load_cpu_s or 0.0) / load_s
    loads += f", {format_share(cpu_share)} of it on a CPU"
    if cpu_share >= _MOSTLY:
        return "preprocessing", loads
    reads_disk = (evidence.read_bytes_per_s or 0.0) > _READS_BYTES_PER_S
    if reading is None and reads_disk and evidence.reads_files is not False:
        return "storage", f"{loads}, while a disk was read"
    alone_s = evidence.alone["load_s"] if evidence.alone and evidence.workers else None
    if alone_s and load_s > _SLOWED_LOADING * alone_s:
        return "contention", f"{loads}: workers and the network compete for {evidence.cpus} CPUs"
    return "preprocessing", loads


def compute_s(figures: StepFigures) -> float | None:
    """Return the time that the network and its optimiser take in a step."""
    parts = (figures["forward_s"], figures["backward_s"], figures["optimizer_s"])
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


# --- Data stalls


Way = Literal["synthetic", "memory", "source"]

_LITTLE = 0.1  # of the time, lost to sharing the cores


def data_stalls(
    ways: Mapping[Way, StepFigures], samples_a_step: float, workers: int
) -> StallsSummary:
    """Divide the step from the source by the figures of the three ways.

    A rate is None where there is nothing of its kind to do.
    """
    synthetic, memory, source = ways["synthetic"], ways["memory"], ways["source"]
    total_s, base_s = _known(source["step_s"]), _known(synthetic["data_s"])
    wait_s = max(0.0, _known(source["data_s"]) - base_s)
    preprocessing_s = min(wait_s, max(0.0, _known(memory["data_s"]) - base_s))
    fetching_s = wait_s - preprocessing_s
    beside_s, alone_s = compute_s(source), compute_s(synthetic)
    contention_s = 0.0
    if workers and beside_s is not None and alone_s is not None:
        contention_s = max(0.0, beside_s - alone_s)
    network_s = total_s - wait_s - contention_s
    lost: LostShares = {
        "preprocessing": preprocessing_s / total_s,
        "fetching": fetching_s / total_s,
        "contention": contention_s / total_s,
    }
    bound = "contention" if lost["contention"] >= _LITTLE else "compute"
    if lags(wait_s / total_s):
        bound = "preprocessing" if preprocessing_s >= fetching_s else "storage"
    samples_at_once = samples_a_step * max(1, workers)
    fetch_s = None
    if memory["load_s"] is not None and source["load_s"] is not None:
        fetch_s = source["load_s"] - memory["load_s"]
    return {
        "bound_by": bound,
        "rates": {
            "compute": samples_a_step / _known(synthetic["step_s"]),
            "preprocessing": _rate(samples_at_once, memory["load_s"]),
            "fetching": _rate(samples_at_once, fetch_s),
        },
        "lost": lost,
        "at_most": {
            "more_workers": total_s / network_s,
            "faster_storage": total_s / (total_s - fetching_s),
        },
        "why": f"the network takes {format_share(network_s / total_s)} of a step; waiting for "
        f"preprocessing takes {format_share(lost['preprocessing'])}, for storage "
        f"{format_share(lost['fetching'])}, and sharing the CPUs "
        f"{format_share(lost['contention'])}",
    }


def _known(seconds: float | None) -> float:
    assert seconds is not None, "a way without steady steps gave no figures"
    return seconds


def _rate(samples: float, seconds: float | None) -> float | None:
    return samples / seconds if seconds and seconds > 0 else None
