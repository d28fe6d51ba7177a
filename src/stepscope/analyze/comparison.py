"""Which is faster, and how certain is that? Sides of a comparison against the first, the baseline.

Settings of one sweep are compared round by round, over the rounds that both have. All other sides
are compared as independent sets of runs, which cannot separate a difference of settings from a
machine that was slower that day. With several sides against one baseline, each interval is widened
so that all of them hold together with 95 % confidence.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stepscope.analyze.comparison_sides import NODE, MeasuredSide, Side, as_text, in_rounds
from stepscope.analyze.run_summary import TEMPERATURES, flat_environment
from stepscope.analyze.throttled_time import throttled_on_one_side
from stepscope.analyze.throughput import OF_A_SUMMARY, doubts_about, step_times
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import (
    ComparedFigures,
    Difference,
    FlatEnvironment,
    RateInterval,
    RecordedSpec,
)
from stepscope.settings.load_settings import as_flags
from stepscope.settings.run_settings import RunSpec
from stepscope.stats import (
    CANNOT_TELL,
    NO_DIFFERENCE,
    Ratio,
    confidence_of_each,
    interval_of,
    known_median,
    median,
    ratio_of_rounds,
    ratio_of_sets,
    rounds_needed,
    verdict,
)
from stepscope.stats.ratios import Verdict

# --- Differences in settings and machines


# Settings without an effect on the training.
_LABELS = frozenset({"name", "out", "require"})
_OF_THE_MOMENT = frozenset({"memory_available_bytes", "swap_used_bytes", *TEMPERATURES})
_BY_DESIGN = _LABELS | {"seed"}  # may differ among the runs of one side

Differences = dict[str, Difference]
_Distinct = dict[str, list[Any]]  # by name, the different values that the runs of a side have


def changed_settings(baseline: Side, other: Side) -> Differences:
    """Return the settings in which two sides differ, with their values on either side.

    For two settings of one sweep, those are the axes that the sweep varied.
    """
    if in_rounds(baseline, other):
        return _differences(_distinct([baseline.values or {}]), _distinct([other.values or {}]))
    return _differences(_settings(baseline), _settings(other), without=_LABELS)


def environment_differences(baseline: Side, other: Side) -> Differences:
    """Return the differences of the machines that no setting explains."""
    asked = changed_settings(baseline, other)
    both = (_environments(baseline), _environments(other))
    return _differences(*both, without=_OF_THE_MOMENT | asked.keys())


def mixtures_in(side: Side) -> list[str]:
    """Return sentences on how the runs of one side differ among themselves."""
    sentences = []
    for what, found, without in (
        ("were asked for with different", _settings(side), _BY_DESIGN),
        ("ran on different", _environments(side), _OF_THE_MOMENT),
    ):
        mixed = [name for name, values in found.items() if len(values) > 1 and name not in without]
        if mixed:
            sentences.append(f"its runs {what} {', '.join(mixed)}")
    return sentences


def as_sentence(differences: Differences) -> str:
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
            found[name] = {"baseline": _unwrapped(ours), "other": _unwrapped(theirs)}
    return found


def _unwrapped(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


# --- The sweep that would decide an open comparison


_OF_A_SCRIPT = ("name", "out", "max_steps")
_HIDDEN = "***"  # a redacted secret


def command_for(baseline: Side, others: Sequence[Side], rounds: int) -> str | None:
    """Return the command of a sweep of these sides with so many rounds; None if there is none.

    No sweep compares runs that differ in more than one setting, or that different programs made.
    """
    sides = [baseline, *others]
    if baseline.sweep is None:
        return _as_a_sweep(sides, rounds)
    if all(in_rounds(baseline, side) for side in others):
        return _again(baseline.sweep, sides, rounds)
    return None


def _as_a_sweep(sides: Sequence[Side], rounds: int) -> str | None:
    """Return a sweep over the one setting in which built-in trainings differ."""
    axes = {key for side in sides[1:] for key in changed_settings(sides[0], side)}
    runs = [each.run for side in sides for each in side.runs if each.run]
    if len(axes) != 1 or any(run.info.get("kind") != "run" for run in runs):
        return None
    (axis,) = axes
    values = [run.spec.get(axis) for run in runs]
    if None in values:  # None cannot be given as a flag
        return None
    fields = RunSpec.model_fields
    flags = {
        key: value
        for key, value in runs[0].spec.items()
        if key in fields and key not in ("name", "out", axis) and value != fields[key].default
    }
    return _written(flags, {axis: values}, rounds)


def _again(sweep: Sweep, sides: Sequence[Side], rounds: int) -> str | None:
    """Repeat a recorded sweep; with one axis, only the values that are compared."""
    info, over = sweep.info, sweep.info.get("over")
    if not over:
        return None
    if len(over) == 1:
        over = {axis: [(side.values or {})[axis] for side in sides] for axis in over}
    script = info.get("script")
    if script is None:
        mode = {} if info.get("mode") == "train" else {"mode": info.get("mode")}
        asked = {key: value for key, value in (info.get("spec") or {}).items() if key not in over}
        return _written({**asked, **mode}, over, rounds)
    words = [str(word) for word in script.get("arguments") or ()]
    if any(_HIDDEN in word for word in words):
        return None
    target = ["-m", script["module"]] if script.get("module") else [str(script["script"])]
    flags = {key: script.get(key) for key in _OF_A_SCRIPT}
    return f"{_written(flags, over, rounds)} -- {shlex.join([*target, *words])}"


def _written(flags: RecordedSpec, over: Mapping[str, Sequence[Any]], rounds: int) -> str:
    named = {key: value for key, value in flags.items() if value is not None}
    axes = [
        f"--over {shlex.quote(axis + '=' + ','.join(dict.fromkeys(map(as_text, values))))}"
        for axis, values in over.items()
    ]
    words = ["stepscope sweep", as_flags(named), *axes, f"--repeats {rounds}"]
    return " ".join(word for word in words if word)


# --- Figures of one side


def figures_of(side: Side) -> ComparedFigures:
    """Return medians over the runs of a side, None where no run has the figure, and warnings."""
    lost = sum(map(_has_lost_workers, side.runs))
    lost_workers = [f"{lost} of {len(side.runs)} runs lost loader workers"] if lost else []
    recorded = [each.figures for each in side.runs]
    rate = interval_of(side.rates) if side.runs else None
    return {
        "name": side.name,
        "runs": len(side.runs),
        "samples_per_s": None if rate is None else cast("RateInterval", rate._asdict()),
        "step_s": known_median(map(_step_s, side.runs)),
        "phases": _phases(side),
        "peak_memory_bytes": known_median(each.get("peak_memory_bytes") for each in recorded),
        "test_accuracy": known_median(each.get("test_accuracy") for each in recorded),
        "warnings": [*side.left_out, *mixtures_in(side), *lost_workers, *_doubts(side)],
    }


def _has_lost_workers(measured: MeasuredSide) -> bool:
    """Return whether a run continued with fewer loader workers than configured."""
    recorded = measured.metrics.get("workers_lost")
    if recorded is not None or measured.run is None:
        return bool(recorded)
    return any(event["event"] == "workers_fallback" for event in measured.run.events)


def _doubts(side: Side) -> list[str]:
    """Warn of runs whose steps drift or are noisy, with one of them as an example."""
    found: dict[str, list[str]] = {}
    for run in (each.run for each in side.runs if each.run):
        for doubt, how in doubts_about(run).items():
            found.setdefault(doubt, []).append(f"{run.path.name}: {how}")
    return [
        f"steps {doubt} in {len(examples)} of {len(side.runs)} runs ({examples[0]})"
        for doubt, examples in found.items()
    ]


def _step_s(measured: MeasuredSide) -> float | None:
    times = step_times(measured.run) if measured.run else []
    return median(times) if times else measured.metrics.get("step_s")


def _phases(side: Side) -> dict[str, float] | None:
    seen = [each.run.summary.get("phases") for each in side.runs if each.run]
    known = [phases for phases in seen if phases]
    if not known:
        return None
    return {phase: median([phases[phase]["share"] for phases in known]) for phase in schema.PHASES}


CONFIDENCE = 0.95  # of all statements of one comparison together
SOUGHT_SLOWDOWN = 0.05
_USUAL_ROUNDS = 6


@dataclass(frozen=True)
class Against:
    """One side against the baseline; `runs_each` is the number of runs of both."""

    figures: ComparedFigures
    ratio: Ratio | None
    verdict: Verdict
    changed: Differences
    environment_differs: Differences
    runs_each: int
    rounds_needed_for_5_percent: int | None
    warnings: list[str]


@dataclass(frozen=True)
class Comparison:
    """All sides against the baseline.

    For an open question, `rounds` is the number of rounds that would decide it, and `offer` the
    command that runs them, if there is one.
    """

    baseline: ComparedFigures
    others: list[Against]
    confidence_of_each: float
    rounds: int | None
    offer: str | None


def compare(sides: Sequence[Side]) -> Comparison:
    """Compare all sides with the first."""
    baseline, *others = sides
    confidence = confidence_of_each(len(others), CONFIDENCE)
    compared = [_against(baseline, other, confidence) for other in others]
    rounds = max(filter(None, map(_rounds_that_would_tell, compared)), default=None)
    offer = None if rounds is None else command_for(baseline, others, rounds)
    return Comparison(figures_of(baseline), compared, confidence, rounds, offer)


def _rounds_that_would_tell(compared: Against) -> int | None:
    more = compared.runs_each + 1
    if compared.verdict == CANNOT_TELL:
        return max(_USUAL_ROUNDS, more)
    needed = compared.rounds_needed_for_5_percent
    if compared.verdict != NO_DIFFERENCE or needed is None or slowdown_is_excluded(compared):
        return None
    return max(needed, more)


def slowdown_is_excluded(compared: Against) -> bool:
    """Return whether the interval excludes a slowdown of the size that is sought."""
    return slower_than(compared, SOUGHT_SLOWDOWN) is False


def slower_than(compared: Against, most_slowdown: float) -> bool | None:
    """Return whether a side certainly loses more than this share of the baseline's throughput.

    True: the whole interval is below. False: the whole interval is not. None: undecided.
    """
    ratio = compared.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    if ratio.high < 1 - most_slowdown:
        return True
    return False if ratio.low >= 1 - most_slowdown else None


def _against(baseline: Side, other: Side, confidence: float) -> Against:
    ratio = _ratio(baseline, other, confidence)
    noise = ratio.noise if ratio else None
    runs_each = ratio.rounds if ratio else None
    differs = environment_differences(baseline, other)
    warnings = _warnings_about_both(baseline, other)
    if differs:
        warnings.append(f"ran in another environment: {as_sentence(differs)}")
    return Against(
        figures_of(other),
        ratio,
        verdict(ratio),
        changed_settings(baseline, other),
        differs,
        min(len(baseline.runs), len(other.runs)) if runs_each is None else runs_each,
        None if noise is None else rounds_needed(noise, SOUGHT_SLOWDOWN, confidence=confidence),
        warnings,
    )


def _ratio(baseline: Side, other: Side, confidence: float) -> Ratio | None:
    if _on_other_nodes(baseline, other):
        return None
    if not in_rounds(baseline, other):
        return ratio_of_sets(baseline.rates, other.rates, confidence)
    ours, theirs = baseline.rate_by_round, other.rate_by_round
    shared = sorted(ours.keys() & theirs.keys())
    return ratio_of_rounds(
        [ours[each] for each in shared], [theirs[each] for each in shared], confidence
    )


def _on_other_nodes(baseline: Side, other: Side) -> bool:
    """Return whether two settings of a sweep ran on nodes of different kinds."""
    kinds = [(side.values or {}).get(NODE) for side in (baseline, other)]
    return in_rounds(baseline, other) and kinds[0] != kinds[1]


def _warnings_about_both(baseline: Side, other: Side) -> list[str]:
    warnings = []
    if _on_other_nodes(baseline, other):
        warnings.append("was made on another kind of node, so it is not compared")
    paths = [{each.run.path for each in side.runs if each.run} for side in (baseline, other)]
    if paths[0] & paths[1]:
        named = ", ".join(sorted(path.name for path in paths[0] & paths[1]))
        warnings.append(f"shares runs with the baseline, which hides a difference: {named}")
    bases = [{each.basis for each in side.runs} - {OF_A_SUMMARY} for side in (baseline, other)]
    if all(bases) and len(bases[0] | bases[1]) > 1:
        by_side = [" and ".join(sorted(each)) for each in bases]
        warnings.append(f"throughput is of {by_side[1]}, the baseline's of {by_side[0]}")
    runs = [[each.run for each in side.runs if each.run] for side in (baseline, other)]
    if (throttled := throttled_on_one_side(*runs)) is not None:
        warnings.append(throttled)
    if not in_rounds(baseline, other) and min(len(baseline.runs), len(other.runs)) > 1:
        warnings.append(
            "was not run in rounds with the baseline: a machine that was slower meanwhile looks "
            "like a difference"
        )
    return warnings
