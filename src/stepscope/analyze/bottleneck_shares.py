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

from stepscope.records.types import StallsSummary, StepFigures
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


@dataclass(frozen=True)
class Stalls:
    """Seconds per sample by cause. A rate is None where there is nothing of its kind to do."""

    compute_s: float
    preprocessing_s: float
    fetching_s: float
    contention_s: float
    total_s: float
    compute_rate: float
    preprocessing_rate: float | None
    fetching_rate: float | None
    workers: int

    def share(self, seconds: float) -> float:
        """Return a share of the time that a sample takes from its source."""
        return seconds / self.total_s

    @property
    def bound_by(self) -> str:
        """The bottleneck: the loader where it lags, the cores where the network lacks them."""
        if lags(self.share(self.preprocessing_s + self.fetching_s), self.workers):
            return "preprocessing" if self.preprocessing_s >= self.fetching_s else "storage"
        return "contention" if self.share(self.contention_s) >= _LITTLE else "compute"

    def to_json(self) -> StallsSummary:
        """Return the stalls and the rates as plain values."""
        return {
            "bound_by": self.bound_by,
            "rates": {
                "compute": self.compute_rate,
                "preprocessing": self.preprocessing_rate,
                "fetching": self.fetching_rate,
            },
            "lost": {
                "preprocessing": self.share(self.preprocessing_s),
                "fetching": self.share(self.fetching_s),
                "contention": self.share(self.contention_s),
            },
            "at_most": {
                "more_workers": self.total_s / self.compute_s,
                "faster_storage": self.total_s / (self.total_s - self.fetching_s),
            },
            "why": self._why(),
        }

    def _why(self) -> str:
        return (
            f"of the time of a sample from its source, {format_share(self.share(self.compute_s))} "
            f"is the network; {format_share(self.share(self.preprocessing_s))} is lost "
            f"waiting for preprocessing, {format_share(self.share(self.fetching_s))} for fetching, "
            f"{format_share(self.share(self.contention_s))} to sharing the cores"
        )


def data_stalls(ways: Mapping[Way, StepFigures], samples_a_step: float, workers: int) -> Stalls:
    """Combine the figures of the three ways, each in seconds of a mean step.

    All parts belong to the step from the source and add up to it. The other two ways divide its
    waiting time, and show the time of the network without a loader beside it.
    """
    synthetic, memory, source = ways["synthetic"], ways["memory"], ways["source"]
    alone_s, total_s = _known(synthetic["step_s"]), _known(source["step_s"])
    base_s = _known(synthetic["data_s"])
    wait_s = max(0.0, _known(source["data_s"]) - base_s)
    preprocessing_s = min(wait_s, max(0.0, _known(memory["data_s"]) - base_s))
    fetching_s = wait_s - preprocessing_s
    contention_s = _contention_s(synthetic, source) if workers else 0.0
    network_s = total_s - wait_s - contention_s
    samples_at_once = samples_a_step * max(1, workers)
    return Stalls(
        compute_s=network_s / samples_a_step,
        preprocessing_s=preprocessing_s / samples_a_step,
        fetching_s=fetching_s / samples_a_step,
        contention_s=contention_s / samples_a_step,
        total_s=total_s / samples_a_step,
        compute_rate=samples_a_step / alone_s,
        preprocessing_rate=_rate(samples_at_once, memory["load_s"]),
        fetching_rate=_rate(samples_at_once, _fetch_s(memory, source)),
        workers=workers,
    )


def _contention_s(synthetic: StepFigures, source: StepFigures) -> float:
    beside_s, alone_s = compute_s(source), compute_s(synthetic)
    return 0.0 if beside_s is None or alone_s is None else max(0.0, beside_s - alone_s)


def _fetch_s(memory: StepFigures, source: StepFigures) -> float | None:
    from_memory_s, from_source_s = memory["load_s"], source["load_s"]
    if from_memory_s is None or from_source_s is None:
        return None
    return from_source_s - from_memory_s


def _known(seconds: float | None) -> float:
    assert seconds is not None, "a way without steady steps gave no figures"
    return seconds


def _rate(samples: float, seconds: float | None) -> float | None:
    return samples / seconds if seconds and seconds > 0 else None
