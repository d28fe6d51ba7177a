"""The kinds of answer that a sheet can name: what its trials show, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepscope.experiments.labs.lab_trials import (
    LabRow,
    SettingTrials,
    SheetTrials,
    compare,
    in_words,
)
from stepscope.hardware.host import usable_cpus
from stepscope.stats import FASTER, known_mean, median, tie, verdict
from stepscope.units import format_bytes, format_count, format_duration, format_share


@dataclass(frozen=True)
class Conclusion:
    """An answer, and what it adds to the table: the chosen setting, a last row."""

    answer: str
    holds: bool = True
    chosen: SettingTrials | None = None
    last_row: LabRow | None = None


Known = tuple[SettingTrials, float]

_NOTHING_COMPLETED = Conclusion("No answer: no training completed.", holds=False)


def best_by_figure(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Name the most accurate, the fastest and the smallest network."""
    most = _best(trials.settings, "test_accuracy")
    fastest = _best(trials.settings, "samples_per_s")
    least = _best(trials.settings, "peak_memory_bytes", min)
    if most is None or fastest is None:
        return _NOTHING_COMPLETED
    answer = (
        f"After {format_count(trials.plan.spec.epochs, 'epoch')} {_value(most[0], 'model')} is the "
        f"most accurate ({format_share(most[1])} of the test samples), "
        f"{_value(fastest[0], 'model')} the fastest ({fastest[1]:,.0f} samples/s)"
    )
    if least is not None:
        peak = format_bytes(least[1])
        answer += f", {_value(least[0], 'model')} the smallest ({peak} at its peak)"
    if trials.plan.repeats == 1:
        answer += ". One run each: those that lie close cannot be told apart"
    return Conclusion(f"{answer}.")


_RATES = {"shared": "at the shared rate", "own": "each at its own rate"}


def best_by_rate(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Name the optimiser that is ahead, at a shared learning rate and at its own."""
    said = []
    for rate in dict.fromkeys(each.setting.shown["rate"] for each in trials.settings):
        those = [each for each in trials.settings if each.setting.shown["rate"] == rate]
        ahead = _best(those, "train_accuracy")
        if ahead is not None:
            best, accuracy = ahead
            said.append(
                f"{_RATES.get(rate, rate)} {best.setting.shown['optimiser']} is ahead with "
                f"{format_share(accuracy)} (lr {_value(best, 'lr')})"
            )
    if not said:
        return _NOTHING_COMPLETED
    times = [each.median_of("epoch_s") for each in trials.settings]
    known = [time for time in times if time is not None]
    answer = (
        f"Training accuracy after {format_count(trials.plan.spec.epochs, 'epoch')}: "
        f"{'; '.join(said)}. An epoch took {format_duration(min(known))} to "
        f"{format_duration(max(known))}."
    )
    if trials.plan.repeats == 1:
        answer += " One run each: which of two that lie close is ahead cannot be told."
    return Conclusion(answer)


def ratio_to_first(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Compare every device with the first one."""
    known = [each for each in trials.settings if each.completed]
    if not known:
        return _NOTHING_COMPLETED
    first, *others = known
    name = _value(first, "device")
    if others:
        said = [
            f"{_value(each, 'device')} is {in_words(compare(first, each), name)}" for each in others
        ]
        return Conclusion(f"{'; '.join(said)}.")
    lacking = ", ".join(each["name"] for each in trials.missing)
    wall_s = first.median_of("wall_s")
    took = "" if wall_s is None else f" It took {format_duration(wall_s)}."
    return Conclusion(
        f"Only {name} could be run, so there is nothing to compare; missing: {lacking}.{took}"
    )


def with_and_without(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Compare a network with its batch-norm layers and without."""
    if len(rows) < 2 or not all(each.completed for each in trials.settings):
        return Conclusion("No answer: one of the two did not complete.", holds=False)
    parameters = [int(str(row["parameters"])) for row in rows]
    steps = [_shown(each.median_of("step_s"), format_duration) for each in trials.settings]
    accuracies = [
        _shown(each.median_of("train_accuracy"), format_share) for each in trials.settings
    ]
    ratio = in_words(compare(*trials.settings[:2]), "with it")
    return Conclusion(
        f"Without batch norm the network has {parameters[0] - parameters[1]:,} parameters fewer "
        f"({parameters[1]:,} of {parameters[0]:,}) and is {ratio}. "
        f"Step with and without: {' and '.join(steps)}; training accuracy after "
        f"{format_count(trials.plan.spec.epochs, 'epoch')}: {' and '.join(accuracies)}."
    )


_CHANCE = 0.1  # ten classes
_SMALL = 32  # the published claim is about batches up to this


def small_and_large_batches(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Check the published claim about small batches, and say what the smallest and largest cost."""
    known = [each for each in trials.settings if each.median_of("test_accuracy") is not None]
    if not known:
        return _NOTHING_COMPLETED
    said = [_claim(known, trials.plan.spec.epochs)]
    for words, figure, show in (
        ("a step takes", "step_s", format_duration),
        ("the peak of memory is", "peak_memory_bytes", format_bytes),
    ):
        ends = [
            f"{show(value)} at batch {_value(each, 'batch_size')}"
            for each in (known[0], known[-1])
            if (value := each.median_of(figure)) is not None
        ]
        said.append(f"{words} {' and '.join(ends)}")
    return Conclusion("; ".join(said) + ".")


def _claim(known: Sequence[SettingTrials], epochs: int) -> str:
    """Say whether small batches lead to less training, as was published."""
    small = [each for each in known if int(_value(each, "batch_size")) <= _SMALL]
    large = [each for each in known if each not in small]
    sides = _best(small, "test_accuracy"), _best(large, "test_accuracy")
    if sides[0] is None or sides[1] is None:
        return "Batches on both sides of 32 are needed to check what was published"
    learned = "do" if sides[0][1] > 2 * _CHANCE else "do not yet"
    reached = [
        f"{format_share(accuracy)} test accuracy at batch {_value(each, 'batch_size')} "
        f"(lr {float(_value(each, 'lr')):g}, {each.setting.shown['rate']})"
        for each, accuracy in (sides[0], sides[1])
    ]
    return (
        f"Batches of {_SMALL} and less {learned} lead to training in "
        f"{format_count(epochs, 'epoch')}: {reached[0]}, against {reached[1]}"
    )


def one_worker_and_more(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Say whether more workers than one are faster, and show why.

    The best number is the smallest that is tied with the fastest. Work is not wait: `load_s` is
    what making a batch took, in whatever process; `data_s` is how long the loop waited for it. More
    workers make each batch more slowly where they share the cores, and the loop waits less all the
    same. What compute loses to them is in the other phases.
    """
    known = {_value(each, "workers"): each for each in trials.settings if each.completed}
    one, completed = known.pop("1", None), list(known.values())
    if one is None or not completed:
        answer = "No answer: one worker, or every other number of them, did not complete."
        return Conclusion(answer, holds=False)
    best = max(completed, key=lambda each: each.median_of("samples_per_s") or 0.0)
    ratio = compare(one, best)
    if verdict(ratio) != FASTER:
        answer = (
            "No number of workers was shown to be faster than one; the fastest, "
            f"{_value(best, 'workers')}, is {in_words(ratio, 'one')}"
        )
        return Conclusion(f"{answer}. {_evidence(one, best)}")
    fastest = best
    best = next(
        each for each in completed if each is fastest or tie(compare(fastest, each)) == "tied"
    )
    answer = f"{_value(best, 'workers')} workers are {in_words(compare(one, best), 'one')}"
    return Conclusion(f"{answer}. {_evidence(one, best)}", chosen=best)


def _evidence(one: SettingTrials, other: SettingTrials) -> str:
    """Lay side by side what the loop waited, what a batch took to make, and what compute took."""

    def computing_s(trials: SettingTrials) -> float | None:
        step_s, wait_s = trials.median_of("step_s"), trials.median_of("phases.data")
        return None if step_s is None or wait_s is None else step_s - wait_s

    def median_of(name: str) -> Callable[[SettingTrials], float | None]:
        return lambda trials: trials.median_of(name)

    said = []
    for figure, words in (
        (median_of("phases.data"), "waiting for a batch"),
        (computing_s, "the rest of a step"),
        (median_of("load_s"), "making a batch"),
        (median_of("load_cpu_s"), "CPU time of that"),
        (median_of("loader_start_s"), "starting the workers"),
    ):
        before, after = figure(one), figure(other)
        if before is not None and after is not None:
            said.append(f"{words} {format_duration(before)} and {format_duration(after)}")
    cpus = f"with 1 and with {_value(other, 'workers')} workers on {usable_cpus()} CPUs"
    return f"Evidence, {cpus}: {'; '.join(said)}."


def epoch_times(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Say how long an epoch takes and how much of it is loading; the total has its own clock."""
    if not rows:
        return _no_epoch(trials)
    total_s, loading_s, other_s = (
        _column(rows, name) for name in ("total_s", "loading_s", "other_s")
    )
    later_s = total_s[1:] or total_s
    share = sum(loading_s[1:] or loading_s) / sum(later_s)
    return Conclusion(
        f"An epoch takes {format_duration(median(later_s))} (median without the first, which took "
        f"{format_duration(total_s[0])}); {format_share(share)} of that is loading. "
        f"All {len(rows)} epochs: {format_duration(sum(total_s))} by a clock of its own, "
        f"{format_duration(sum(loading_s))} of it loading; loading and training leave "
        f"{format_duration(sum(other_s))} of it out."
    )


_MEANS = ("loading_s", "training_s", "other_s", "total_s", "loss", "train_accuracy")


def mean_of_later_epochs(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Take the mean of all epochs but the first, which is the last row of the table."""
    if not rows:
        return _no_epoch(trials)
    later, spec = rows[1:] or rows, trials.plan.spec
    means = {name: known_mean(_column(later, name)) for name in _MEANS}
    total_s, loading_s = means["total_s"] or 0.0, means["loading_s"] or 0.0
    mean: LabRow = {"epoch": f"mean of {later[0]['epoch']} to {later[-1]['epoch']}", **means}
    return Conclusion(
        f"An epoch takes {format_duration(total_s)} (mean of {len(later)} without the "
        f"first, which took {format_duration(_column(rows, 'total_s')[0])}), "
        f"{format_share(loading_s / total_s)} of it loading, with {spec.workers} workers, "
        f"prefetch {spec.prefetch} and batches of {spec.batch_size}.",
        last_row=mean,
    )


def _best(
    tried: Sequence[SettingTrials], figure: str, choose: Callable[..., Known] = max
) -> Known | None:
    """Return the setting with the largest figure, or the smallest, and that figure."""
    known = [(each, value) for each in tried if (value := each.median_of(figure)) is not None]
    return choose(known, key=lambda pair: pair[1]) if known else None


def _no_epoch(trials: SheetTrials) -> Conclusion:
    tried = trials.settings
    reason = tried[0].status if tried else trials.missing[0]["reason"]
    return Conclusion(f"No answer: the training did not complete ({reason}).", holds=False)


def _column(rows: Sequence[LabRow], name: str) -> list[float]:
    return [value for row in rows if isinstance(value := row[name], int | float)]


def _value(trials: SettingTrials, name: str) -> str:
    return str(trials.setting.values[name])


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return "unknown" if value is None else show(value)


Answer = Callable[[SheetTrials, Sequence[LabRow]], Conclusion]
ANSWERS: Mapping[str, Answer] = {
    "best_by_figure": best_by_figure,
    "best_by_rate": best_by_rate,
    "epoch_times": epoch_times,
    "mean_of_later_epochs": mean_of_later_epochs,
    "one_worker_and_more": one_worker_and_more,
    "ratio_to_first": ratio_to_first,
    "small_and_large_batches": small_and_large_batches,
    "with_and_without": with_and_without,
}
