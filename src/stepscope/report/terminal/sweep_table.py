"""A sweep: one line per trial in progress with the time left, then a table of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.analyze.comparison_sides import NODE, kinds_of
from stepscope.analyze.sweep_summary import rows_of
from stepscope.analyze.throughput import rate_of_trial
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.report.progress_bar import LiveDisplay
from stepscope.report.terminal.table_style import house_table, print_table
from stepscope.units import format_bytes, format_clock, format_duration, format_share


class SweepDisplay(LiveDisplay):
    """Show trials on standard error, and on a terminal the current run."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._trial = ""
        self._left = ""
        self._named: dict[int, str] = {}
        self._told: set[str] = set()

    def trying(self, trial: Trial, trials: int | None, left_s: float | None) -> None:
        """Show the next trial, and the time left for all."""
        number = f"{trial.index + 1}" if trials is None else f"{trial.index + 1}/{trials}"
        self._trial = f"{number} {about(trial.values)}, round {trial.repeat}{_where(trial)}"
        self._named[trial.index] = self._trial
        self._left = "" if left_s is None else f"  {format_clock(left_s)} left in all"
        self._progress.reset(self._task, description=self._trial, figures=self._left.strip())

    def tried(self, trial: Trial) -> None:
        """Show the result of a trial."""
        self._say(f"trial {self._named.pop(trial.index)}: {_outcome(trial)}{self._left}")

    def output(self, line: str) -> None:
        """Pass on a line that a run printed, once: trials repeat the same lines."""
        if line not in self._told:
            self._told.add(line)
            super().output(line)

    def message(self, message: dict[str, Any]) -> None:
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


def about(values: Mapping[str, Any]) -> str:
    """Return the name of a setting, without the length of the trial: `workers 2, batch_size 64`."""
    named = [f"{key} {value}" for key, value in values.items() if key != "max_steps"]
    return ", ".join(named) or "as it is"


def _where(trial: Trial) -> str:
    return "" if trial.node is None else f", on {trial.node}"


def _outcome(trial: Trial) -> str:
    if trial.status != schema.COMPLETED:
        return f"{trial.status.replace('_', ' ')}: {trial.reason}"
    rate = rate_of_trial(trial.metrics).samples_per_s
    took = format_duration(trial.metrics.get("wall_s") or 0.0)
    return f"{rate:,.0f} samples/s, {took}" if rate else f"completed, {took}"


def print_sweep(console: Console, sweep: Sweep) -> None:
    """Print a row for each setting over its rounds, and the path of the folder."""
    rows = rows_of(sweep)
    names = list(rows[0]["values"]) if rows else []
    table = house_table(
        *names, "runs", "samples/s", "95 % interval", "step", "waiting for data", "peak memory"
    )
    for row in rows:
        table.add_row(
            *(str(row["values"].get(name)) for name in names),
            f"{row['completed']}/{row['runs']}",
            _number(row["samples_per_s"]["median"]),
            _interval(row["samples_per_s"]),
            "?" if row["step_s"] is None else format_duration(row["step_s"]),
            "?" if row["data_share"] is None else format_share(row["data_share"]),
            "?" if row["peak_memory_bytes"] is None else format_bytes(row["peak_memory_bytes"]),
        )
    print_table(console, table)
    for letter, kind in kinds_of(sweep).items():
        console.print(Text(f"{NODE} {letter}: {kind}"), soft_wrap=True)
    for reason in sorted({_failure(trial) for trial in sweep.trials if trial.reason}):
        console.print(Text(reason), soft_wrap=True)
    console.print(Text(f"sweep: {sweep.path}"), soft_wrap=True)
    if sum(row["completed"] > 0 for row in rows) > 1:
        console.print(Text(f"side by side: stepscope compare {sweep.path}"), soft_wrap=True)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _interval(interval: Mapping[str, float | None]) -> str:
    if interval["median"] is None:
        return "no run: ?"
    if interval["low"] is None or interval["high"] is None:
        return "one run: ?"
    return f"{interval['low']:,.0f} to {interval['high']:,.0f}"


def _failure(trial: Trial) -> str:
    return f"{about(trial.values)}: {trial.status.replace('_', ' ')}: {trial.reason}"
