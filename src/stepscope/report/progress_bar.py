"""The progress of a run: a live line on a terminal, else a plain line now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text
from typing_extensions import Self

from stepscope.records.types import (
    DownloadMessage,
    EpochMessage,
    ForecastUnderLimit,
    MemoryForecast,
    ProgressMessage,
    RunMessage,
    SecondEpochForecast,
    WeightsMessage,
)
from stepscope.units import format_bytes, format_clock, format_count, format_duration, format_share

PLAIN_EVERY_S = 10.0


class LiveDisplay:
    """Show the messages of a training on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            # On a narrow terminal the figures continue below; none is cut off.
            TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=False)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("preparing", total=1.0, figures="")
        self._printed_at_s = monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def message(self, message: RunMessage) -> None:
        """Show one message of the training."""
        if message["type"] == "ready" and "preparation_s" in message:
            took = message["preparation_s"]
            self._say(f"data and network ready in {format_duration(took)}")
        elif message["type"] == "progress":
            description = f"epoch {message['epoch']}/{message['epochs']}"
            self._show(description, _figures(message), message["done"])
        elif message["type"] == "download":
            self._show_download(message)
        elif message["type"] == "testing":
            self._progress.update(self._task, description="testing", figures="")
        elif message["type"] == "epoch":
            self._say(_epoch_line(message))
        elif message["type"] == "workers":
            workers = format_count(message["to"], "worker") if message["to"] else "no workers"
            instead = f"continuing with {workers} instead of {message['from']}"
            self._say(f"data loader: {message['reason']}; {instead}")
        elif message["type"] == "weights":
            self._say(_weights_line(message))
        elif message["type"] == "forecast" and (line := workers_warning(message["forecast"])):
            self._say(line)

    def output(self, line: str) -> None:
        """Pass on a line that the training printed."""
        self._say(line)

    def stopping(self) -> None:
        """Show that a stop is in progress."""
        self._say("stopping after this step; press Ctrl-C again to stop at once")

    def _show_download(self, now: DownloadMessage) -> None:
        done, total = now["done_bytes"], now["total_bytes"]
        figures = f"{format_bytes(done)} of {format_bytes(total)}"
        if now["left_s"] is not None and done < total:
            figures += f", {format_clock(now['left_s'])} left"
        if done == total:
            self._say(f"{now['split']} data downloaded: {figures}")
        self._show(f"downloading {now['split']} data", figures, done / total if total else 1.0)

    def _show(self, description: str, figures: str, done: float) -> None:
        """Update the live line; without a terminal, print it now and then."""
        self._progress.update(self._task, completed=done, description=description, figures=figures)
        if not self._console.is_terminal and monotonic() - self._printed_at_s >= PLAIN_EVERY_S:
            self._say(f"{description}  {figures}")

    def _say(self, line: str) -> None:
        self._printed_at_s = monotonic()
        self._progress.console.print(Text(line), soft_wrap=True)


def _figures(now: ProgressMessage) -> str:
    left_s = None if now["step_s"] is None else now["steps_left"] * now["step_s"]
    known: Sequence[tuple[float | None, Callable[[float], str]]] = (
        (now["loss"], "loss {:.3f}".format),
        (now["accuracy"], lambda share: f"accuracy {format_share(share)}"),
        (now["samples_per_s"], "{:,.0f} samples/s".format),
        (now["data_share"], lambda share: f"waiting for data {format_share(share)}"),
        (left_s, lambda left_s: f"{format_clock(left_s)} left"),
    )
    figures = (form(value) for value, form in known if value is not None)
    return "  ".join((f"step {now['step']}/{now['steps']}", *figures))


def workers_warning(
    forecast: MemoryForecast | SecondEpochForecast | ForecastUnderLimit,
) -> str | None:
    """Return a warning if not all workers will fit in memory, with the number that do."""
    workers, fit = forecast.get("workers") or 0, forecast.get("workers_that_fit")
    if fit is None or fit >= workers:
        return None
    return f"memory forecast: {fit} of {format_count(workers, 'worker')} will fit from epoch 2 on"


def _weights_line(taken: WeightsMessage) -> str:
    line = f"started from a checkpoint: {taken['tensors']:,} tensors"
    if taken["fresh"]:
        line += f"; initialised randomly: {', '.join(taken['fresh'])}"
    if not taken["has_vocabulary"]:
        line += "; no vocab.txt: the vocabulary of the training text does not match its embeddings"
    return line


def _epoch_line(row: EpochMessage) -> str:
    accuracy = format_share(float(row["accuracy"])) if row["accuracy"] else "?"
    top5 = format_share(float(row["top5"])) if row["top5"] else "?"
    if row["split"] != "train":
        when = "before training" if row["epoch"] == "0" else f"after epoch {row['epoch']}"
        return f"{row['split']} {when}: accuracy {accuracy}, top-5 {top5}"
    took = format_duration(float(row["total_s"]))
    return f"epoch {row['epoch']}: {took}, loss {float(row['loss']):.3f}, accuracy {accuracy}"
