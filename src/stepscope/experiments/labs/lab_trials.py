"""Run a plan's settings in rounds, and put together what came of each: rows, curves, ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from stepscope.analyze.throughput import rate_of_trial
from stepscope.errors import MachineError
from stepscope.experiments import sweep_run
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_sheet import Setting
from stepscope.experiments.workload import TrainingWorkload
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, Trial, load_sweep
from stepscope.records.types import LabExtras, LabValue, MissingPart
from stepscope.stats import Ratio, interval_of, known_median, ratio_of_rounds, verdict
from stepscope.units import format_share

_RATE = "samples_per_s"
_PHASE = "phases."
_NAME = "trials"

LabRow: TypeAlias = dict[str, LabValue]


@dataclass(frozen=True)
class LabResult:
    """What a lab with a sheet found: the answer in a sentence, its table, its curves by epoch.

    `holds` is False where the runs that the answer takes did not complete.
    """

    answer: str
    holds: bool = True
    rows: Sequence[LabRow] = ()
    missing: Sequence[MissingPart] = ()
    curves: Sequence[LabRow] = ()
    extras: LabExtras = field(default_factory=LabExtras)


@dataclass(frozen=True)
class SettingTrials:
    """One setting and its trials, in the order of their rounds."""

    setting: Setting
    trials: tuple[Trial, ...]
    folders: tuple[Path, ...]

    @cached_property
    def completed(self) -> list[Trial]:
        """The trials that completed."""
        return [trial for trial in self.trials if trial.status == schema.COMPLETED]

    @cached_property
    def runs(self) -> list[Run]:
        """What was recorded of those."""
        return [
            load_run(folder)
            for trial, folder in zip(self.trials, self.folders, strict=True)
            if trial.status == schema.COMPLETED
        ]

    @property
    def status(self) -> str:
        """Say `completed`, or what became of the first trial that was not."""
        ended = next((each for each in self.trials if each.status != schema.COMPLETED), None)
        return schema.COMPLETED if ended is None else f"{ended.status}: {ended.reason}"

    def values_of(self, name: str) -> list[float]:
        """Return a figure of every completed trial that has it; `phases.data` is one of a phase."""
        found = [_figure(trial, name) for trial in self.completed]
        return [value for value in found if value is not None]

    def median_of(self, name: str) -> float | None:
        """Return the median of a figure over the rounds."""
        return known_median(self.values_of(name))

    def row(self, *figures: str) -> LabRow:
        """Make the row of a table: what was set, how it ended, and figures over the rounds.

        A figure that has an interval, with more rounds than one, has it beside it: `_low`, `_high`.
        """
        row: LabRow = {**self.setting.values, **self.setting.shown, "status": self.status}
        for name in figures:
            column = f"{name.removeprefix(_PHASE)}_s" if name.startswith(_PHASE) else name
            values = self.values_of(name)
            row[column] = known_median(values)
            if len(values) > 1 and min(values) > 0:
                known = interval_of(values)
                row |= {f"{column}_low": known.low, f"{column}_high": known.high}
        return row

    @cached_property
    def epochs(self) -> dict[int, Mapping[str, float | None]]:
        """What each epoch recorded: medians over the rounds.

        `elapsed_s` is the time spent in training epochs so far, tests left out.
        """
        tables = [_by_epoch(run) for run in self.runs]
        medians: dict[int, Mapping[str, float | None]] = {}
        for epoch in sorted({epoch for table in tables for epoch in table}):
            rows = [table[epoch] for table in tables if epoch in table]
            medians[epoch] = {name: known_median(row[name] for row in rows) for name in rows[0]}
        return medians

    def curve(self) -> list[LabRow]:
        """Return a row for each epoch."""
        set_up = {**self.setting.values, **self.setting.shown}
        return [{**set_up, "epoch": epoch, **figures} for epoch, figures in self.epochs.items()]


@dataclass(frozen=True)
class SheetTrials:
    """The trials of a sheet's settings, and what of them this machine could not run."""

    plan: Plan
    settings: list[SettingTrials]
    missing: list[MissingPart]

    @property
    def curves(self) -> list[LabRow]:
        """The epochs of all settings in one table."""
        return [row for each in self.settings for row in each.curve()]


def try_settings(
    plan: Plan,
    folder: Path,
    listener: sweep_run.SweepListener,
    *,
    choice: Mapping[str, str] | None = None,
) -> SheetTrials:
    """Run every setting of a plan; return those that this machine can run, and what it lacks.

    Where the folder has trials of these settings already, only those are made that are missing.
    A setting whose trials could not start because the machine lacks a part is listed as missing.
    `choice` goes into every run's record: how its settings were chosen.
    """
    request = sweep_run.SweepRequest(
        settings=[setting.values for setting in plan.settings],
        repeats=plan.repeats,
        out=folder,
        name=_NAME,
        kind="lab",
        seed=plan.spec.seed,
    )
    workload = TrainingWorkload(plan.asked, quick=True, choice=choice)
    begun = _begun(folder, workload, request)
    done = (
        sweep_run.start(workload, request, listener)
        if begun is None
        else sweep_run.go_on(begun, listener, workload=workload)
    )
    tried: list[SettingTrials] = []
    missing: list[MissingPart] = []
    for setting in plan.settings:
        trials = sorted(
            (trial for trial in done.trials if trial.values == dict(setting.values)),
            key=lambda trial: trial.repeat,
        )
        if all(trial.exit_code == MachineError.exit_code for trial in trials):
            name = ", ".join(f"{key} {value}" for key, value in setting.values.items())
            missing.append({"name": name, "reason": str(trials[0].reason)})
            continue
        tried.append(SettingTrials(setting, tuple(trials), tuple(map(done.folder_of, trials))))
    return SheetTrials(plan, tried, [*missing, *_one_basis(tried)])


def _begun(
    folder: Path, workload: TrainingWorkload, request: sweep_run.SweepRequest
) -> Sweep | None:
    """Return the same trials, where an earlier attempt left some in a lab's folder."""
    wanted = {
        **workload.to_json(),
        "settings": [dict(values) for values in request.settings],
        "repeats": request.repeats,
    }
    begun = (
        load_sweep(found.parent) for found in sorted(folder.glob(f"*-{_NAME}*/{schema.SWEEP}"))
    )
    return next((each for each in begun if wanted.items() <= each.info.items()), None)


def _one_basis(tried: Sequence[SettingTrials]) -> list[MissingPart]:
    """Tell where throughputs stand side by side that were got in different ways."""
    rates = [rate_of_trial(trial.metrics) for each in tried for trial in each.completed]
    bases = sorted({rate.basis for rate in rates if rate.samples_per_s is not None})
    if len(bases) < 2:
        return []
    reason = f"in some runs it is of {', in others of '.join(bases)}. Give more --epochs or samples"
    return [{"name": "throughput got in one way", "reason": f"{reason}."}]


def compare(baseline: SettingTrials, other: SettingTrials) -> Ratio | None:
    """Compare the throughputs of two settings by the rounds that both completed."""
    before, after = (
        {trial.repeat: rate for trial in side.completed if (rate := _figure(trial, _RATE))}
        for side in (baseline, other)
    )
    rounds = sorted(before.keys() & after.keys())
    return ratio_of_rounds([before[each] for each in rounds], [after[each] for each in rounds])


def in_words(ratio: Ratio | None, baseline: str) -> str:
    """Say how a setting compares with a baseline, and how well that is known."""
    if ratio is None:
        return f"not comparable with {baseline}: no round in which both completed"
    times = f"{ratio.ratio:.2f} times as fast as {baseline}"
    if ratio.low is None or ratio.high is None:
        return f"{times} (too few rounds for an interval): {verdict(ratio)}"
    return (
        f"{times} ({ratio.low:.2f} to {ratio.high:.2f} in {ratio.rounds} rounds): {verdict(ratio)}"
    )


def _by_epoch(run: Run) -> dict[int, dict[str, float | None]]:
    rows: dict[int, dict[str, float | None]] = {}
    elapsed_s = 0.0
    for row in run.epochs.rows():
        if row["split"] == "train":
            elapsed_s += row["total_s"]
            rows[row["epoch"]] = {
                "loading_s": row["loading_s"],
                "training_s": row["training_s"],
                "other_s": row["total_s"] - row["loading_s"] - row["training_s"],
                "total_s": row["total_s"],
                "elapsed_s": elapsed_s,
                "loss": row["loss"],
                "train_accuracy": row["accuracy"],
                "test_accuracy": None,
            }
        elif row["epoch"] in rows:
            rows[row["epoch"]]["test_accuracy"] = row["accuracy"]
    return rows


def _figure(trial: Trial, name: str) -> float | None:
    """Return a figure of a trial; its throughput is the one that trials are compared by."""
    if name == _RATE:
        return rate_of_trial(trial.metrics).samples_per_s
    if name.startswith(_PHASE):
        return (trial.metrics.get("phases") or {}).get(name.removeprefix(_PHASE))
    value = trial.metrics.get(name)
    return value if isinstance(value, int | float) else None


def not_cold(tried: Iterable[SettingTrials]) -> list[MissingPart]:
    """Tell where the page cache was not cold, of runs in which it should have been."""
    reasons = [_why_not_cold(run) for each in tried for run in each.runs]
    known = dict.fromkeys(reason for reason in reasons if reason is not None)
    return [{"name": "cold page cache", "reason": reason} for reason in known]


def _why_not_cold(run: Run) -> str | None:
    made = run.summary.get("page_cache")
    if made is None:
        return str(run.summary["absent"].get("page_cache"))
    if made["cold_share"] == 1:
        return None
    share = "an unknown share" if made["cold_share"] is None else format_share(made["cold_share"])
    return f"{share} of the files was cold ({made['how']}). {made['reason'] or ''}".strip()
