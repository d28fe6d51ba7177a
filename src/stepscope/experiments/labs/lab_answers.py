"""The conclusions that a sheet can name, each drawn from the trials of its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepscope.experiments.labs.lab_trials import (
    LabRow,
    SettingTrials,
    SheetTrials,
    compare,
    describe_ratio,
)
from stepscope.hardware.host import usable_cpus
from stepscope.stats.decide import leaders, race
from stepscope.stats.intervals import known_mean, median
from stepscope.units import format_bytes, format_count, format_duration, format_known, format_share


@dataclass(frozen=True)
class Conclusion:
    """An answer, and what it adds to the table: the chosen setting, a last row."""

    answer: str
    holds: bool = True
    chosen: SettingTrials | None = None
    last_row: LabRow | None = None


Answer = Callable[[SheetTrials, Sequence[LabRow]], Conclusion]
Known = tuple[SettingTrials, float]

NOTHING_COMPLETED = "No answer: no training completed."
ONE_RUN = "One run each: too few to tell differences from noise"
_MOST_NAMED = 3


def best_by_figure(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Name the most accurate, the fastest and the smallest network."""
    best = [
        _best_network(trials, "test_accuracy", ("more accurate", "the most accurate"), _on_tests),
        _best_network(
            trials, "samples_per_s", ("faster", "the fastest"), "{:,.0f} samples/s".format
        ),
        _best_network(
            trials, "peak_memory_bytes", ("smaller", "the smallest"), _at_peak, lowest=True
        ),
    ]
    if best[0] is None or best[1] is None:
        return Conclusion(NOTHING_COMPLETED, holds=False)
    answer = "; ".join(filter(None, best))
    return Conclusion(f"After {_epochs(trials)} {answer}. {_one_seed(trials)}{_caveat(trials)}")


def _best_network(
    trials: SheetTrials,
    figure: str,
    words: tuple[str, str],
    show: Callable[[float], str],
    *,
    lowest: bool = False,
) -> str | None:
    """Say which network is the best by a figure, or than which it is not shown to be better."""
    found = _leaders(trials.settings, figure, lowest=lowest)
    if not found:
        return None
    best, *others = found
    name, value = _value(best, "model"), show(best.median_of(figure) or 0.0)
    comparative, superlative = words
    if not others:
        return f"{name} is {superlative} ({value})"
    return f"{name} ({value}) is not shown to be {comparative} than {_listed(others, 'model')}"


def _listed(others: Sequence[SettingTrials], name: str) -> str:
    """Name up to three settings, or count them."""
    if len(others) > _MOST_NAMED:
        return f"{len(others)} others"
    return " and ".join(str({**each.setting.values, **each.setting.shown}[name]) for each in others)


def _on_tests(share: float) -> str:
    return f"{format_share(share)} on the test set"


def _at_peak(size_bytes: float) -> str:
    return f"{format_bytes(size_bytes)} at peak"


_RATES = {"shared": "with a shared learning rate", "own": "with its own learning rate"}


def best_by_rate(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Name the best optimiser, at a shared learning rate and at its own."""
    found = []
    for rate in dict.fromkeys(each.setting.shown["rate"] for each in trials.settings):
        those = [each for each in trials.settings if each.setting.shown["rate"] == rate]
        if ranked := _leaders(those, "train_accuracy"):
            best, *others = ranked
            accuracy = format_share(best.median_of("train_accuracy") or 0.0)
            tied = f", not shown to differ from {_listed(others, 'optimiser')}" if others else ""
            found.append(
                f"for {best.setting.shown['optimiser']} {_RATES.get(rate, rate)} "
                f"({accuracy}, lr {_value(best, 'lr')}{tied})"
            )
    if not found:
        return Conclusion(NOTHING_COMPLETED, holds=False)
    times = [time for each in trials.settings for time in each.values_of("epoch_s")]
    return Conclusion(
        f"Training accuracy after {_epochs(trials)} is highest {' and '.join(found)}. "
        f"An epoch took {format_duration(min(times))} to {format_duration(max(times))}. "
        f"{_one_seed(trials)}{_caveat(trials)}"
    )


def ratio_to_first(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Compare every device with the first one."""
    known = [each for each in trials.settings if each.completed]
    if not known:
        return Conclusion(NOTHING_COMPLETED, holds=False)
    first, *others = known
    name = _value(first, "device")
    if others:
        ratios = (
            f"{_value(each, 'device')} is {describe_ratio(compared, name)}"
            for each, compared in zip(others, compare(first, others), strict=True)
        )
        return Conclusion(f"{'; '.join(ratios)}.")
    lacking = ", ".join(each["name"] for each in trials.missing)
    took = format_known(first.median_of("wall_s"), format_duration)
    return Conclusion(f"Nothing to compare: only {name} could run, in {took}. Missing: {lacking}.")


def with_and_without(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Compare a network with and without its batch-norm layers."""
    if len(rows) < 2 or not all(each.completed for each in trials.settings):
        return Conclusion("No answer: one of the two trainings did not complete.", holds=False)
    with_norm, without = (int(str(row["parameters"])) for row in rows)
    steps, accuracies = (
        " instead of ".join(
            format_known(each.median_of(figure), show) for each in reversed(trials.settings)
        )
        for figure, show in (("step_s", format_duration), ("train_accuracy", format_share))
    )
    first, second = trials.settings[:2]
    (compared,) = compare(first, [second])
    return Conclusion(
        f"Without batch norm the network is {describe_ratio(compared, 'with it')}. "
        f"A step takes {steps}, and the training accuracy after {_epochs(trials)} is {accuracies}. "
        f"The network has {without:,} parameters, {with_norm - without:,} fewer."
    )


_CHANCE = 0.1  # ten classes
_SMALL = 32  # the published claim is about batches up to this size


def small_and_large_batches(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Check the published claim about small batches; report what the smallest and largest cost."""
    known = [each for each in trials.settings if each.median_of("test_accuracy") is not None]
    if not known:
        return Conclusion(NOTHING_COMPLETED, holds=False)
    small = [each for each in known if int(_value(each, "batch_size")) <= _SMALL]
    sides = [
        _best(side, "test_accuracy")
        for side in (small, [each for each in known if each not in small])
    ]
    reached = [
        f"{format_share(best[1])} test accuracy at batch {_value(best[0], 'batch_size')} "
        f"(lr {float(_value(best[0], 'lr')):g}, {best[0].setting.shown['rate']})"
        for best in sides
        if best is not None
    ]
    sentences = [f"The published claim needs batches on both sides of {_SMALL}"]
    if sides[0] is not None and sides[1] is not None:
        learned = "do" if sides[0][1] > 2 * _CHANCE else "do not"
        sentences = [
            f"Batches of up to {_SMALL} {learned} train in {_epochs(trials)}: "
            f"{reached[0]}, compared with {reached[1]}"
        ]
    for subject, figure, show in (
        ("A step takes", "step_s", format_duration),
        ("Peak memory is", "peak_memory_bytes", format_bytes),
    ):
        ends = [
            f"{show(value)} at batch {_value(each, 'batch_size')}"
            for each in (known[0], known[-1])
            if (value := each.median_of(figure)) is not None
        ]
        sentences.append(f"{subject} {' and '.join(ends)}")
    return Conclusion(". ".join(sentences) + ".")


def one_worker_and_more(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Say whether several workers are faster than one, and why.

    The best number is the smallest that is shown to lose at most 3 % of the fastest's throughput.
    """
    known = {_value(each, "workers"): each for each in trials.settings if each.completed}
    one = known.pop("1", None)
    if one is None or not known:
        answer = "No answer: it needs one worker and another number of workers to complete."
        return Conclusion(answer, holds=False)
    ascending = sorted([("1", one), *known.items()], key=lambda pair: int(pair[0]))
    raced = race({number: each.in_rounds("samples_per_s") for number, each in ascending}, "1")
    ratios = dict(zip(known, compare(one, [*known.values()]), strict=True))
    if raced is not None and raced.pick != "1":
        number, chosen = raced.pick, known[raced.pick]
        advice = f"Use {number} workers: {describe_ratio(ratios[number], 'one')}"
        if not raced.shown:
            advice += ". Whether another number is better still takes more rounds"
    else:
        number, chosen = max(known, key=lambda n: known[n].median_of("samples_per_s") or 0.0), None
        advice = (
            f"Keep one worker: no other number is shown to be faster; {number} workers are "
            f"{describe_ratio(ratios[number], 'one')}"
        )
    best = known[number]
    changes = []
    for subject, figure in (
        ("the loop waits {} per batch", "phases.data"),
        ("a whole step takes {}", "step_s"),
        ("a worker needs {} per batch", "load_s"),
    ):
        before, after = one.median_of(figure), best.median_of(figure)
        if before is not None and after is not None:
            times = f"{format_duration(after)} instead of {format_duration(before)}"
            changes.append(subject.format(times))
    evidence = f" With {number} workers on {usable_cpus()} CPUs {', '.join(changes)}."
    return Conclusion(f"{advice}.{evidence if changes else ''}", chosen=chosen)


def epoch_times(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Report how long an epoch takes and how much of it is loading; the total has its own clock."""
    if not rows:
        return _no_epoch(trials)
    total_s, loading_s, other_s = (
        _column(rows, name) for name in ("total_s", "loading_s", "other_s")
    )
    later_s = total_s[1:] or total_s
    share = sum(loading_s[1:] or loading_s) / sum(later_s)
    return Conclusion(
        f"An epoch takes {format_duration(median(later_s))} (median without the first, "
        f"{format_duration(total_s[0])}), {format_share(share)} of it loading. "
        f"All {len(rows)} epochs took {format_duration(sum(total_s))}, of which "
        f"{format_duration(sum(other_s))} was neither loading nor training."
    )


_MEANS = ("loading_s", "training_s", "other_s", "total_s", "loss", "train_accuracy")


def mean_of_later_epochs(trials: SheetTrials, rows: Sequence[LabRow]) -> Conclusion:
    """Take the mean of all epochs but the first; it is the last row of the table."""
    if not rows:
        return _no_epoch(trials)
    later, spec = rows[1:] or rows, trials.plan.spec
    means = {name: known_mean(_column(later, name)) for name in _MEANS}
    total_s, loading_s = means["total_s"] or 0.0, means["loading_s"] or 0.0
    mean: LabRow = {"epoch": f"mean of {later[0]['epoch']} to {later[-1]['epoch']}", **means}
    return Conclusion(
        f"An epoch takes {format_duration(total_s)} (mean of {len(later)} without the first, "
        f"{format_duration(_column(rows, 'total_s')[0])}), {format_share(loading_s / total_s)} of "
        f"it loading, with {format_count(spec.workers, 'worker')}, prefetch {spec.prefetch} and "
        f"batch {spec.batch_size}.",
        last_row=mean,
    )


def _best(
    tried: Sequence[SettingTrials], figure: str, choose: Callable[..., Known] = max
) -> Known | None:
    """Return the setting with the largest figure, or the smallest, and that figure."""
    known = [(each, value) for each in tried if (value := each.median_of(figure)) is not None]
    return choose(known, key=lambda pair: pair[1]) if known else None


def _leaders(
    tried: Sequence[SettingTrials], figure: str, *, lowest: bool = False
) -> list[SettingTrials]:
    """Return the best setting, then those that are not shown to be worse."""
    rates = {
        place: [1 / each if lowest and each else each for each in found.in_rounds(figure)]
        for place, found in enumerate(tried)
    }
    return [tried[place] for place in leaders(rates)]


def _no_epoch(trials: SheetTrials) -> Conclusion:
    tried = trials.settings
    reason = tried[0].status if tried else trials.missing[0]["reason"]
    return Conclusion(f"No answer: the training did not complete ({reason}).", holds=False)


def _column(rows: Sequence[LabRow], name: str) -> list[float]:
    return [value for row in rows if isinstance(value := row[name], int | float)]


def _value(trials: SettingTrials, name: str) -> str:
    return str(trials.setting.values[name])


def _epochs(trials: SheetTrials) -> str:
    return format_count(trials.plan.spec.epochs, "epoch")


def _one_seed(trials: SheetTrials) -> str:
    """Say that rounds repeat the seed, so that they do not show how much accuracies vary."""
    return f"All runs have seed {trials.plan.spec.seed}; accuracies vary with the seed."


def _caveat(trials: SheetTrials) -> str:
    return f" {ONE_RUN}." if trials.plan.repeats == 1 else ""
