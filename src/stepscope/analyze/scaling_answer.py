"""What do more processes bring? The measured and the predicted scaling, and one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.analyze.predicted_scaling import (
    NetworkLink,
    ScalingInputs,
    measured_base,
    predict,
)
from stepscope.analyze.rank_balance import ranks_of
from stepscope.analyze.scaling import (
    MODES,
    Scale,
    measured_scaling,
    shared_processors,
    trials_with_rate,
)
from stepscope.errors import AnswerIsNo
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import (
    ExchangeTime,
    MeasuredScaling,
    PredictedScaling,
    ScalingAnswer,
    ScalingAssumptions,
)
from stepscope.units import format_bandwidth, format_bytes, format_duration, format_share

KIND = "scale"
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
    measured = measured_scaling(sweep, scale)
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
        "notes": list(shared_processors(sweep, scale)),
        "answer": _sentence(scale, others, predicted, assumed),
        "path": str(sweep.path),
    }


def gradient_bytes_of(sweep: Sweep) -> tuple[int | None, str]:
    """Return the bytes of all gradients from a trial's memory bill, or None and the reason."""
    reason = "no trial was completed"
    for values in scale_of(sweep).settings():
        for trial in trials_with_rate(sweep, values):
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
    network = NetworkLink(wanted["bandwidth_bytes_per_s"], wanted["latency_s"] or 0.0)
    gradient_bytes, why_unknown = gradient_bytes_of(sweep)
    share, how_overlap = _overlap(measured, wanted["exchanges"])
    assumed: ScalingAssumptions = {
        "bandwidth_bytes_per_s": network.bandwidth_bytes_per_s,
        "latency_s": network.latency_s,
        "gradient_bytes": gradient_bytes,
        "overlap_share": share,
        "how": f"no prediction, because the size of the gradients is unknown: {why_unknown}",
    }
    if gradient_bytes is None:
        return [], assumed
    inputs = ScalingInputs(network, gradient_bytes, share)
    predicted = [
        predict(mode, scale.total_batch(mode, count), count, base, inputs)
        for mode in MODES
        if (base := measured_base(sweep, scale, mode)) is not None
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
        each["processes"]: each["exchange_s"] for each in exchanges if each["exchange_s"]
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
    exposed_s, allreduce_s = (sum(values) / len(values) for values in zip(*known, strict=True))
    share = max(0.0, 1 - exposed_s / allreduce_s)
    return share, (
        f"{format_share(share)} of it hidden behind the backward pass, as measured: "
        f"{format_duration(exposed_s)} of {format_duration(allreduce_s)} were exposed"
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
        network = format_bandwidth(assumed["bandwidth_bytes_per_s"])
        speedups = [
            f"{row['speedup']:.2f} times as fast {_MODE_WORDS[row['mode']]}, "
            f"{format_share(row['efficiency'])} efficiency"
            for row in predicted
            if row["processes"] == furthest
        ]
        sentences.append(f"Predicted over {network}: {furthest} processes {'; '.join(speedups)}.")
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
