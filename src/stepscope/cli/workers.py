"""`stepscope workers`: how many loader workers, and why."""

from __future__ import annotations

import sys
from json import dumps
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.flags import SpecFlags
from stepscope.cli.script_arguments import split_script
from stepscope.cli.subjects import named_settings, place_of, script_request
from stepscope.cli.without_launcher import refuse_launcher
from stepscope.experiments.subjects import OwnScript, OwnTraining
from stepscope.experiments.workers import find_workers
from stepscope.report.sweep import SweepDisplay
from stepscope.report.workers import print_workers


def workers(
    *command: str,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find the number of loader workers to use, by short trials, and verify it.

    `stepscope workers [SPEC.toml] [flags]` for a training of ours;
    `stepscope workers -- train.py ARGS` for a script of your own.

    Parameters
    ----------
    command
        A TOML file of settings or, after --, a script and its arguments.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    refuse_launcher("workers")
    asked: dict[str, Any] = dict(settings or {})
    words, script = split_script(command)
    subject: OwnTraining | OwnScript
    if script is None:
        subject = OwnTraining(named_settings(words, asked))
        what = subject.spec({}).run_name
    else:
        subject = OwnScript(script_request(words, script, asked))
        what = subject.request.run_name
    out, name = place_of(subject, f"workers-{what}")
    with SweepDisplay(Console(file=sys.stderr)) as display:
        found = find_workers(subject, display, summarize, out=out, name=name)
    if json:
        print(dumps(found))
    else:
        print_workers(Console(), found)
    return 0
