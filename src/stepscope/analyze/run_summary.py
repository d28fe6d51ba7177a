"""The summary of a run (`run.json`), computed from its records alone.

`phase_shares` says which steps count for shares and medians. Steps with an unknown number of
samples, as a traced script may have, enter the totals by extrapolation. Figures that are missing
have a reason in `absent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.analyze.device_time import device_time
from stepscope.analyze.energy_use import energy_of
from stepscope.analyze.instrument_cost import cost_by_off_blocks
from stepscope.analyze.memory_use import compare_with_forecast
from stepscope.analyze.phase_shares import dropped_epochs_of, phase_shares, time_by_phase
from stepscope.analyze.rank_balance import exposed_communication, summarize_ranks
from stepscope.analyze.roofline import FIGURES, NOTHING_COUNTED, how_near_the_limit
from stepscope.analyze.throttled_time import throttling_of
from stepscope.records.run_reader import Run
from stepscope.records.table import Table

_NO_SAMPLES = "neither its batches nor the calls of its modules tell how many samples they have"
_ACCURACIES = ("train_accuracy", "test_accuracy", "test_top5", "validation_accuracy")


def summarize(run: Run, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run.

    `measured` holds figures that are in no table and, as `absent`, the reasons for missing ones.
    """
    steps, epochs = run.steps, run.epochs
    trained = [row for row in epochs.rows() if row["split"] == "train"]
    tested = [row for row in epochs.rows() if row["split"] == "test"]
    validated = [row for row in epochs.rows() if row["split"] == "validation"]
    dropped = dropped_epochs_of(run)
    kept = [row for row in trained if row["epoch"] not in dropped]
    phases = time_by_phase(steps, dropped)
    summary: dict[str, Any] = {
        "epochs": len(trained),
        "steps": len(steps),
        "samples": samples_in(steps),
        "dropped_epochs": dropped,
        "wall_s": None,
        "preparation_s": None,
        "samples_per_s": _rate(kept),
        "closure": closure(steps, trained),
        "unattributed_share": phases["other"]["share"] if phases else None,
        "phases": phases,
        "device": device_time(steps, dropped),
        "communication": exposed_communication(steps, dropped),
        "off_blocks": cost_by_off_blocks(steps),
        "train_accuracy": trained[-1]["accuracy"] if trained else None,
        "test_accuracy": tested[-1]["accuracy"] if tested else None,
        "test_top5": tested[-1]["top5"] if tested else None,
        "validation_accuracy": validated[-1]["accuracy"] if validated else None,
        "peak_memory_bytes": None,
        "device_peak_memory_bytes": None,
        "layers": None,
        "flops": None,
        "counters": None,
        "page_cache": made_cold(run),
        "bad_samples": bad_samples(run),
        "requests": None,
        **summarize_ranks(run),
        **measured,
    }
    peak = (measured.get("roofline") or {}).get("peak")
    summary |= how_near_the_limit(steps, dropped, summary["flops"], peak)
    summary["memory_bill"], without_bill = compare_with_forecast(
        measured.get("memory_bill") or {},
        summary["peak_memory_bytes"],
        summary["device_peak_memory_bytes"],
        took_a_step=len(steps) > 0,
    )
    summary["energy"], without_energy = energy_of(run, summary)
    summary["energy_j"] = (summary["energy"] or {}).get("joules")
    summary["throttling"], not_watched = throttling_of(run, dropped)
    reasons = {
        **dict.fromkeys(("energy", "energy_j"), without_energy),
        "throttling": not_watched,
        **dict.fromkeys(("closure", "samples_per_s", "train_accuracy"), "no epoch was finished"),
        **dict.fromkeys(("test_accuracy", "test_top5"), "no test was finished"),
        "validation_accuracy": "no samples were held out: --validation N",
        **dict.fromkeys(("unattributed_share", "phases"), "no step was finished"),
        "wall_s": "the run was not timed as a whole",
        "preparation_s": "the training did not get as far as its first step",
        "peak_memory_bytes": "this system keeps no high-water mark of a process's memory",
        "device_peak_memory_bytes": _no_device_peak(run),
        "device": "the device works in step with the host: its times are the host's",
        "communication": "the training is one process",
        "off_blocks": "too few steps: blocks without detail begin after 2,000, and five are needed",
        "layers": "the run ended before its layers were measured",
        "flops": "the run ended before its operations were counted",
        "counters": "the run ended before its counters were read",
        "memory_bill": without_bill,
        "page_cache": "kept as it was: --page-cache cold",
        "requests": "no object store was asked",
        "samples": _NO_SAMPLES,
        "bad_samples": "what a foreign script cannot read is its own affair",
    }
    if not run.spec.get("counters"):
        reasons["counters"] = "not asked for: --counters N"
    if not run.spec.get("layers"):
        reasons["layers"] = "not asked for: --layers N"
    if run.spec.get("validation"):
        reasons["validation_accuracy"] = "no validation was finished"
    if run.spec.get("page_cache", "keep") != "keep":
        reasons["page_cache"] = "the run ended before its first epoch"
    if kept and summary["samples_per_s"] is None:
        reasons["samples_per_s"] = _NO_SAMPLES
    if trained and not kept:
        reasons["samples_per_s"] = "only the first epoch was finished, and it carries start-up cost"
        if len(dropped) > 1:
            first = f"the first {len(dropped)} epochs"
            reasons["samples_per_s"] = f"only {first} were finished, and they are left out"
    if run.info.get("kind") == "trace":
        theirs = dict.fromkeys(_ACCURACIES, "a foreign script keeps its accuracy to itself")
        reasons |= {
            **theirs,
            "memory_bill": "the memory of a foreign script is measured, not forecast",
            "preparation_s": "where a foreign script's preparation ends is unknown",
            "page_cache": "kept as it was: a foreign script's files are its own",
            "flops": "the operations of a foreign script are not counted",
            "counters": "the counters are read in runs of our own",
        }
        if "rank" in run.spec:
            reasons["communication"] = (
                "no DistributedDataParallel exchanged gradients in it, and how long a script takes "
                "to exchange them by other means is not known"
            )
    if len(steps):
        reasons["phases"] = reasons["unattributed_share"] = "no step was measured in full detail"
    reasons |= dict.fromkeys(FIGURES, reasons["phases"])
    reasons |= measured.get("absent", {})
    if summary["flops"] is None:
        reasons |= dict.fromkeys(FIGURES, reasons["flops"])
    elif not summary["flops"]["per_sample"]:
        reasons |= dict.fromkeys(FIGURES, NOTHING_COUNTED)
    absent = {name: reasons[name] for name in reasons if summary.get(name) is None}
    return {**summary, "absent": absent}


def _no_device_peak(run: Run) -> str:
    device = (run.info.get("environment") or {}).get("device")
    if device is None or str(device).startswith("cpu"):
        return "the device is the CPU, whose memory is the host's"
    return "the training did not tell what it held of its device"


def made_cold(run: Run) -> dict[str, Any] | None:
    """Return how cold the page cache was made at the start; None if it was kept."""
    for event in run.events:
        if event.get("event") == "page_cache":
            return {name: event[name] for name in event if name not in ("event", "time_s")}
    return None


def bad_samples(run: Run) -> int | None:
    """Return the number of distinct unreadable samples; None for a traced script."""
    if run.info.get("kind") == "trace":
        return None
    return len({event["path"] for event in run.events if event.get("event") == "bad_sample"})


def samples_in(steps: Table) -> int | None:
    """Return the number of samples of all steps; None if no step records it.

    Steps without a number count with the mean of the others.
    """
    known: list[int] = [samples for samples in steps["samples"] if samples is not None]
    if len(known) == len(steps):
        return sum(known)
    return round(sum(known) * len(steps) / len(known)) if known else None


def closure(steps: Table, trained: list[dict[str, Any]]) -> float | None:
    """Return the accounted share: the parts of all epochs over their own clock; 1 is complete."""
    finished = {row["epoch"] for row in trained}
    by_clock_s = sum(row["total_s"] for row in trained)
    if not by_clock_s:
        return None
    parts_s = sum(row["loader_start_s"] + row["loader_stop_s"] for row in trained)
    in_steps_s = sum(
        took
        for took, epoch in zip(steps["step_s"], steps["epoch"], strict=True)
        if epoch in finished
    )
    return float((parts_s + in_steps_s) / by_clock_s)


def _rate(epochs: list[dict[str, Any]]) -> float | None:
    """Return samples over time; an epoch without a sample count may still have a rate."""
    total_s = sum(row["total_s"] for row in epochs)
    samples = [_samples_at_its_rate(row) for row in epochs]
    if not total_s or None in samples:
        return None
    return float(sum(each for each in samples if each is not None) / total_s)


def _samples_at_its_rate(epoch: dict[str, Any]) -> float | None:
    if epoch["samples"] is not None:
        return float(epoch["samples"])
    rate = epoch["samples_per_s"]
    return None if rate is None else float(rate * epoch["total_s"])


# --- Figures of a run in progress


NOT_CLOSED = "the run has not been closed"
_ONLY_WHEN_CLOSED = (
    *("wall_s", "closure", "peak_memory_bytes", "device_peak_memory_bytes", "memory_bill"),
    *("layers", "device"),
)


def figures_so_far(run: Run) -> dict[str, Any]:
    """Return the summary of a run or, until it is closed, the figures of its steps so far."""
    if run.summary:
        return run.summary
    steps = run.steps
    dropped = dropped_epochs_of(run)
    return {
        "steps": len(steps),
        "samples": samples_in(steps),
        "dropped_epochs": dropped,
        "phases": phase_shares(steps, dropped),
        "absent": dict.fromkeys(_ONLY_WHEN_CLOSED, NOT_CLOSED),
    }


# --- Evaluations


EVALUATION_SPLITS = ("test", "validation")


def evaluation_split(run: Run) -> str:
    """Return the split that a run was evaluated on; `test` without an evaluation."""
    return next((split for split in run.epochs["split"] if split in EVALUATION_SPLITS), "test")


def evaluations(run: Run) -> dict[int, dict[str, Any]]:
    """Return the rows of a run's evaluations, by epoch."""
    split = evaluation_split(run)
    return {row["epoch"]: row for row in run.epochs.rows() if row["split"] == split}


# --- Environment


TEMPERATURES = ("temperature_start_c", "temperature_end_c")
# Conditions that are measured instead of set, and explanations of the others.
_ASIDE = ("temperature_c", "absent", "changed")


def flat_environment(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of a run, with its conditions on the same level.

    A condition that changed during the run is `before -> after`.
    """
    environment = dict(info.get("environment") or {})
    conditions = environment.pop("conditions", None)
    if not isinstance(conditions, Mapping):
        return environment
    state = {name: value for name, value in conditions.items() if name not in _ASIDE}
    for name, moved in (conditions.get("changed") or {}).items():
        state[name] = f"{moved['start']} -> {moved['end']}"
    warmth = conditions.get("temperature_c") or {}
    ends = (warmth.get("start"), warmth.get("end"))
    return {**environment, **state, **dict(zip(TEMPERATURES, ends, strict=True))}
