"""How much faster is a training in more processes? Speed-up and efficiency over rounds.

Strong scaling: the batch is constant, and each process takes a part of it. Weak scaling: each
process takes a whole batch. The speed-up is the ratio of samples per second to that of the fewest
processes, the base; the efficiency is the speed-up over the ideal one. Rates exclude the start of
each epoch, which weighs too much in short trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal, get_args

from stepscope.analyze.sweep_summary import steady_steps
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import MeasuredScaling, Setting
from stepscope.stats import known_mean, known_median, ratio_of_rounds
from stepscope.units import format_count

Mode = Literal["strong", "weak"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Scale:
    """The trials that are compared: numbers of processes in ascending order, and the batch size."""

    batch_size: int
    processes: tuple[int, ...]

    @property
    def base(self) -> int:
        """The fewest processes, the baseline of the others."""
        return self.processes[0]

    def total_batch(self, mode: Mode, processes: int) -> int:
        """Return the batch size of all processes together."""
        return self.batch_size if mode == "strong" else self.batch_size * processes

    def values(self, mode: Mode, processes: int) -> Setting:
        """Return the settings of a trial."""
        return {"processes": processes, "batch_size": self.total_batch(mode, processes)}

    def settings(self) -> list[Setting]:
        """List the settings to try, each once: one process is the same in both modes."""
        wanted = [self.values(mode, count) for count in self.processes for mode in MODES]
        return [values for place, values in enumerate(wanted) if values not in wanted[:place]]


def measured_scaling(sweep: Sweep, scale: Scale) -> list[MeasuredScaling]:
    """Return a row for each mode and number of processes, the base first in each mode."""
    return [_row(sweep, scale, mode, count) for mode in MODES for count in scale.processes]


def trials_with_rate(sweep: Sweep, values: Setting) -> list[Trial]:
    """Return the completed trials of a setting that have steps after the start of an epoch."""
    return [
        trial
        for trial in _trials_of(sweep, values)
        if trial.status == schema.COMPLETED and trial.metrics.get("steady_samples_per_s")
    ]


def communication_of(sweep: Sweep, trials: Iterable[Trial]) -> float | None:
    """Return the exposed communication of a step on rank 0; None for one process."""
    runs = (load_run(sweep.folder_of(trial)) for trial in trials)
    return known_median(
        known_mean(compress(run.steps["communication_s"], steady_steps(run))) for run in runs
    )


def _row(sweep: Sweep, scale: Scale, mode: Mode, count: int) -> MeasuredScaling:
    values, base = scale.values(mode, count), scale.base
    trials = trials_with_rate(sweep, values)
    rates, at_base = _by_round(trials), _by_round(trials_with_rate(sweep, scale.values(mode, base)))
    row: MeasuredScaling = {
        "mode": mode,
        "processes": count,
        "batch_size": scale.total_batch(mode, count),
        "samples_per_s": known_median(rates.values()),
        "speedup": None,
        "low": None,
        "high": None,
        "efficiency": None,
        "communication_s": communication_of(sweep, trials),
        "rounds": 0,
        "reason": None,
    }
    if not trials:
        return {**row, "reason": _why_none(_trials_of(sweep, values))}
    if count == base:
        return {**row, "speedup": 1.0, "efficiency": 1.0, "rounds": len(rates)}
    shared = sorted(rates.keys() & at_base.keys())
    ratio = ratio_of_rounds([at_base[each] for each in shared], [rates[each] for each in shared])
    if ratio is None:
        return {**row, "reason": f"no round in which the base, {base}, gave figures too"}
    return {
        **row,
        "speedup": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "efficiency": ratio.ratio * base / count,
        "rounds": len(shared),
    }


def _trials_of(sweep: Sweep, values: Setting) -> list[Trial]:
    return [trial for trial in sweep.trials if trial.values == values]


def _by_round(trials: Iterable[Trial]) -> dict[int, float]:
    return {
        trial.repeat: rate
        for trial in trials
        if (rate := trial.metrics.get("steady_samples_per_s")) is not None
    }


def _why_none(trials: Sequence[Trial]) -> str:
    reasons = (
        f"{trial.status.replace('_', ' ')}: {trial.reason}" for trial in trials if trial.reason
    )
    return next(reasons, "its epoch is too short to tell its start from the rest")


# --- Processes that share the CPUs


def shared_processors(sweep: Sweep, scale: Scale) -> Iterator[str]:
    """Yield notes on numbers of processes that have fewer CPUs each than the base."""
    base, *others = (_one_run(sweep, scale, count) for count in scale.processes)
    threads = _cpu_threads(base)
    if base is None or threads is None:
        return
    cpus = base.info["environment"].get("cpus_usable")
    for count, run in zip(scale.processes[1:], others, strict=True):
        each = _cpu_threads(run)
        if each is None:
            continue
        threads_each = format_count(each, "thread")
        if each < threads:
            yield (
                f"each of {count} processes had {threads_each}, the base {threads}: "
                "they share the processors of this machine. --threads 1 gives every process one"
            )
        elif cpus is not None and each * count > cpus:
            yield f"{count} processes of {threads_each} each share {cpus} processors"


def _one_run(sweep: Sweep, scale: Scale, count: int) -> Run | None:
    trials = trials_with_rate(sweep, scale.values("strong", count))
    return load_run(sweep.folder_of(trials[0])) if trials else None


def _cpu_threads(run: Run | None) -> int | None:
    """Return the threads of a process that computes on the CPU; None on another device."""
    if run is None or not run.info["environment"].get("device", "").startswith("cpu"):
        return None
    return run.info["environment"].get("threads")
