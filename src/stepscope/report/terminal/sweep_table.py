"""A sweep: one line per trial in progress with the time left, then a table of its settings."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from stepscope.analyze.comparison import compare_settings
from stepscope.analyze.comparison_sides import NODE, kinds_of
from stepscope.analyze.sweep_summary import rows_of
from stepscope.analyze.throughput import rate_of_trial
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import RoundFigures, RunMessage, SettingValue
from stepscope.report.progress_bar import LiveDisplay
from stepscope.report.terminal.compare_table import print_conclusion
from stepscope.report.terminal.table_style import print_rows, say
from stepscope.units import (
    format_bytes,
    format_clock,
    format_duration,
    format_known,
    format_path,
    format_range,
    format_share,
)

SETTING_COLUMNS = (
    *("runs", "samples/s", "95 % interval", "mean step", "waits", "memory", "accuracy"),
)


class SweepDisplay(LiveDisplay):
    """Show trials on standard error, and on a terminal the current run."""

    def __init__(self) -> None:
        super().__init__()
        self._trial = ""
        self._left = ""
        self._named: dict[int, str] = {}
        self._told: set[str] = set()

    def trying(self, trial: Trial, trials: int | None, left_s: float | None) -> None:
        """Show the next trial, and the time left for all."""
        number = f"{trial.index + 1}" if trials is None else f"{trial.index + 1}/{trials}"
        where = "" if trial.node is None else f", on {trial.node}"
        self._trial = f"{number} {_about(trial.values)}, round {trial.repeat}{where}"
        self._named[trial.index] = self._trial
        self._left = "" if left_s is None else f"  {format_clock(left_s)} left in total"
        self._progress.reset(self._task, description=self._trial, figures=self._left.strip())

    def tried(self, trial: Trial) -> None:
        """Show the result of a trial."""
        self._say(f"trial {self._named.pop(trial.index)}: {_outcome(trial)}{self._left}")

    def output(self, line: str) -> None:
        """Pass on a line that a run printed, once: trials repeat the same lines."""
        if line not in self._told:
            self._told.add(line)
            super().output(line)

    def message(self, message: RunMessage) -> None:
        """Show the progress of a run; other messages would bury the trials."""
        if message["type"] == "progress":
            self._progress.update(
                self._task,
                completed=message["done"],
                description=self._trial,
                figures=f"step {message['step']}/{message['steps']}{self._left}",
            )
        elif message["type"] == "workers":
            super().message(message)


def _about(values: Mapping[str, SettingValue]) -> str:
    """Return the name of a setting, without the length of the trial: `workers 2, batch_size 64`."""
    named = [f"{key} {value}" for key, value in values.items() if key != "max_steps"]
    return ", ".join(named) or "unchanged"


def _failure(trial: Trial) -> str:
    return f"{trial.status.replace('_', ' ')}: {trial.reason}"


def _outcome(trial: Trial) -> str:
    if trial.status != schema.COMPLETED:
        return _failure(trial)
    rate = rate_of_trial(trial.metrics).samples_per_s
    took = format_duration(trial.metrics.get("wall_s") or 0.0)
    return f"{rate:,.0f} samples/s, {took}" if rate else f"completed, {took}"


def setting_cells(row: RoundFigures) -> list[str]:
    """Return the figures of a setting over its rounds, in the order of `SETTING_COLUMNS`."""
    rate = row["samples_per_s"]
    few = "no run" if rate["median"] is None else "too few rounds"
    return [
        f"{row['completed']}/{row['runs']}",
        format_known(rate["median"], "{:,.0f}".format),
        format_range(rate["low"], rate["high"], "{:,.0f}".format, unknown=few),
        format_known(row["step_s"], format_duration),
        format_known(row["data_share"], format_share),
        format_known(row["peak_memory_bytes"], format_bytes),
        format_known(row["test_accuracy"], format_share),
    ]


def print_sweep(console: Console, sweep: Sweep) -> None:
    """Print a row for each setting over its rounds, the path of the folder, and what to use.

    Columns that say nothing are left out: complete runs, and an accuracy that was not measured.
    """
    rows = rows_of(sweep)
    names = list(rows[0]["values"]) if rows else []
    empty = {
        "runs": all(row["completed"] == row["runs"] for row in rows),
        "accuracy": all(row["test_accuracy"] is None for row in rows),
    }
    shown = [column for column in SETTING_COLUMNS if not empty.get(column)]
    table = []
    for row in rows:
        cells = dict(zip(SETTING_COLUMNS, setting_cells(row), strict=True))
        settings = (str(row["values"].get(name)) for name in names)
        table.append([*settings, *(cells[column] for column in shown)])
    print_rows(console, (*names, *shown), table)
    failures = {
        f"{_about(trial.values)}: {_failure(trial)}" for trial in sweep.trials if trial.reason
    }
    say(
        console,
        *(f"{NODE} {letter}: {kind}" for letter, kind in kinds_of(sweep).items()),
        *sorted(failures),
        f"Sweep: {sweep.path}",
    )
    found = compare_settings(sweep)
    if found is not None:
        say(console, f"All ratios: stepscope compare {format_path(sweep.path)}", "")
        print_conclusion(console, found["verdict"])
