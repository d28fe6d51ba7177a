"""Why does it use so much, which part of the code frees memory, and when?

Three looks at the same training. The bill: a short run, whose forecast stands beside its measured
peak. The phases: a few steps in a process that reads its own size at the end of each phase, and
the most that it was meanwhile. The ways to hold less: each tried for some steps, in turns with the
training as it is, so that a machine that drifts does so for both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import Any

from stepscope.errors import AnswerIsNo, OutOfMemoryError, RequestError, StepscopeError
from stepscope.experiments import preflight, single
from stepscope.experiments.labs import Finding, Tools
from stepscope.experiments.labs.freed import what_frees
from stepscope.experiments.labs.phases import by_phase, peak_phase
from stepscope.experiments.labs.trial import try_steps
from stepscope.experiments.labs.ways import Way, ways_for
from stepscope.experiments.labs.weigh import cost, saving
from stepscope.records.reader import load_run
from stepscope.spec import RunSpec
from stepscope.units import format_bytes

DEFAULTS = {"batch_size": 128, "device": "cpu"}

ROUNDS = 3
STEPS = 8
# In the first two steps torch still loads what it needs, and the optimiser makes its state.
_UNTIMED = 2


def investigate(
    spec: RunSpec, tools: Tools, *, rounds: int = ROUNDS, ways: Iterable[Way] | None = None
) -> Finding:
    """Make the bill, the phases and the trials of what would save memory."""
    if not spec.device.startswith("cpu"):
        raise RequestError(f"lab memory looks at the CPU's memory, found device {spec.device}.")
    preflight.check(spec)
    steps = min(spec.max_steps or STEPS, STEPS)
    tools.say("a short run, for the bill and the peak")
    bill = _bill_of_a_run(spec, steps, tools)
    tools.say("the same steps, phase by phase")
    epochs = 2 if spec.workers else 1
    seen = try_steps(spec, {"phases": True, "steps": steps, "epochs": epochs})
    remedies = _try_ways(
        spec, list(ways_for(spec) if ways is None else ways), steps, epochs, rounds, tools
    )
    phases = by_phase(seen["phases"])
    figures = {
        "spec": spec.model_dump(mode="json"),
        "bill": bill,
        "phases": phases,
        "peak_phase": peak_phase(seen["phases"]),
        "readings": seen["phases"],
        "freed": what_frees(bill, spec),
        "remedies": remedies,
    }
    return Finding(_answer(bill, figures["peak_phase"], remedies), figures=figures)


def _bill_of_a_run(spec: RunSpec, steps: int, tools: Tools) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        short = {"epochs": 1, "max_steps": steps, "layers": 0, "out": out}
        path, outcome = single.start(spec.model_copy(update=short), tools.onlooker, tools.summarize)
        summary = load_run(path).summary
    if outcome.exit_code:
        kind = OutOfMemoryError if outcome.exit_code == 4 else StepscopeError
        raise kind(f"the short run ended without a bill: {outcome.reason}")
    bill: dict[str, Any] | None = summary["memory_bill"]
    if bill is None:
        raise AnswerIsNo(f"no bill: {summary['absent']['memory_bill']}.")
    return bill


def _try_ways(
    spec: RunSpec, ways: list[Way], steps: int, epochs: int, rounds: int, tools: Tools
) -> list[dict[str, Any]]:
    """Try the training as it is and every way, in turns; the largest saving comes first."""
    as_it_is = Way("as it is", "")
    trials: dict[str, list[dict[str, Any]]] = {way.name: [] for way in [as_it_is, *ways]}
    refused: dict[str, str] = {}
    for turn in range(1, rounds + 1):
        for way in [as_it_is, *ways]:
            if way.name in refused:
                continue
            tools.say(f"trying, {turn} of {rounds}: {way.name}")
            try:
                trials[way.name].append(_try_way(spec, way, steps, epochs))
            except RequestError as error:
                if way is as_it_is:
                    raise
                refused[way.name] = str(error)
    tried = [_weigh(way, trials[as_it_is.name], trials[way.name], refused) for way in ways]
    return sorted(tried, key=lambda each: (not each["applies"], -(each["saved_bytes"] or 0)))


def _try_way(spec: RunSpec, way: Way, steps: int, epochs: int) -> dict[str, Any]:
    # The samples of these steps and no more: the whole data set is read for the bill, and would
    # only take time here.
    few = steps * spec.batch_size * spec.accumulate
    changed = {"samples": min(spec.samples or few, few), **way.settings}
    options = {"steps": steps, "epochs": epochs, **way.options}
    return try_steps(spec.model_copy(update=changed), options, way.environment)


def _weigh(
    way: Way,
    without: list[dict[str, Any]],
    tried: list[dict[str, Any]],
    refused: dict[str, str],
) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": way.name,
        "how": way.how,
        "applies": False,
        "reason": refused.get(way.name),
        "saved_bytes": None,
    }
    if way.name in refused:
        return known
    before, after = ([trial["peak_bytes"] for trial in each] for each in (without, tried))
    if None in before or None in after:
        return {**known, "reason": "this system keeps no high-water mark that can begin anew"}
    saved, slower = saving(before, after), cost(_timed(without), _timed(tried))
    return {
        **known,
        "applies": True,
        "saved_bytes": saved.saved_bytes,
        "spread_bytes": saved.spread_bytes,
        "differs": saved.differs,
        "step_time_ratio": slower.ratio,
        "step_time_spread": slower.spread,
        "step_time_differs": slower.differs,
        "same_losses": all(trial["losses"] == without[0]["losses"] for trial in tried),
        "without_bytes": before,
        "with_bytes": after,
    }


def _timed(trials: list[dict[str, Any]]) -> list[list[float]]:
    return [trial["step_s"][_UNTIMED:] or trial["step_s"] for trial in trials]


def _answer(bill: dict[str, Any], phase: str | None, remedies: list[dict[str, Any]]) -> str:
    items = sorted(bill["items"].items(), key=lambda item: -int(item[1]["bytes"]))[:3]
    largest = ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(item['bytes'])}" for name, item in items
    )
    peak = bill["peak_memory_bytes"]
    said = [
        f"The training took {format_bytes(peak)} at its peak; most of it: {largest}."
        if peak
        else f"By forecast the training takes {format_bytes(bill['total_bytes'])}: {largest}."
    ]
    if phase is not None:
        said.append(f"The process was largest in: {phase}.")
    best = next((each for each in remedies if each["applies"] and each["differs"]), None)
    if best is None or best["saved_bytes"] <= 0:
        said.append("Nothing that was tried saves more than trials differ by.")
    else:
        slower = f"{best['step_time_ratio']:.2f} times" if best["step_time_differs"] else "about"
        said.append(
            f"What saves most: {best['how']}, {format_bytes(best['saved_bytes'])}, "
            f"at {slower} the time of a step."
        )
    return " ".join(said)
