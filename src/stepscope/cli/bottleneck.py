"""`stepscope bottleneck`: compute-, preprocessing- or storage-bound."""

from __future__ import annotations

from stepscope.cli.script_arguments import refuse_launcher
from stepscope.cli.settings_flags import SettingsToo, count, named_settings, place_of
from stepscope.cli.streams import AsJson, print_answer
from stepscope.experiments.bottleneck_trials import REPEATS, find_stalls
from stepscope.experiments.workload import TrainingWorkload
from stepscope.report.terminal.bottleneck_table import print_stalls
from stepscope.report.terminal.sweep_table import SweepDisplay


def bottleneck(
    spec: str | None = None,
    /,
    *,
    settings: SettingsToo = None,
    repeats: str | None = None,
    json: AsJson = False,
) -> int:
    """Find out whether a training is bound by compute, by preprocessing or by storage.

    The same training is run three ways: on synthetic batches, with its data in memory, and from
    its source with a cold cache.

    Parameters
    ----------
    spec
        A TOML file of settings. Flags override it.
    repeats
        Number of rounds of the three runs. [default: 3]
    """
    refuse_launcher("bottleneck")
    workload = TrainingWorkload(named_settings([] if spec is None else [spec], settings or {}))
    out, name = place_of(workload, "bottleneck")
    with SweepDisplay() as display:
        found = find_stalls(
            workload, display, repeats=count("repeats", repeats, REPEATS), out=out, name=name
        )
    print_answer(found, print_stalls, as_json=json)
    return 0
