"""What do more processes bring? Speed-up and efficiency, measured over rounds and predicted.

Strong scaling: the processes share the batch. Weak scaling: each process takes a whole batch. The
speed-up is relative to the fewest processes, the base. Rates exclude the start of each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil
from typing import Literal, get_args

from stepscope.analyze.rank_balance import ranks_of
from stepscope.analyze.sweep_summary import steady_steps
from stepscope.errors import AnswerIsNo
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import (
    ExchangeTime,
    MeasuredScaling,
    PredictedScaling,
    ScalingAnswer,
    ScalingAssumptions,
    Setting,
)
from stepscope.stats.decide import ERROR, contrast
from stepscope.stats.intervals import known_mean, known_median
from stepscope.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_share,
)

KIND = "scale"
Mode = Literal["strong", "weak"]
_MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Scale:
    """The trials that are compared: numbers of processes in ascending order, and the batch size."""

    batch_size: int
    processes: tuple[int, ...]

    @property
    def base(self) -> int:
        """The fewest processes, the baseline of the others."""
        return self.processes[0]

    def total_batch(self, mode: Mode, processes: int) -> int:
        """Return the batch size of all processes together."""
        return self.batch_size if mode == "strong" else self.batch_size * processes

    def values(self, mode: Mode, processes: int) -> Setting:
        """Return the settings of a trial."""
        return {"processes": processes, "batch_size": self.total_batch(mode, processes)}

    def settings(self) -> list[Setting]:
        """List the settings to try, each once: one process is the same in both modes."""
        wanted = [self.values(mode, count) for count in self.processes for mode in _MODES]
        return [values for place, values in enumerate(wanted) if values not in wanted[:place]]


def _trials_with_rate(sweep: Sweep, values: Setting) -> list[Trial]:
    """Return the completed trials of a setting that have steps after the start of an epoch."""
    return [
        trial
        for trial in sweep.trials
        if trial.values == values
        and trial.status == schema.COMPLETED
        and trial.metrics.get("steady_samples_per_s")
    ]


def _communication_of(sweep: Sweep, trials: Iterable[Trial]) -> float | None:
    """Return the blocking communication of a step on rank 0; None for one process."""
    runs = (load_run(sweep.folder_of(trial)) for trial in trials)
    return known_median(
        known_mean(compress(run.steps["communication_s"], steady_steps(run))) for run in runs
    )


def _row(sweep: Sweep, scale: Scale, mode: Mode, count: int) -> MeasuredScaling:
    values, base = scale.values(mode, count), scale.base
    trials = _trials_with_rate(sweep, values)
    rates, at_base = (
        {trial.repeat: trial.metrics["steady_samples_per_s"] or 0.0 for trial in each}
        for each in (trials, _trials_with_rate(sweep, scale.values(mode, base)))
    )
    row: MeasuredScaling = {
        "mode": mode,
        "processes": count,
        "batch_size": scale.total_batch(mode, count),
        "samples_per_s": known_median(rates.values()),
        "speedup": None,
        "low": None,
        "high": None,
        "efficiency": None,
        "communication_s": _communication_of(sweep, trials),
        "rounds": 0,
        "reason": None,
    }
    if not trials:
        ended = [each for each in sweep.trials if each.values == values and each.reason]
        reasons = (f"{each.status.replace('_', ' ')}: {each.reason}" for each in ended)
        return {**row, "reason": next(reasons, "its epoch has no steps after its start")}
    if count == base:
        return {**row, "speedup": 1.0, "efficiency": 1.0, "rounds": len(rates)}
    shared = sorted(rates.keys() & at_base.keys())
    ratio = contrast(
        [at_base[each] for each in shared],
        [rates[each] for each in shared],
        ERROR / max(1, len(scale.processes) - 1),  # the numbers of a mode hold together
    )
    if ratio is None:
        return {**row, "reason": f"no round that the base of {base} completed too"}
    return {
        **row,
        "speedup": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "efficiency": ratio.ratio * base / count,
        "rounds": len(shared),
    }


# --- Processes that share the CPUs


def _shared_processors(sweep: Sweep, scale: Scale) -> Iterator[str]:
    """Yield notes on numbers of processes that have fewer CPUs each than the base."""
    threads = {count: _cpu_threads(sweep, scale, count) for count in scale.processes}
    at_base, cpus = threads.pop(scale.base) or (None, None)
    for count, found in threads.items():
        if at_base is None or found is None:
            continue
        each = format_count(found[0], "thread")
        if found[0] < at_base:
            yield (
                f"{count} processes share this machine's CPUs, with {each} each; the base had "
                f"{at_base}. For a fair comparison use --threads 1"
            )
        elif cpus is not None and found[0] * count > cpus:
            yield f"{count} processes of {each} each share {cpus} CPUs"


def _cpu_threads(sweep: Sweep, scale: Scale, count: int) -> tuple[int, int | None] | None:
    """Return the threads of a process that computes on the CPU, and the usable CPUs."""
    for trial in _trials_with_rate(sweep, scale.values("strong", count))[:1]:
        environment = load_run(sweep.folder_of(trial)).info["environment"]
        threads = environment.get("threads")
        if environment.get("device", "").startswith("cpu") and threads is not None:
            return threads, environment.get("cpus_usable")
    return None


# --- The prediction for machines over a network

# Loading, transfer, forward and backward shrink with the largest part of the batch, ceil(batch / p)
# samples; the optimiser and the rest stay constant. A ring all-reduce takes
#
#     2 (p-1)/p * bytes / bandwidth + 2 (p-1) * buckets * latency
#
# less the share that overlaps with the backward pass. The prediction ignores stragglers, and that a
# machine computes less efficiently on small parts.

# The bucket sizes of DistributedDataParallel: a small first one, so that sending starts early.
_FIRST_BUCKET_BYTES = 2**20
_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class ScalingInputs:
    """The network between the machines and its load; `overlap_share` of an all-reduce is hidden."""

    bandwidth_bytes_per_s: float
    latency_s: float
    gradient_bytes: int
    overlap_share: float

    def allreduce_s(self, processes: int) -> float:
        """Return the time of a ring all-reduce, bucket after bucket."""
        turns = 2 * (processes - 1)
        sending_s = turns / processes * self.gradient_bytes / self.bandwidth_bytes_per_s
        return sending_s + turns * bucket_count(self.gradient_bytes) * self.latency_s


def bucket_count(size_bytes: float) -> int:
    """Return the number of buckets in which DistributedDataParallel sends the gradients."""
    return 1 + max(0, ceil((size_bytes - _FIRST_BUCKET_BYTES) / _BUCKET_BYTES))


@dataclass(frozen=True)
class Base:
    """The measured step of the fewest processes.

    `communication_s` is part of `backward_s`. `fixed_s` does not depend on the samples of a
    process.
    """

    processes: int
    batch_size: int
    samples_per_s: float
    step_s: float
    backward_s: float
    fixed_s: float
    communication_s: float = 0.0


def predict(
    mode: Mode, batch_size: int, processes: int, base: Base, inputs: ScalingInputs
) -> PredictedScaling:
    """Predict the step of processes that share a batch, and the speed-up."""
    part = ceil(batch_size / processes) / ceil(base.batch_size / base.processes)
    allreduce_s = inputs.allreduce_s(processes)
    backward_s = (base.backward_s - base.communication_s) * part
    blocking_s = allreduce_s - min(inputs.overlap_share * allreduce_s, backward_s)
    own_s = (base.step_s - base.communication_s - base.fixed_s) * part + base.fixed_s
    step_s = own_s + blocking_s
    speedup = batch_size / base.batch_size * base.step_s / step_s
    return {
        "mode": mode,
        "processes": processes,
        "batch_size": batch_size,
        "samples_per_s": speedup * base.samples_per_s,
        "speedup": speedup,
        "efficiency": speedup * base.processes / processes,
        "step_s": step_s,
        "allreduce_s": allreduce_s,
        "blocking_s": blocking_s,
    }


def _measured_base(sweep: Sweep, scale: Scale, mode: Mode) -> Base | None:
    """Return the base of a mode from its round of median speed; None without figures."""
    trials = _trials_with_rate(sweep, scale.values(mode, scale.base))
    if not trials:
        return None
    by_rate = sorted(trials, key=lambda trial: trial.metrics["steady_samples_per_s"] or 0.0)
    middle = by_rate[(len(trials) - 1) // 2]
    steady, rate = middle.metrics["steady"], middle.metrics["steady_samples_per_s"]
    step_s, backward_s = steady["step_s"], steady["backward_s"]
    if rate is None or step_s is None or backward_s is None:
        return None
    return Base(
        processes=scale.base,
        batch_size=scale.total_batch(mode, scale.base),
        samples_per_s=rate,
        step_s=step_s,
        backward_s=backward_s,
        fixed_s=(steady["optimizer_s"] or 0.0) + (steady["other_s"] or 0.0),
        communication_s=_communication_of(sweep, [middle]) or 0.0,
    )


# --- The answer


_MODE_WORDS = {"strong": "with the same batch", "weak": "with a batch for each process"}
_ASSUMPTIONS = (
    "each process has a machine like the base's; its time shrinks with its part of the batch, "
    "except for the optimiser"
)


def scale_of(sweep: Sweep) -> Scale:
    """Return the trials that a scale sweep compares."""
    wanted = sweep.info["scale"]
    return Scale(wanted["batch_size"], tuple(wanted["processes"]))


def scaling_of(sweep: Sweep) -> ScalingAnswer:
    """Return the answer of a scale sweep, or raise `AnswerIsNo` if nothing can be compared."""
    scale = scale_of(sweep)
    measured = [_row(sweep, scale, mode, count) for mode in _MODES for count in scale.processes]
    predicted, assumed = _prediction(sweep, scale, measured)
    others = [row for row in measured if row["processes"] != scale.base]
    if not predicted and all(row["speedup"] is None for row in others):
        reasons = [row["reason"] for row in measured if row["reason"]]
        reasons = reasons or ([assumed["how"]] if assumed else [])
        why = "; ".join(dict.fromkeys(reason.rstrip(".") for reason in reasons))
        raise AnswerIsNo(f"nothing can be compared: {why}. The trials are in {sweep.path}")
    return {
        "measured": measured,
        "predicted": predicted,
        "assumed": assumed,
        "notes": list(_shared_processors(sweep, scale)),
        "answer": _sentence(scale, others, predicted, assumed),
        "path": str(sweep.path),
    }


def gradient_bytes_of(sweep: Sweep) -> tuple[int | None, str]:
    """Return the bytes of all gradients from a trial's memory bill, or None and the reason."""
    reason = "no trial was completed"
    for values in scale_of(sweep).settings():
        for trial in _trials_with_rate(sweep, values):
            run = load_run(sweep.folder_of(trial))
            for each in (run, *ranks_of(run)):  # each rank has its own bill
                bill = each.summary.get("memory_bill")
                if bill is not None:
                    return int(bill["items"]["gradients"]["bytes"]), ""
                reason = (each.summary.get("absent") or {}).get("memory_bill", reason)
    return None, reason


def _prediction(
    sweep: Sweep, scale: Scale, measured: Sequence[MeasuredScaling]
) -> tuple[list[PredictedScaling], ScalingAssumptions | None]:
    wanted = sweep.info["scale"]
    if not wanted["predict"] or wanted["bandwidth_bytes_per_s"] is None:
        return [], None
    bandwidth, latency_s = wanted["bandwidth_bytes_per_s"], wanted["latency_s"] or 0.0
    gradient_bytes, why_unknown = gradient_bytes_of(sweep)
    share, how_overlap = _overlap(measured, wanted["exchanges"])
    assumed: ScalingAssumptions = {
        "bandwidth_bytes_per_s": bandwidth,
        "latency_s": latency_s,
        "gradient_bytes": gradient_bytes,
        "overlap_share": share,
        "how": f"no prediction, because the size of the gradients is unknown: {why_unknown}",
    }
    if gradient_bytes is None:
        return [], assumed
    inputs = ScalingInputs(bandwidth, latency_s, gradient_bytes, share)
    predicted = [
        predict(mode, scale.total_batch(mode, count), count, base, inputs)
        for mode in _MODES
        if (base := _measured_base(sweep, scale, mode)) is not None
        for count in wanted["predict"]
    ]
    latency = "" if wanted["latency_s"] is not None else "; no latency, because none was given"
    size = f"a ring all-reduce of {format_bytes(gradient_bytes)} of gradients per step"
    return predicted, {**assumed, "how": f"{size}; {how_overlap}{latency}; {_ASSUMPTIONS}"}


def _overlap(
    measured: Sequence[MeasuredScaling], exchanges: Sequence[ExchangeTime]
) -> tuple[float, str]:
    """Return the share of an all-reduce that is hidden, and the explanation."""
    allreduce_of = {
        each["processes"]: each["allreduce_s"] for each in exchanges if each["allreduce_s"]
    }
    known = [
        (row["communication_s"], allreduce_of[row["processes"]])
        for row in measured
        if row["communication_s"] is not None and row["processes"] in allreduce_of
    ]
    if not known:
        reasons = (each["reason"] for each in exchanges if each["reason"])
        reason = next(reasons, "no trial of several processes has figures")
        return 0.0, f"no overlap with the backward pass is assumed: {reason}"
    blocking_s, allreduce_s = (sum(values) / len(values) for values in zip(*known, strict=True))
    share = max(0.0, 1 - blocking_s / allreduce_s)
    return share, (
        f"{format_share(share)} of it hidden behind the backward pass, as measured: "
        f"{format_duration(blocking_s)} of {format_duration(allreduce_s)} were blocking"
    )


def _sentence(
    scale: Scale,
    others: Sequence[MeasuredScaling],
    predicted: Sequence[PredictedScaling],
    assumed: ScalingAssumptions | None,
) -> str:
    most = scale.processes[-1]
    measured = [_describe(scale.base, row) for row in others if row["processes"] == most]
    sentences = [f"Measured: {'; '.join(measured)}."] if measured else []
    if predicted and assumed is not None:
        furthest = max(row["processes"] for row in predicted)
        over = format_bandwidth(assumed["bandwidth_bytes_per_s"])
        speedups = [
            f"{row['speedup']:.2f} times as fast {_MODE_WORDS[row['mode']]}, "
            f"{format_share(row['efficiency'])} efficiency"
            for row in predicted
            if row["processes"] == furthest
        ]
        sentences.append(f"Predicted over {over}: {furthest} processes are {'; '.join(speedups)}.")
    if scale.base > 1:
        sentences.append(f"The base is {scale.base} processes, the fewest that were measured.")
    return " ".join(sentences)


def _describe(base: int, row: MeasuredScaling) -> str:
    who = f"{row['processes']} processes {_MODE_WORDS[row['mode']]}"
    if row["speedup"] is None or row["efficiency"] is None:
        return f"{who} gave no result ({row['reason']})"
    interval = "too few rounds for an interval"
    if row["low"] is not None and row["high"] is not None:
        interval = f"{row['low']:.2f} to {row['high']:.2f} in {row['rounds']} rounds"
    efficiency = f"{format_share(row['efficiency'])} efficiency"
    return f"{who} are {row['speedup']:.2f} times as fast as {base} ({interval}), {efficiency}"
