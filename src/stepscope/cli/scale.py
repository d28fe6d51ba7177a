"""`stepscope scale`: what more processes, or machines, would bring."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.scaling import scaling_of
from stepscope.cli.end_of_run import display_of_trials, leave_chart, leave_report, refuse_flags
from stepscope.cli.script_arguments import refuse_launcher
from stepscope.cli.settings_flags import SpecFlags, count, named_settings
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import RequestError, require_packages
from stepscope.experiments import scale_trials
from stepscope.report.charts.chart import check_form
from stepscope.report.terminal.scale_table import print_scale, scale_chart
from stepscope.report.terminal.sweep_table import SweepDisplay
from stepscope.units import parse_bandwidth, parse_duration

_PROCESSES = (1, 2)
_MOST_PROCESSES = 1_000_000  # for a prediction; a run has its own limit

# Here it is a list of numbers, not a setting of every run.
if TYPE_CHECKING:
    ScaleFlags: TypeAlias = SpecFlags
else:
    _FLAGS = {name: flag for name, flag in SpecFlags.__annotations__.items() if name != "processes"}
    ScaleFlags = TypedDict("ScaleFlags", _FLAGS, total=False)


def scale(
    spec: str | None = None,
    /,
    *,
    settings: Annotated[ScaleFlags | None, Parameter(name="*")] = None,
    processes: str | None = None,
    repeats: str | None = None,
    predict: str | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    chart: Path | None = None,
    resume: Path | None = None,
    json: AsJson = False,
) -> int:
    """Measure the speed-up from more processes, and predict it for machines in a network.

    Runs are short and in rounds: strong scaling divides the batch among the processes, weak
    scaling gives each of them that batch. Exits with 1 if nothing could be compared.

    Parameters
    ----------
    spec
        A TOML file of settings. Flags override it.
    processes
        Numbers of processes to measure; the others are compared with the smallest. [default: 1,2]
    repeats
        Number of rounds; each runs every setting once. [default: 3]
    predict
        Larger numbers of processes to predict, each on a machine like this one: 4,8,16. Needs
        --bandwidth.
    bandwidth
        Bandwidth of the network between the machines, such as 25Gbit or 10GB/s.
    latency
        Latency of a message between two machines, such as 20us. [default: none]
    chart
        Draw the speed-up by processes into this file: .png, .svg or .pdf.
    resume
        Continue the stopped measurement in this folder; takes only --chart besides.
    """
    refuse_launcher("scale")
    if chart is not None:
        # Before the trials, not after them.
        check_form(chart)
        require_packages("drawing a chart", "report", "vl_convert")
    with display_of_trials(SweepDisplay) as display:
        if resume is not None:
            refuse_flags(settings, spec, processes, repeats, predict, bandwidth, latency)
            done = scale_trials.resume(resume, display)
        else:
            request = scale_trials.ScaleRequest(
                named_settings([] if spec is None else [spec], settings or {}),
                _PROCESSES if processes is None else _counts("processes", processes),
                count("repeats", repeats, scale_trials.REPEATS),
                *_prediction(predict, bandwidth, latency),
            )
            done = scale_trials.start(request, display)
    leave_report(done.path, Console(file=sys.stderr))
    found = scaling_of(done)
    print_answer(found, print_scale, as_json=json)
    if chart is not None:
        leave_chart(scale_chart(found), chart, as_json=json)
    return 0


def _prediction(
    predict: str | None, bandwidth: str | None, latency: str | None
) -> tuple[tuple[int, ...], float | None, float | None]:
    if predict is None:
        for flag, value in (("bandwidth", bandwidth), ("latency", latency)):
            if value is not None:
                raise RequestError(f"{flag}: needs --predict, numbers of processes like 4,8,16.")
        return (), None, None
    if bandwidth is None:
        raise RequestError("predict: needs --bandwidth of the network, like 25Gbit or 10GB/s.")
    return (
        _counts("predict", predict),
        _read("bandwidth", parse_bandwidth, bandwidth),
        None if latency is None else _read("latency", parse_duration, latency),
    )


def _counts(name: str, text: str) -> tuple[int, ...]:
    """Parse comma-separated numbers of processes, in any order."""
    words = [word.strip() for word in text.split(",")]
    whole = all(word.isascii() and word.isdecimal() for word in words)
    numbers = tuple(sorted(int(word) for word in words)) if whole else ()
    if not numbers or not 1 <= numbers[0] <= numbers[-1] <= _MOST_PROCESSES:
        raise RequestError(
            f"{name}: wanted whole numbers of 1 or more with commas between them, like 1,2,4; "
            f"found {text!r}."
        )
    if len({*numbers}) < len(numbers):
        raise RequestError(
            f"{name}: wanted each number once, found {text!r}. --repeats N repeats every trial."
        )
    return numbers


def _read(name: str, parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise RequestError(f"{name}: {error}.") from error
