"""`stepscope max-batch`: the largest batch that fits, found by trying."""

from __future__ import annotations

import sys
from dataclasses import replace

from stepscope.cli.script_arguments import refuse_launcher, split_script
from stepscope.cli.settings_flags import SettingsToo, SpecFlags
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import RequestError
from stepscope.experiments import max_batch_trials
from stepscope.experiments.max_batch_trials import MaxBatchResult
from stepscope.report.terminal.max_batch_table import TrialDisplay, print_max_batch
from stepscope.settings.load_settings import as_flags, resolve_request
from stepscope.supervisor.script_child import TraceRequest

_OF_A_SCRIPT = ("batch_size", "memory_limit", "max_steps", "out")


def max_batch(*model: str, settings: SettingsToo = None, json: AsJson = False) -> int:
    """Find the largest batch that fits, by short runs in processes that may die.

    For your own training script: stepscope max-batch [OPTIONS] -- SCRIPT [ARGS], or
    -- -m MODULE [ARGS].
    Exits with 1 if none fits, or if the given --batch-size does not.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory for your own.
    """
    refuse_launcher("max-batch")
    names, script = split_script(model)
    given = settings or {}
    with TrialDisplay() as display:
        answer = (
            _fit_script(names, script, given, display) if script else _fit(names, given, display)
        )
    found = answer.to_json()
    print_answer(found, print_max_batch, as_json=json)
    if found["reason"]:
        print(f"stepscope: {found['reason']}", file=sys.stderr)
    return answer.exit_code


def _fit(names: list[str], given: SpecFlags, display: TrialDisplay) -> MaxBatchResult:
    if len(names) != 1:
        raise RequestError(
            f"wanted one MODEL, found {len(names)}: stepscope max-batch MODEL, or, for your own "
            "script, stepscope max-batch -- SCRIPT [ARGS]."
        )
    if names[0].endswith(".py"):
        raise RequestError(
            f"wanted a MODEL, found {names[0]!r}. A script comes after --: "
            f"stepscope max-batch -- {names[0]}"
        )
    spec = resolve_request(None, {**given, "model": names[0]})
    return max_batch_trials.fit(spec, display, asked="batch_size" in given)


def _fit_script(
    names: list[str], script: TraceRequest, given: SpecFlags, display: TrialDisplay
) -> MaxBatchResult:
    if names:
        raise RequestError(f"wanted a model or a script, found both: {names[0]!r} comes before --.")
    others = {name: value for name, value in given.items() if name not in _OF_A_SCRIPT}
    if others:
        raise RequestError(
            f"{as_flags(others)} does not apply to a script. With a script, use "
            f"{', '.join(as_flags({name: 'X'}) for name in _OF_A_SCRIPT)}, and put its own flags "
            "after its name."
        )
    spec = resolve_request(None, given)
    return max_batch_trials.fit_script(
        replace(script, out=spec.out, max_steps=spec.max_steps),
        display,
        batch_size=spec.batch_size if "batch_size" in given else None,
        memory_limit_bytes=spec.memory_limit,
    )
