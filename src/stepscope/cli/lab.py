"""`stepscope lab`: experiments by name, each an answer for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.completion import completed_with
from stepscope.cli.end_of_run import refuse_flags
from stepscope.cli.script_arguments import refuse_launcher
from stepscope.cli.settings_flags import SettingsToo, count
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import MissingExtraError, RequestError
from stepscope.experiments.labs import lab_runner
from stepscope.experiments.labs.lab_plan import LabRequest, Sheet, read_sheet
from stepscope.records.types import LabAnswer, LabsAnswer
from stepscope.report.terminal.lab_tables import (
    charts_of,
    print_finding,
    print_labs,
    print_sheet,
    save_charts,
)
from stepscope.report.terminal.sweep_table import SweepDisplay


def lab(
    name: Annotated[str | None, completed_with(lambda _: lab_runner.labs())] = None,
    /,
    *,
    settings: SettingsToo = None,
    scale: str | None = None,
    repeats: str | None = None,
    resume: Path | None = None,
    json: AsJson = False,
) -> int:
    """Run an experiment and print its answer; without a name, list them.

    Exits with 1 if there is no answer.

    Parameters
    ----------
    name
        Name of the experiment.
    scale
        Use this share of the experiment's data and epochs, such as 0.05.
    repeats
        Run every setting this many times [default: set by the experiment].
    resume
        Continue the experiment in this folder; takes no other flag.
    """
    refuse_launcher("lab")
    flags = settings or {}
    if resume is not None:
        refuse_flags(flags, name, scale, repeats)
        with SweepDisplay() as display:
            resumed = lab_runner.resume(resume, display)
        return _show_sheet(read_sheet(resumed["lab"]), resumed, json)
    if name is None:
        labs = lab_runner.labs()
        listed: LabsAnswer = {"labs": [{"name": each, "about": labs[each]} for each in labs]}
        print_answer(listed, lambda console, _: print_labs(console, labs), as_json=json)
        return 0
    sheet = lab_runner.find_sheet(name)
    if sheet is None:
        for flag, value in (("scale", scale), ("repeats", repeats)):
            if value is not None:
                raise RequestError(f"{flag}: lab {name} does not take it. Leave it out.")
        with SweepDisplay() as display:
            answer = lab_runner.run_without_sheet(name, flags, display)
        print_answer(answer, print_finding, as_json=json)
        return 0 if answer["holds"] else 1
    try:
        share = 1.0 if scale is None else float(scale)
    except ValueError:
        raise RequestError(f"scale: wanted a share such as 0.05, found {scale!r}.") from None
    request = LabRequest(flags, share, count("repeats", repeats, None))
    with SweepDisplay() as display:
        found = lab_runner.run_lab(sheet, request, display)
    return _show_sheet(sheet, found, json)


def _show_sheet(sheet: Sheet, answer: LabAnswer, as_json: bool) -> int:
    charts = charts_of(answer, sheet.plots)
    folder = Path(answer["path"])
    try:
        answer["plots"] = save_charts(charts, folder)
    except MissingExtraError as error:
        answer["missing"].append({"name": "plots", "reason": str(error)})
    lab_runner.LabFolder(folder).update_info(plots=answer["plots"], missing=answer["missing"])
    print_answer(
        answer,
        lambda console, found: print_sheet(console, found, sheet.columns, charts),
        as_json=as_json,
    )
    return 0 if answer["holds"] else 1
