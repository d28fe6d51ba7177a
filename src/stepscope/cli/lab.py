"""`stepscope lab`: experiments by name, each an answer for this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from stepscope.cli.script_arguments import refuse_launcher
from stepscope.cli.settings_flags import SpecFlags, count
from stepscope.errors import MissingExtraError, RequestError
from stepscope.experiments.labs.lab_folder import LabFolder
from stepscope.experiments.labs.lab_plan import Ask
from stepscope.experiments.labs.lab_runner import (
    Investigation,
    LabFinding,
    Tools,
    conduct,
    find,
    labs,
)
from stepscope.experiments.labs.lab_runner import resume as go_on
from stepscope.experiments.labs.lab_sheet import Sheet
from stepscope.report.terminal.lab_tables import (
    charts_of,
    print_finding,
    print_labs,
    print_sheet,
    save_charts,
)
from stepscope.report.terminal.sweep_table import SweepDisplay
from stepscope.settings.load_settings import resolve_request


def lab(
    name: str | None = None,
    /,
    *,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    scale: str | None = None,
    repeats: str | None = None,
    resume: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Do an experiment, and print what it found; without a name, list them.

    Exits with 1 where the answer is no.

    Parameters
    ----------
    name
        Which experiment.
    scale
        Take this share of the data and epochs that the experiment asks for, like 0.05.
    repeats
        Run every setting this many times [default: what the experiment asks for].
    resume
        Go on with an experiment that was stopped: its folder, and no other flag.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    refuse_launcher("lab")
    flags = dict(settings or {})
    if resume is not None:
        if flags or any(given is not None for given in (name, scale, repeats)):
            raise RequestError("resume: takes no name and no other flag: the folder knows them.")
        return _go_on(resume, json)
    if name is None:
        _list_labs(json)
        return 0
    found = find(name)
    if isinstance(found, Sheet):
        share = 1.0 if scale is None else _share(scale)
        rounds = None if repeats is None else count("repeats", repeats)
        return _do_sheet(found, Ask(flags, share, rounds), json)
    for flag, value in (("scale", scale), ("repeats", repeats)):
        if value is not None:
            raise RequestError(f"{flag}: lab {name} has its own, found {value!r}. Leave it out.")
    return _do_own(name, found, flags, json)


def _list_labs(as_json: bool) -> None:
    if as_json:
        print(dumps({"labs": [{"name": name, "about": about} for name, about in labs().items()]}))
    else:
        print_labs(Console(), labs())


def _do_sheet(sheet: Sheet, ask: Ask, as_json: bool) -> int:
    with SweepDisplay(Console(file=sys.stderr)) as display:
        finding = conduct(sheet, ask, Tools(display, display.output))
    return _tell(sheet, finding, as_json)


def _go_on(folder: Path, as_json: bool) -> int:
    with SweepDisplay(Console(file=sys.stderr)) as display:
        sheet, finding = go_on(folder, Tools(display, display.output))
    return _tell(sheet, finding, as_json)


def _tell(sheet: Sheet, finding: LabFinding, as_json: bool) -> int:
    told = {
        "lab": sheet.name,
        "question": sheet.question,
        "answer": finding.answer,
        "holds": finding.holds,
        "published": sheet.published,
        **finding.figures,
    }
    charts = charts_of(told, sheet.plots)
    folder = Path(told["path"])
    try:
        told["plots"] = save_charts(charts, folder)
    except MissingExtraError as error:
        told["plots"] = []
        told["missing"].append({"name": "plots", "reason": str(error)})
    LabFolder(folder).update_info(plots=told["plots"], missing=told["missing"])
    if as_json:
        print(dumps(told))
    else:
        print_sheet(Console(), told, sheet.columns, charts)
    return 0 if finding.holds else 1


def _do_own(name: str, lab: Investigation, flags: Mapping[str, Any], as_json: bool) -> int:
    spec = resolve_request(None, {**lab.DEFAULTS, **flags})
    with SweepDisplay(Console(file=sys.stderr)) as display:
        finding = lab.investigate(spec, Tools(display, display.output))
    told = {"lab": name, "answer": finding.answer, "holds": finding.holds, **finding.figures}
    if as_json:
        print(dumps(told))
    else:
        print_finding(Console(), told)
    return 0 if finding.holds else 1


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"scale: wanted a share like 0.05, found {text!r}.") from None
