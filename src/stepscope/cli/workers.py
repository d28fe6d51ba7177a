"""`stepscope workers`: how many loader workers, and why."""

from __future__ import annotations

from stepscope.cli.script_arguments import refuse_launcher
from stepscope.cli.settings_flags import SettingsToo, place_of, workload_of_words
from stepscope.cli.streams import AsJson, print_answer
from stepscope.experiments.worker_trials import find_workers
from stepscope.report.terminal.sweep_table import SweepDisplay
from stepscope.report.terminal.workers_table import print_workers


def workers(*command: str, settings: SettingsToo = None, json: AsJson = False) -> int:
    """Find the number of loader workers to use, by short trials, and verify it.

    `stepscope workers [SPEC.toml] [flags]` for a training of ours;
    `stepscope workers -- train.py ARGS` for a script of your own.

    Parameters
    ----------
    command
        A TOML file of settings or, after --, a script and its arguments.
    """
    refuse_launcher("workers")
    workload = workload_of_words(command, settings)
    out, name = place_of(workload, "workers")
    with SweepDisplay() as display:
        found = find_workers(workload, display, out=out, name=name)
    print_answer(found, print_workers, as_json=json)
    return 0
