"""What is a training bound by?

`bound_by` names the bottleneck from the figures of one setting; `data_stalls` divides the time of a
sample by running the same training on synthetic data, from memory and from its source. All figures
are seconds of a mean step after start-up (`sweep_summary.steady_steps`).
"""

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

# Workers that are waited for this share of a step do not keep up. Without workers loading and
# training take turns, and the larger of the two binds.
_WAIT_WITH_WORKERS = 0.1
_WAIT_WITHOUT = 0.5
_MUCH = 0.3  # of a step, for what should be next to nothing
_MOSTLY = 0.5
_READS_BYTES_PER_S = 1e6


@dataclass(frozen=True)
class Evidence:
    """The figures of one setting, and what is known about its loading.

    `alone` has the figures of the same training without workers, `from_memory` with its data in
    memory; `read_bytes_per_s` is the disk reads of its processes. `reads_files` is False for data
    in memory, None where unknown.
    """

    figures: StepFigures
    workers: int
    cpus: int
    alone: StepFigures | None = None
    from_memory: StepFigures | None = None
    reads_files: bool | None = None
    read_bytes_per_s: float | None = None


def bound_by(evidence: Evidence) -> tuple[Bound, str]:
    """Name what binds, and say why."""
    step_s = evidence.figures["step_s"]
    if not step_s:
        return "unclear", "no step was measured"
    waiting = wait_share(evidence.figures)
    said = f"a step of {format_duration(step_s)} waits {format_share(waiting)} of it for data"
    bound, why = _waiting(evidence) if lags(waiting, evidence.workers) else _busy(evidence, step_s)
    return bound, f"{said}; {why}"


def wait_share(figures: StepFigures) -> float:
    """Return the share of a step in which it waits for data."""
    return (figures["data_s"] or 0.0) / (figures["step_s"] or math.inf)


def lags(waiting: float, workers: int) -> bool:
    """Return whether a loader with this share of waiting is the bottleneck."""
    return waiting >= (_WAIT_WITH_WORKERS if workers else _WAIT_WITHOUT)


def _busy(evidence: Evidence, step_s: float) -> tuple[Bound, str]:
    """Name the bottleneck of a training that hardly waits for its loader."""
    figures = evidence.figures
    phases: tuple[tuple[str, float | None, Bound], ...] = (
        ("transfer", figures["transfer_s"], "transfer"),
        ("other", figures["other_s"], "host"),
    )
    for phase, took_s, bound in phases:
        share = (took_s or 0.0) / step_s
        if share > _MUCH:
            return bound, f"{format_share(share)} goes into {phase}"
    slowed = slowed_by_workers(evidence)
    if slowed is not None and slowed > SLOWED:
        return "contention", (
            f"the network takes {slowed:.2f} times as long beside {evidence.workers} workers as "
            f"without any: they share {evidence.cpus} CPUs"
        )
    return "compute", "the rest is the network and its optimiser"


def _waiting(evidence: Evidence) -> tuple[Bound, str]:
    """Name the bottleneck of a training whose loader does not keep up."""
    load_s = evidence.figures["load_s"]
    if not load_s:
        return "unclear", "what the loader did meanwhile was not seen"
    fetched = _fetched_share(evidence, load_s)
    made = f"a batch takes {format_duration(load_s)} to make"
    if fetched is not None and fetched > _MOSTLY:
        return "storage", f"{made}, {format_share(fetched)} of it to read the samples"
    cpu_share = (evidence.figures["load_cpu_s"] or 0.0) / load_s
    idle = cpu_share < _MOSTLY
    made += f", {format_share(cpu_share)} of it on a CPU"
    if fetched is None and idle and _reads_much(evidence):
        return "storage", f"{made}, while a disk was read from"
    if idle and _lacks_cores(evidence):
        return "contention", f"{made}: workers and the network wait for {evidence.cpus} CPUs"
    return "preprocessing", made


def slowed_by_workers(evidence: Evidence) -> float | None:
    """Return the time of the network beside workers over its time without any."""
    if evidence.alone is None or evidence.workers == 0:
        return None
    beside, alone = compute_s(evidence.figures), compute_s(evidence.alone)
    return beside / alone if beside and alone else None


def compute_s(figures: StepFigures) -> float | None:
    """Return the time that the network and its optimiser take in a step."""
    parts = (figures["forward_s"], figures["backward_s"], figures["optimizer_s"])
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _fetched_share(evidence: Evidence, load_s: float) -> float | None:
    """Return the share of a batch's loading time that vanishes with the samples in memory."""
    from_memory_s = None if evidence.from_memory is None else evidence.from_memory["load_s"]
    return max(0.0, 1 - from_memory_s / load_s) if from_memory_s else None


def _reads_much(evidence: Evidence) -> bool:
    if evidence.reads_files is False:
        return False
    return (evidence.read_bytes_per_s or 0.0) > _READS_BYTES_PER_S


def _lacks_cores(evidence: Evidence) -> bool:
    """Return whether workers take more than 1.5 times as long for a batch as without others."""
    alone_s = None if evidence.alone is None else evidence.alone["load_s"]
    load_s = evidence.figures["load_s"]
    return bool(alone_s and load_s and evidence.workers and load_s > 1.5 * alone_s)


# --- Data stalls


Way = Literal["synthetic", "memory", "source"]

_LITTLE = 0.1  # of the time, lost to sharing the cores


def data_stalls(
    ways: Mapping[Way, StepFigures], samples_a_step: float, workers: int
) -> StallsSummary:
    """Combine the figures of the three ways, each in seconds of a mean step.

    All parts belong to the step from the source and add up to it. The other two ways divide its
    waiting time, and show the time of the network without a loader beside it. A rate is None where
    there is nothing of its kind to do.
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
    if lags(wait_s / total_s, workers):
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
        "why": f"of the time of a sample from its source, {format_share(network_s / total_s)} "
        f"is the network; {format_share(lost['preprocessing'])} is lost "
        f"waiting for preprocessing, {format_share(lost['fetching'])} for fetching, "
        f"{format_share(lost['contention'])} to sharing the cores",
    }


def _known(seconds: float | None) -> float:
    assert seconds is not None, "a way without steady steps gave no figures"
    return seconds


def _rate(samples: float, seconds: float | None) -> float | None:
    return samples / seconds if seconds and seconds > 0 else None
