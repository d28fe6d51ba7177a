"""The search for the largest batch: one line per trial in progress, then a table and the answer."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from stepscope.report.terminal.table_style import house_table
from stepscope.settings.load_settings import as_flags
from stepscope.units import format_bytes, format_share


class TrialDisplay:
    """Show trials on standard error; on a terminal also the current one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console) if console.is_terminal else None
        self._trials = 0

    def __enter__(self) -> TrialDisplay:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def forecasting(self) -> None:
        """Show that a forecast is in progress."""
        self._now("forecasting")

    def trying(self, settings: dict[str, Any]) -> None:
        """Show the settings of the next trial."""
        self._trials += 1
        self._now(f"trial {self._trials}: {_about(settings)}")

    def tried(self, trial: dict[str, Any]) -> None:
        """Show how a trial ended."""
        said = f"trial {self._trials}: {_about(trial)}: {_outcome(trial)}"
        if trial["peak_memory_bytes"] is not None:
            said += f", {format_bytes(trial['peak_memory_bytes'])}"
        if trial["forecast_bytes"] is not None:
            said += f" (forecast {format_bytes(trial['forecast_bytes'])})"
        self._console.print(Text(said), soft_wrap=True)

    def _now(self, doing: str) -> None:
        if self._status is not None:
            self._status.update(Text(doing))


def print_answer(console: Console, found: dict[str, Any]) -> None:
    """Print every trial, and the answer."""
    limit = f"{format_bytes(found['limit_bytes'])} ({found['limit_of']})"
    console.print(Text(f"{found['model']}: the largest batch within {limit}"), soft_wrap=True)
    if found["trials"]:
        console.print(trial_table(found["trials"], of_script=found["script"] is not None))
    for trial in found["trials"]:
        if trial["reason"] and trial["status"] != "out_of_memory":
            console.print(Text(f"{_about(trial)}: {trial['reason']}"), soft_wrap=True)
    for line in _verdict(found):
        console.print(Text(line), soft_wrap=True)


def trial_table(trials: list[dict[str, Any]], *, of_script: bool = False) -> Table:
    """Return the table of trials in order; of a user script only the batch size is known."""
    ours = () if of_script else ("accumulate", "recomputed", "forecast")
    table = house_table("batch", *ours, "measured", "outcome")
    table.columns[0].justify, table.columns[-1].justify = "right", "left"
    for trial in trials:
        settings = (
            f"{trial['accumulate']:,}",
            "yes" if trial["checkpoint_activations"] else "no",
            _size(trial["forecast_bytes"]),
        )
        table.add_row(
            f"{trial['batch_size']:,}",
            *(() if of_script else settings),
            _size(trial["peak_memory_bytes"]),
            _outcome(trial),
        )
    return table


def _verdict(found: dict[str, Any]) -> list[str]:
    asked, best = found["asked"], found["largest_batch"]
    share = f" of {format_bytes(found['limit_bytes'])}"
    lines = []
    if asked and asked["fits"] is not None:
        lines.append(f"batch {asked['batch_size']:,} {'fits' if asked['fits'] else 'does not fit'}")
        if not asked["fits"]:
            lines += [f"  tried, and fits: {_recommendation(each)}" for each in _instead(found)]
    if best is None:
        lines.append("nothing that was tried fits")
        return lines
    setting = f"--batch-size {best}" if found["script"] is None else f"batch_size={best}"
    said = f"the largest batch that was tried and fits: {setting}"
    peak = found["peak_memory_bytes"]
    if peak is not None:
        said += f", {format_bytes(peak)}, {format_share(peak / found['limit_bytes'])}{share}"
    if found["is_all_the_data"]:
        said += "; more samples there are not"
    return [*lines, said]


def _instead(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that keep the samples per step at a smaller batch size."""
    return [each for each in found["recommended"] if len(each["settings"]) > 1]


def _recommendation(each: dict[str, Any]) -> str:
    return f"{as_flags(each['settings'])}, {_size(each['peak_memory_bytes'])}"


def _about(settings: dict[str, Any]) -> str:
    if settings["batch_size"] is None:
        return "the script's own batch"
    about = f"batch {settings['batch_size']:,}"
    if settings.get("accumulate", 1) > 1:
        about += f" x {settings['accumulate']:,}"
    return f"{about}, recomputed" if settings.get("checkpoint_activations") else about


def _outcome(trial: dict[str, Any]) -> str:
    if trial["fits"]:
        return "fits"
    if trial["status"] == "completed":
        return "does not fit"
    return str(trial["status"]).replace("_", " ")


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else format_bytes(size_bytes)
