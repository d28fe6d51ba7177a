"""One worker against the best number: which is faster, and where does the difference lie?

Work is not wait. `load_s` is what making a batch took, in whatever process; `data_s` is how long
the loop waited for it. More workers make each batch more slowly where they share the cores, and
the loop waits less all the same. What compute loses to them is in the other phases.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import Tried, compare, in_words, try_settings
from stepscope.hardware.host import usable_cpus
from stepscope.stats import FASTER, tie, verdict
from stepscope.units import format_duration

_FIGURES = ("samples_per_s", "step_s", "phases.data", "load_s", "load_cpu_s", "loader_start_s")


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Run one worker and more of them in rounds, and explain the difference."""
    return conclude(*try_settings(plan, folder, tools))


def conclude(tried: list[Tried], missing: list[dict[str, str]]) -> LabFinding:
    """Say whether more workers than one are faster, and show why.

    The best number is the smallest that is tied with the fastest.
    """
    rows = [each.row(*_FIGURES) for each in tried]
    known = {_workers(each): each for each in tried if each.completed}
    one, completed = known.pop("1", None), list(known.values())
    if one is None or not completed:
        answer = "No answer: one worker, or every other number of them, did not complete."
        return found(answer, False, rows, missing)
    best = _fastest(completed)
    ratio = compare(one, best)
    if verdict(ratio) == FASTER:
        best = next(each for each in completed if each is best or _tied(best, each))
        ratio = compare(one, best)
        answer = f"{_workers(best)} workers are {in_words(ratio, 'one')}"
        rows[tried.index(best)]["chosen"] = True
    else:
        answer = (
            "No number of workers was shown to be faster than one; the fastest, "
            f"{_workers(best)}, is {in_words(ratio, 'one')}"
        )
    return found(f"{answer}. {_evidence(one, best)}", True, rows, missing)


def _fastest(completed: list[Tried]) -> Tried:
    return max(completed, key=lambda each: each.median_of("samples_per_s") or 0.0)


def _tied(best: Tried, other: Tried) -> bool:
    return tie(compare(best, other)) == "tied"


def _workers(tried: Tried) -> str:
    return str(tried.setting.values["workers"])


def _evidence(one: Tried, other: Tried) -> str:
    """Lay side by side what the loop waited, what a batch took to make, and what compute took."""
    said = []
    for figure, words in (
        (_median("phases.data"), "waiting for a batch"),
        (_computing_s, "the rest of a step"),
        (_median("load_s"), "making a batch"),
        (_median("load_cpu_s"), "CPU time of that"),
        (_median("loader_start_s"), "starting the workers"),
    ):
        before, after = figure(one), figure(other)
        if before is not None and after is not None:
            said.append(f"{words} {format_duration(before)} and {format_duration(after)}")
    cpus = f"with 1 and with {_workers(other)} workers on {usable_cpus()} CPUs"
    return f"Evidence, {cpus}: {'; '.join(said)}."


def _median(name: str) -> Callable[[Tried], float | None]:
    return lambda tried: tried.median_of(name)


def _computing_s(tried: Tried) -> float | None:
    step_s, wait_s = tried.median_of("step_s"), tried.median_of("phases.data")
    return None if step_s is None or wait_s is None else step_s - wait_s
