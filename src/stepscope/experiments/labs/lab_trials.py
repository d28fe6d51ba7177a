"""Run a plan's settings in rounds, and put together what came of each: rows, curves, ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stepscope.analyze.throughput import rate_of_trial
from stepscope.errors import MachineError
from stepscope.experiments import sweep_run
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import Tools
from stepscope.experiments.labs.lab_sheet import Setting
from stepscope.experiments.workload import TrainingWorkload
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, Trial, load_sweep
from stepscope.stats import Ratio, interval_of, known_median, ratio_of_rounds, verdict
from stepscope.units import format_share

_RATE = "samples_per_s"
_NAME = "trials"


@dataclass(frozen=True)
class Tried:
    """One setting and its trials, in the order of their rounds."""

    setting: Setting
    trials: tuple[Trial, ...]
    folders: tuple[Path, ...]

    @cached_property
    def completed(self) -> list[Trial]:
        """The trials that came to their end."""
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

    def row(self, *figures: str) -> dict[str, Any]:
        """Make the row of a table: what was set, how it ended, and figures over the rounds.

        A figure that has an interval, with more rounds than one, has it beside it: `_low`, `_high`.
        """
        row: dict[str, Any] = {**self.setting.values, **self.setting.shown, "status": self.status}
        for name in figures:
            column = name.removeprefix("phases.") + ("_s" if name.startswith("phases.") else "")
            values = self.values_of(name)
            row[column] = known_median(values)
            if len(values) > 1 and min(values) > 0:
                known = interval_of(values)
                row |= {f"{column}_low": known.low, f"{column}_high": known.high}
        return row

    def curve(self) -> Iterator[dict[str, Any]]:
        """Go through the epochs: medians over the rounds of what each recorded.

        `elapsed_s` is the time spent in training epochs so far, tests left out.
        """
        tables = [_by_epoch(run) for run in self.runs]
        for epoch in sorted({epoch for table in tables for epoch in table}):
            rows = [table[epoch] for table in tables if epoch in table]
            of_setting = {**self.setting.values, **self.setting.shown, "epoch": epoch}
            yield {**of_setting, **_medians(rows)}


def try_settings(
    plan: Plan, folder: Path, tools: Tools, *, choice: Mapping[str, Any] | None = None
) -> tuple[list[Tried], list[dict[str, str]]]:
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
        sweep_run.start(workload, request, tools.listener)
        if begun is None
        else sweep_run.go_on(begun, workload, tools.listener)
    )
    tried, missing = [], []
    for setting in plan.settings:
        trials = sorted(
            (trial for trial in done.trials if trial.values == dict(setting.values)),
            key=lambda trial: trial.repeat,
        )
        if all(trial.exit_code == MachineError.exit_code for trial in trials):
            name = ", ".join(f"{key} {value}" for key, value in setting.values.items())
            missing.append({"name": name, "reason": str(trials[0].reason)})
            continue
        tried.append(Tried(setting, tuple(trials), tuple(map(done.folder_of, trials))))
    return tried, [*missing, *_one_basis(tried)]


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


def _one_basis(tried: Sequence[Tried]) -> list[dict[str, str]]:
    """Tell where throughputs stand side by side that were got in different ways."""
    rates = [rate_of_trial(trial.metrics) for each in tried for trial in each.completed]
    bases = sorted({rate.basis for rate in rates if rate.samples_per_s is not None})
    if len(bases) < 2:
        return []
    reason = f"in some runs it is of {', in others of '.join(bases)}. Give more --epochs or samples"
    return [{"name": "throughput got in one way", "reason": f"{reason}."}]


def compare(baseline: Tried, other: Tried) -> Ratio | None:
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
        return f"{times} in one run each, which may be noise: {verdict(ratio)}"
    return (
        f"{times} ({ratio.low:.2f} to {ratio.high:.2f} in {ratio.rounds} rounds): {verdict(ratio)}"
    )


def curves_of(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    """Put the epochs of all settings into one table."""
    return [row for each in tried for row in each.curve()]


def best_of(
    tried: Sequence[Tried], figure: Callable[[Tried], float | None]
) -> tuple[Tried, float] | None:
    """Return the setting with the largest figure, and that figure."""
    known = [(each, value) for each in tried if (value := figure(each)) is not None]
    return max(known, key=lambda pair: pair[1]) if known else None


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


def _medians(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    return {name: known_median(row[name] for row in rows) for name in rows[0]}


def _figure(trial: Trial, name: str) -> float | None:
    """Return a figure of a trial; its throughput is the one that trials are compared by."""
    if name == _RATE:
        return rate_of_trial(trial.metrics).samples_per_s
    outer, _, inner = name.partition(".")
    value = trial.metrics.get(outer)
    return value.get(inner) if inner and value is not None else value


def not_cold(tried: Iterable[Tried]) -> list[dict[str, str]]:
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
