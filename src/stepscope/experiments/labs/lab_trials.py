"""Run the settings of a plan in rounds, and collect the figures of each, and what was missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

from stepscope.analyze.throughput import rate_of_trial
from stepscope.errors import MachineError
from stepscope.experiments import sweep_run
from stepscope.experiments.labs.lab_plan import Plan, Setting
from stepscope.experiments.workload import TrainingWorkload
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.disk import medium_under
from stepscope.hardware.machine_setup import changes, protocol
from stepscope.hardware.procfs import system_root
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, Trial, load_sweep
from stepscope.records.types import LabExtras, LabValue, MissingPart
from stepscope.stats.decide import Compared, contrast, family
from stepscope.stats.intervals import interval_of, known_median
from stepscope.units import format_share

_RATE = "samples_per_s"
_PHASE = "phases."
_NAME = "trials"

LabRow: TypeAlias = dict[str, LabValue]


@dataclass(frozen=True)
class LabResult:
    """The answer of a lab with its table and its curves; `holds` is False if runs failed."""

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
        """The runs of the completed trials."""
        folders = zip(self.trials, self.folders, strict=True)
        return [load_run(folder) for trial, folder in folders if trial in self.completed]

    @property
    def status(self) -> str:
        """`completed`, or the status and reason of the first trial that was not."""
        ended = next((each for each in self.trials if each.status != schema.COMPLETED), None)
        return schema.COMPLETED if ended is None else f"{ended.status}: {ended.reason}"

    def values_of(self, name: str) -> list[float]:
        """Return a figure of every completed trial that has it."""
        found = [_figure(trial, name) for trial in self.completed]
        return [value for value in found if value is not None]

    def in_rounds(self, name: str) -> list[float | None]:
        """Return a figure in each round; None where the trial did not complete."""
        return [_figure(t, name) if t in self.completed else None for t in self.trials]

    def median_of(self, name: str) -> float | None:
        """Return the median of a figure over the rounds."""
        return known_median(self.values_of(name))

    def row(self, *figures: str) -> LabRow:
        """Return a row with medians over the rounds; from two rounds on with `_low` and `_high`."""
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
        """The figures of each epoch: medians over the rounds."""
        tables = [_by_epoch(run) for run in self.runs]
        medians: dict[int, Mapping[str, float | None]] = {}
        for epoch in sorted({epoch for table in tables for epoch in table}):
            rows = [table[epoch] for table in tables if epoch in table]
            medians[epoch] = {name: known_median(row[name] for row in rows) for name in rows[0]}
        return medians


@dataclass(frozen=True)
class SheetTrials:
    """The trials of a sheet's settings, and what this machine could not run."""

    plan: Plan
    settings: list[SettingTrials]
    missing: list[MissingPart]

    @property
    def curves(self) -> list[LabRow]:
        """The epochs of all settings in one table."""
        return [
            {**each.setting.values, **each.setting.shown, "epoch": epoch, **figures}
            for each in self.settings
            for epoch, figures in each.epochs.items()
        ]


def try_settings(
    plan: Plan,
    folder: Path,
    listener: sweep_run.SweepListener,
    *,
    choice: Mapping[str, str] | None = None,
) -> SheetTrials:
    """Run the trials of a plan that the folder does not have yet.

    A setting that this machine cannot run is listed as missing. `choice` is recorded in every run:
    how its settings were chosen.
    """
    request = sweep_run.SweepRequest(
        settings=[setting.values for setting in plan.settings],
        repeats=plan.repeats,
        out=folder,
        name=_NAME,
        kind="lab",
    )
    workload = TrainingWorkload(plan.base, quick=True, choice=choice)
    earlier = _earlier_sweep(folder, workload, request)
    done = (
        sweep_run.start(workload, request, listener)
        if earlier is None
        else sweep_run.go_on(earlier, listener, workload=workload)
    )
    tried: list[SettingTrials] = []
    missing: list[MissingPart] = []
    for setting in plan.settings:
        trials = [trial for trial in done.trials if trial.values == dict(setting.values)]
        trials.sort(key=lambda trial: trial.repeat)
        if all(trial.exit_code == MachineError.exit_code for trial in trials):
            name = ", ".join(f"{key} {value}" for key, value in setting.values.items())
            missing.append({"name": name, "reason": str(trials[0].reason)})
            continue
        tried.append(SettingTrials(setting, tuple(trials), tuple(map(done.folder_of, trials))))
    return SheetTrials(plan, tried, [*missing, *_mixed_rates(tried)])


def _earlier_sweep(
    folder: Path, workload: TrainingWorkload, request: sweep_run.SweepRequest
) -> Sweep | None:
    """Return the sweep of the same trials that an interrupted lab left in its folder."""
    wanted = {
        **workload.to_json(),
        "settings": [dict(values) for values in request.settings],
        "repeats": request.repeats,
    }
    files = sorted(folder.glob(f"*-{_NAME}*/{schema.SWEEP}"))
    sweeps = (load_sweep(file.parent) for file in files)
    return next((each for each in sweeps if wanted.items() <= each.info.items()), None)


def _mixed_rates(tried: Sequence[SettingTrials]) -> list[MissingPart]:
    """Report throughputs that were computed in different ways."""
    rates = [rate_of_trial(trial.metrics) for each in tried for trial in each.completed]
    bases = sorted({rate.basis for rate in rates if rate.samples_per_s is not None})
    if len(bases) < 2:
        return []
    reason = f"computed from {' in some runs, from '.join(bases)} in others. Use more --epochs."
    return [{"name": "comparable throughput", "reason": reason}]


def compare(baseline: SettingTrials, others: Sequence[SettingTrials]) -> list[Compared]:
    """Compare the throughputs of settings with one of them, by the rounds that both completed."""
    before = baseline.in_rounds(_RATE)
    return family([partial(contrast, before, other.in_rounds(_RATE)) for other in others])


def describe_ratio(compared: Compared, baseline: str) -> str:
    """Describe how fast a setting is compared with a baseline, with the interval."""
    ratio = compared.ratio
    if ratio is None:
        return f"not comparable with {baseline}: no round completed both"
    interval = "too few rounds for an interval"
    if ratio.low is not None and ratio.high is not None:
        interval = f"{ratio.low:.2f} to {ratio.high:.2f} in {ratio.rounds} rounds"
    return f"{ratio.ratio:.2f} times as fast as {baseline} ({interval}): {compared.verdict}"


def _by_epoch(run: Run) -> dict[int, dict[str, float | None]]:
    """Return the figures of each epoch; `elapsed_s` excludes evaluations."""
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
    """Return a figure of a trial; `phases.data` is that of a phase."""
    if name == _RATE:
        return rate_of_trial(trial.metrics).samples_per_s
    if name.startswith(_PHASE):
        return (trial.metrics.get("phases") or {}).get(name.removeprefix(_PHASE))
    value = trial.metrics.get(name)
    return value if isinstance(value, int | float) else None


def warm_cache(tried: Iterable[SettingTrials]) -> list[MissingPart]:
    """Report why the page cache was not cold in runs that asked for it."""
    reasons: dict[str, None] = {}
    for run in (run for each in tried for run in each.runs):
        cache = run.summary.get("page_cache")
        if cache is None:
            reasons[str(run.summary["absent"].get("page_cache"))] = None
        elif (share := cache["cold_share"]) != 1:
            cold = "an unknown share" if share is None else format_share(share)
            reason = f"{cold} of the files was cold ({cache['how']}). {cache['reason'] or ''}"
            reasons[reason.strip()] = None
    return [{"name": "cold page cache", "reason": reason} for reason in reasons]


# --- What the machine lacks of the measurement protocol for small boards

_FIXED = ("power_mode", "governor", "clocks", "memory_clock", "fan")


def missing_of_protocol(trials: SheetTrials) -> Iterator[MissingPart]:
    """List the parts of the protocol that these trials did not have."""
    root = system_root()
    yield from not_fixed(root)
    medium = medium_under(Path(trials.plan.spec.data_dir), root)
    if medium.value is None or medium.value.kind is None:
        reason = medium.reason if medium.value is None else medium.value.reason
        yield {"name": "storage medium", "reason": f"{reason}. Record it by hand."}
    elif not medium.value.kind.endswith("SSD"):
        yield {"name": "storage medium", "reason": f"wanted an SSD, found {medium.value.kind}."}
    yield from warm_cache(trials.settings)
    runs = (run for each in trials.settings for run in each.runs)
    for reason in dict.fromkeys(run.summary["absent"].get("energy_j") for run in runs):
        if reason is not None:
            yield {"name": "energy", "reason": reason}


def not_fixed(root: Path) -> Iterator[MissingPart]:
    """List the conditions of the machine that differ from the protocol."""
    wanted = protocol(root)
    for name in _FIXED:
        now, reason = CONDITIONS[name](root), ""
        if now.value is None:
            reason = f"{now.reason}."
        elif name not in wanted:
            reason = f"it is {now.value}; this machine does not offer the protocol's."
        else:
            try:
                if changes({name: wanted[name]}, root):
                    reason = (
                        f"wanted {wanted[name]}, found {now.value}. Run: stepscope doctor --apply"
                    )
            except MachineError as error:
                reason = str(error)
        if reason:
            yield {"name": name.replace("_", " "), "reason": reason}
