"""How much faster is a training in more processes? Speed-up and efficiency over rounds.

Strong scaling: the processes share the batch. Weak scaling: each process takes a whole batch. The
speed-up is relative to the fewest processes, the base. Rates exclude the start of each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Literal, get_args

from stepscope.analyze.sweep_summary import steady_steps
from stepscope.records import schema
from stepscope.records.run_reader import load_run
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
        for trial in sweep.trials
        if trial.values == values
        and trial.status == schema.COMPLETED
        and trial.metrics.get("steady_samples_per_s")
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
        ended = [each for each in sweep.trials if each.values == values and each.reason]
        reasons = (f"{each.status.replace('_', ' ')}: {each.reason}" for each in ended)
        return {**row, "reason": next(reasons, "its epoch has no steps after its start")}
    if count == base:
        return {**row, "speedup": 1.0, "efficiency": 1.0, "rounds": len(rates)}
    shared = sorted(rates.keys() & at_base.keys())
    ratio = ratio_of_rounds([at_base[each] for each in shared], [rates[each] for each in shared])
    if ratio is None:
        return {**row, "reason": f"no round that the base of {base} completed too"}
    return {
        **row,
        "speedup": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "efficiency": ratio.ratio * base / count,
        "rounds": len(shared),
    }


def _by_round(trials: Iterable[Trial]) -> dict[int, float]:
    return {trial.repeat: trial.metrics["steady_samples_per_s"] or 0.0 for trial in trials}


# --- Processes that share the CPUs


def shared_processors(sweep: Sweep, scale: Scale) -> Iterator[str]:
    """Yield notes on numbers of processes that have fewer CPUs each than the base."""
    threads = {count: _cpu_threads(sweep, scale, count) for count in scale.processes}
    at_base, cpus = threads.pop(scale.base) or (None, None)
    for count, found in threads.items():
        if at_base is None or found is None:
            continue
        each = format_count(found[0], "thread")
        if found[0] < at_base:
            yield (
                f"{count} processes share this machine's CPUs, with {each} each; the base had "
                f"{at_base}. For a fair comparison use --threads 1"
            )
        elif cpus is not None and found[0] * count > cpus:
            yield f"{count} processes of {each} each share {cpus} CPUs"


def _cpu_threads(sweep: Sweep, scale: Scale, count: int) -> tuple[int, int | None] | None:
    """Return the threads of a process that computes on the CPU, and the usable CPUs."""
    for trial in trials_with_rate(sweep, scale.values("strong", count))[:1]:
        environment = load_run(sweep.folder_of(trial)).info["environment"]
        threads = environment.get("threads")
        if environment.get("device", "").startswith("cpu") and threads is not None:
            return threads, environment.get("cpus_usable")
    return None
