"""Which is faster, and how certain is that? Sides of a comparison against the first, the baseline.

Settings of one sweep are compared round by round, all other sides as sets of runs in time. The
verdicts on several sides hold together: `stats.decide.family`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from stepscope.analyze.comparison_sides import MeasuredSide, Side, as_text, in_rounds, read_sides
from stepscope.analyze.comparison_verdict import (
    SOUGHT_SLOWDOWN,
    contrast_with,
    excludes_slowdown,
    on_other_nodes,
    rounds_from,
    runs_each,
    verdict_on_sides,
)
from stepscope.analyze.findings import RunView, warnings_on_steps
from stepscope.analyze.findings.finding import script_call
from stepscope.analyze.run_summary import TEMPERATURES, flat_environment
from stepscope.analyze.throttled_time import throttled_on_one_side
from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import (
    CompareAnswer,
    ComparedFigures,
    ComparedSide,
    Difference,
    FlatEnvironment,
    RateInterval,
    RatioRecord,
    RecordedSpec,
)
from stepscope.settings.load_settings import as_flags
from stepscope.settings.run_settings import RunSpec
from stepscope.stats.decide import CANNOT_TELL, ERROR, NO_DIFFERENCE, Compared, family
from stepscope.stats.intervals import interval_of, known_median, median

# --- Differences in settings and machines


# Settings without an effect on the training.
_LABELS = frozenset({"name", "out", "require"})
_OF_THE_MOMENT = frozenset({"memory_available_bytes", "swap_used_bytes", *TEMPERATURES})
_BY_DESIGN = _LABELS | {"seed"}  # may differ among the runs of one side

Differences = dict[str, Difference]
_Distinct = dict[str, list[Any]]  # by name, the different values that the runs of a side have


def changed_settings(baseline: Side, other: Side) -> Differences:
    """Return the settings in which two sides differ; for one sweep, the axes that it varied."""
    if in_rounds(baseline, other):
        return _differences(_distinct([baseline.values or {}]), _distinct([other.values or {}]))
    return _differences(_settings(baseline), _settings(other), without=_LABELS)


def _mixtures_in(side: Side) -> list[str]:
    """Return warnings on how the runs of one side differ among themselves."""
    warnings = []
    for what, found, without in (
        ("have different settings", _settings(side), _BY_DESIGN),
        ("ran in different environments", _environments(side), _OF_THE_MOMENT),
    ):
        mixed = [name for name, values in found.items() if len(values) > 1 and name not in without]
        if mixed:
            warnings.append(f"its runs {what}: {', '.join(mixed)}")
    return warnings


def as_sentence(differences: Mapping[str, Difference]) -> str:
    """Return differences on one line: `workers 0 -> 2, seed 0 -> 1`."""
    return ", ".join(
        f"{key} {as_text(values['baseline'])} -> {as_text(values['other'])}"
        for key, values in differences.items()
    )


def _settings(side: Side) -> _Distinct:
    specs = [each.run.spec if each.run else {} for each in side.runs]
    return _distinct([{**spec, **(side.values or {})} for spec in specs])


def _environments(side: Side) -> _Distinct:
    return _distinct([flat_environment(each.run.info) for each in side.runs if each.run])


def _distinct(records: Sequence[RecordedSpec | FlatEnvironment]) -> _Distinct:
    """Return the values of each name, sorted, so that the order of runs does not matter."""
    found: _Distinct = {name: [] for record in records for name in record}
    for name, values in found.items():
        for record in records:
            if record.get(name) not in values:
                values.append(record.get(name))
        values.sort(key=str)
    return found


def _differences(
    baseline: _Distinct, other: _Distinct, without: frozenset[str] = frozenset()
) -> Differences:
    if not baseline or not other:
        return {}  # unknown on one side: no difference
    found: Differences = {}
    for name in {**baseline, **other}:
        ours, theirs = baseline.get(name, [None]), other.get(name, [None])
        if name not in without and ours != theirs:
            first, second = (each[0] if len(each) == 1 else each for each in (ours, theirs))
            found[name] = {"baseline": first, "other": second}
    return found


# --- The sweep that would decide an open comparison


def _command_for(sides: Sequence[Side], rounds: int) -> str | None:
    """Return the command of a sweep of these sides; None where no single sweep compares them."""
    sweep, script = sides[0].sweep, ""
    flags: RecordedSpec
    over: dict[str, Sequence[Any]]
    if sweep is None:
        axes = {key for side in sides[1:] for key in changed_settings(sides[0], side)}
        runs = [each.run for side in sides for each in side.runs if each.run]
        if len(axes) != 1 or any(run.info.get("kind") != "run" for run in runs):
            return None
        over = {axis: [run.spec.get(axis) for run in runs] for axis in axes}
        fields = RunSpec.model_fields
        flags = {
            key: value
            for key, value in runs[0].spec.items()
            if key in fields and key not in ("name", "out") and value != fields[key].default
        }
    else:
        over = dict(sweep.info.get("over") or {})
        if not over or not all(in_rounds(sides[0], side) for side in sides):
            return None
        if len(over) == 1:
            over = {axis: [(side.values or {})[axis] for side in sides] for axis in over}
        flags = {**(sweep.info.get("spec") or {}), "mode": sweep.info.get("mode")}
        if recorded := sweep.info.get("script"):
            flags = {key: recorded.get(key) for key in ("name", "out", "max_steps")}
            script = f" -- {shlex.join(script_call(recorded))}"
    # A redacted secret, and None, cannot be given on a command line.
    if "***" in script or any(None in values for values in over.values()):
        return None
    named = {key: value for key, value in flags.items() if value is not None and key not in over}
    if named.get("mode") == "train":
        del named["mode"]
    axes_text = [
        f"--over {shlex.quote(axis + '=' + ','.join(dict.fromkeys(map(as_text, values))))}"
        for axis, values in over.items()
    ]
    words = ["stepscope sweep", as_flags(named), *axes_text, f"--repeats {rounds}"]
    return " ".join(filter(None, words)) + script


# --- Figures of one side


_UNSTEADY = {"drift": "drift", "too_noisy": "are noisy"}


def figures_of(side: Side) -> ComparedFigures:
    """Return medians over the runs of a side, None where no run has the figure, and warnings."""
    lost = 0
    for each in side.runs:
        events = [event["event"] for event in each.run.events] if each.run else []
        lost += bool(each.metrics.get("workers_lost")) or "workers_fallback" in events
    lost_workers = [f"{lost} of {len(side.runs)} runs lost loader workers"] if lost else []
    recorded = [each.figures for each in side.runs]
    phases = [p for each in side.runs if each.run and (p := each.run.summary.get("phases"))]
    rate = interval_of(side.rates) if side.runs else None
    return {
        "name": side.name,
        "runs": len(side.runs),
        "samples_per_s": None if rate is None else cast("RateInterval", rate._asdict()),
        "step_s": known_median(map(_step_s, side.runs)),
        "phases": {name: median([each[name]["share"] for each in phases]) for name in schema.PHASES}
        if phases
        else None,
        "peak_memory_bytes": known_median(each.get("peak_memory_bytes") for each in recorded),
        "test_accuracy": known_median(each.get("test_accuracy") for each in recorded),
        "warnings": [
            *side.left_out,
            *_mixtures_in(side),
            *lost_workers,
            *_warnings_on_steps(side),
        ],
    }


def _warnings_on_steps(side: Side) -> list[str]:
    """Warn of runs whose steps drift or are noisy, with one of them as an example."""
    found: dict[str, list[str]] = {}
    for run in (each.run for each in side.runs if each.run):
        for finding in warnings_on_steps(run):
            example = f"{run.path.name}: {finding.evidence[0]}"
            found.setdefault(_UNSTEADY[finding.name], []).append(example)
    return [
        f"steps {problem} in {len(examples)} of {len(side.runs)} runs ({examples[0]})"
        for problem, examples in found.items()
    ]


def _step_s(measured: MeasuredSide) -> float | None:
    """Return the mean step, as `sweep` does: a median hides bursts, and the throughput does not."""
    if (step_s := measured.metrics.get("step_s")) is not None or measured.run is None:
        return step_s
    return RunView(measured.run).mean_step_s or None


# --- Sides against the baseline


_USUAL_ROUNDS = 6


def compare(sides: Sequence[Side]) -> CompareAnswer:
    """Compare all sides with the first; `offer` runs the `rounds` that would decide what is open.

    `fail_if_slower` is left to the caller.
    """
    first, *others = sides
    baseline = figures_of(first)
    decided = family([contrast_with(first, other) for other in others])
    error = ERROR / len(others)
    compared = [
        _against(first, other, each, error) for other, each in zip(others, decided, strict=True)
    ]
    wanted = (_rounds_that_decide(each, runs_each(baseline, each)) for each in compared)
    rounds = max(filter(None, wanted), default=None)
    offer = None if rounds is None else _command_for(sides, rounds)
    return {
        "verdict": verdict_on_sides(sides, compared, offer),
        "baseline": baseline,
        "others": compared,
        "confidence": 1 - ERROR,
        "confidence_of_each": 1 - error,
        "rounds": rounds,
        "offer": offer,
        "fail_if_slower": None,
    }


def compare_settings(sweep: Sweep) -> CompareAnswer | None:
    """Compare the settings of a sweep with the first one; None if there is nothing to compare."""
    try:
        return compare(read_sides([str(sweep.path)]))
    except RequestError:  # one setting, or trials that cannot be compared
        return None


def _rounds_that_decide(compared: ComparedSide, runs: int) -> int | None:
    """Return at least how many rounds it takes: the noise is known only roughly."""
    if compared["verdict"] == CANNOT_TELL:
        return max(_USUAL_ROUNDS, runs + 1)
    needed = compared["rounds_needed_for_5_percent"]
    if compared["verdict"] != NO_DIFFERENCE or needed is None or excludes_slowdown(compared):
        return None
    return max(needed[0], runs + 1)


def _against(baseline: Side, other: Side, decided: Compared, error: float) -> ComparedSide:
    ratio, warnings = decided.ratio, _warnings_about_both(baseline, other)
    changed = changed_settings(baseline, other)
    environments = (_environments(baseline), _environments(other))
    differs = _differences(*environments, without=_OF_THE_MOMENT | changed.keys())
    if differs:
        warnings.append(f"ran in a different environment: {as_sentence(differs)}")
    figures = figures_of(other)
    return {
        **figures,
        "ratio": None if ratio is None else cast("RatioRecord", asdict(ratio)),
        "verdict": decided.verdict,
        "changed": changed,
        "environment_differs": differs,
        "warnings": [*warnings, *figures["warnings"]],
        "rounds_needed_for_5_percent": rounds_from(ratio, baseline, other, SOUGHT_SLOWDOWN, error),
    }


def _warnings_about_both(baseline: Side, other: Side) -> list[str]:
    warnings = []
    if on_other_nodes(baseline, other):
        warnings.append("ran on a different kind of node and is not compared")
    runs = [[each.run for each in side.runs if each.run] for side in (baseline, other)]
    if shared := {run.path for run in runs[0]} & {run.path for run in runs[1]}:
        named = ", ".join(sorted(path.name for path in shared))
        warnings.append(f"shares runs with the baseline, which hides a difference: {named}")
    bases = [{each.basis for each in side.runs} for side in (baseline, other)]
    if all(bases) and len(bases[0] | bases[1]) > 1:
        ours, theirs = (" and ".join(sorted(each)) for each in bases)
        warnings.append(f"its throughput is from {theirs}, the baseline's from {ours}")
    if (throttled := throttled_on_one_side(*runs)) is not None:
        warnings.append(throttled)
    if not in_rounds(baseline, other) and min(len(baseline.runs), len(other.runs)) > 1:
        warnings.append(
            "not run in rounds with the baseline: a machine that became slower in between looks "
            "like a slower setting"
        )
    return warnings
