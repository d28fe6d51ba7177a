"""The search for the largest batch: one line per trial in progress, then a table and the answer."""

from __future__ import annotations

from rich.console import Console

from stepscope.records.types import BatchSettings, BatchTrialRecord, MaxBatchAnswer
from stepscope.report.progress_bar import LiveDisplay
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.settings.load_settings import as_flags
from stepscope.units import format_bytes, format_known, format_share


class TrialDisplay(LiveDisplay):
    """Show trials on standard error; on a terminal also the current one."""

    def __init__(self) -> None:
        super().__init__()
        self._trials = 0

    def forecasting(self) -> None:
        """Show that a forecast is in progress."""
        self._progress.reset(self._task, total=None, description="forecasting")

    def trying(self, settings: BatchSettings) -> None:
        """Show the settings of the next trial."""
        self._trials += 1
        doing = f"trial {self._trials}: {_about(settings)}"
        self._progress.reset(self._task, total=None, description=doing)

    def tried(self, trial: BatchTrialRecord) -> None:
        """Show how a trial ended."""
        said = f"trial {self._trials}: {_about(trial)}: {_outcome(trial)}"
        if trial["peak_memory_bytes"] is not None:
            said += f", {format_bytes(trial['peak_memory_bytes'])}"
        if trial["forecast_bytes"] is not None:
            said += f" (forecast {format_bytes(trial['forecast_bytes'])})"
        self._say(said)


def print_max_batch(console: Console, found: MaxBatchAnswer) -> None:
    """Print every trial, and the answer."""
    limit = f"{format_bytes(found['limit_bytes'])} ({found['limit_of']})"
    say(console, f"{found['model']}: batches within {limit}")
    if found["trials"]:
        _print_trials(console, found["trials"], of_script=found["script"] is not None)
    for trial in found["trials"]:
        if trial["reason"] and trial["status"] != "out_of_memory":
            say(console, f"{_about(trial)}: {trial['reason']}")
    for sentence in _verdict(found):
        print_prose(console, sentence)


def _print_trials(console: Console, trials: list[BatchTrialRecord], *, of_script: bool) -> None:
    """Print trials in order; of a user script only the batch size is known."""
    columns = ["batch", "accumulate", "recomputed", "forecast", "measured", "outcome"]
    rows = [
        [
            f"{trial['batch_size']:,}",
            f"{trial['accumulate']:,}",
            "yes" if trial["checkpoint_activations"] else "no",
            format_known(trial["forecast_bytes"], format_bytes),
            format_known(trial["peak_memory_bytes"], format_bytes),
            _outcome(trial),
        ]
        for trial in trials
    ]
    if of_script:
        for row in (columns, *rows):
            del row[1:4]
    print_rows(console, columns, rows, left=[len(columns) - 1])


def _verdict(found: MaxBatchAnswer) -> list[str]:
    asked, best = found["asked"], found["largest_batch"]
    sentences = []
    if asked and asked["fits"] is not None:
        fits = "fits" if asked["fits"] else "does not fit"
        sentences.append(f"Batch {asked['batch_size']:,} {fits}.")
    if asked and asked["fits"] is False:
        for each in found["recommended"]:
            if len(each["settings"]) > 1:  # as many samples per step, at a smaller batch size
                took = format_known(each["peak_memory_bytes"], format_bytes)
                sentences.append(f"Instead, {as_flags(each['settings'])} fits in {took}.")
    if best is None:
        return [*sentences, "No batch that was tried fits."]
    setting = f"--batch-size {best}" if found["script"] is None else f"batch_size={best}"
    said = f"The largest batch tried that fits is {setting}"
    peak = found["peak_memory_bytes"]
    if peak is not None:
        share = format_share(peak / found["limit_bytes"])
        said += f", which takes {format_bytes(peak)}, {share} of the limit"
    if found["is_all_the_data"]:
        said += "; the data set has no more samples"
    return [*sentences, f"{said}."]


def _about(settings: BatchSettings | BatchTrialRecord) -> str:
    if settings["batch_size"] is None:
        return "the script's own batch size"
    about = f"batch {settings['batch_size']:,}"
    if settings.get("accumulate", 1) > 1:
        about += f" x {settings['accumulate']:,}"
    return f"{about}, recomputed" if settings.get("checkpoint_activations") else about


def _outcome(trial: BatchTrialRecord) -> str:
    if trial["fits"]:
        return "fits"
    if trial["status"] == "completed":
        return "does not fit"
    return str(trial["status"]).replace("_", " ")
