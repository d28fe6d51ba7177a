"""`stepscope workers`: how many loader workers, and why."""

from __future__ import annotations

import sys
from json import dumps
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from stepscope.cli.script_arguments import refuse_launcher, split_script
from stepscope.cli.settings_flags import SpecFlags, named_settings, place_of, script_request
from stepscope.experiments.worker_trials import find_workers
from stepscope.experiments.workload import ScriptWorkload, TrainingWorkload
from stepscope.report.terminal.sweep_table import SweepDisplay
from stepscope.report.terminal.workers_table import print_workers


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
    workload: TrainingWorkload | ScriptWorkload
    if script is None:
        workload = TrainingWorkload(named_settings(words, asked))
        what = workload.spec({}).run_name
    else:
        workload = ScriptWorkload(script_request(words, script, asked))
        what = workload.request.run_name
    out, name = place_of(workload, f"workers-{what}")
    with SweepDisplay(Console(file=sys.stderr)) as display:
        found = find_workers(workload, display, out=out, name=name)
    if json:
        print(dumps(found))
    else:
        print_workers(Console(), found)
    return 0
