"""The summary of a run (`run.json`), computed from its records alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast

from stepscope.analyze.energy_use import energy_of
from stepscope.analyze.memory_use import compare_with_forecast
from stepscope.analyze.phase_shares import (
    dropped_epochs_of,
    phase_shares,
    time_by_phase,
)
from stepscope.analyze.rank_balance import (
    blocking_communication,
    figures_of_rank,
    ranks_of,
    slowest_by_phase,
)
from stepscope.analyze.roofline import FIGURES, NOTHING_COUNTED, how_near_the_limit
from stepscope.analyze.throttled_time import throttling_of
from stepscope.analyze.verdict import verdict_on
from stepscope.analyze.wall_time import wall_spans
from stepscope.analyze.what_binds import device_time
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import (
    ColdCache,
    EpochRow,
    FlatEnvironment,
    LayerTime,
    MemoryForecast,
    OffBlockCost,
    PeakRecord,
    PhaseCounters,
    RequestLatency,
    RunRecord,
    ScriptFigures,
    StepFlops,
    Summary,
)
from stepscope.stats.intervals import median, quantile

_NO_SAMPLES = "the number of samples in a batch could not be determined"
_EVENT_KEYS = ("event", "time_s")
_ACCURACIES = ("train_accuracy", "test_accuracy", "test_top5", "validation_accuracy")


@dataclass(frozen=True)
class Measured:
    """The figures of a run that are in no table, and in `absent` the reasons for missing ones."""

    wall_s: float | None = None
    preparation_s: float | None = None
    peak_memory_bytes: int | None = None
    device_peak_memory_bytes: int | None = None
    layers: list[LayerTime] | None = None
    flops: StepFlops | None = None
    counters: PhaseCounters | None = None
    requests: RequestLatency | None = None
    forecast: MemoryForecast | None = None
    measured_bytes: Mapping[str, int] = field(default_factory=dict)
    peak: PeakRecord | None = None
    script: ScriptFigures = field(default_factory=ScriptFigures)
    absent: Mapping[str, str] = field(default_factory=dict)


def summarize(run: Run, measured: Measured) -> Summary:
    """Return the summary of a run."""
    steps = run.steps
    trained = run.epoch_rows("train")
    tested = run.epoch_rows("test")
    validated = run.epoch_rows("validation")
    dropped = dropped_epochs_of(run)
    kept = [row for row in trained if row["epoch"] not in dropped]
    phases = time_by_phase(steps, dropped)
    bill, without_bill = compare_with_forecast(
        measured.forecast,
        measured.measured_bytes,
        measured.peak_memory_bytes,
        measured.device_peak_memory_bytes,
        took_a_step=len(steps) > 0,
    )
    throttling, not_watched = throttling_of(run, dropped)
    summary: Summary = {
        "epochs": len(trained),
        "steps": len(steps),
        "samples": samples_in(steps),
        "dropped_epochs": dropped,
        "wall_s": measured.wall_s,
        "preparation_s": measured.preparation_s,
        "samples_per_s": _rate(kept),
        "accounted_share": accounted_share(steps, trained),
        "unattributed_share": phases["other"]["share"] if phases else None,
        "phases": phases,
        "device": device_time(steps, dropped, measured.script.get("stacks") or ()),
        "communication": blocking_communication(steps, dropped),
        "off_blocks": cost_by_off_blocks(steps),
        "train_accuracy": trained[-1]["accuracy"] if trained else None,
        "test_accuracy": tested[-1]["accuracy"] if tested else None,
        "test_top5": tested[-1]["top5"] if tested else None,
        "validation_accuracy": validated[-1]["accuracy"] if validated else None,
        "peak_memory_bytes": measured.peak_memory_bytes,
        "device_peak_memory_bytes": measured.device_peak_memory_bytes,
        "layers": measured.layers,
        "flops": measured.flops,
        "counters": measured.counters,
        "page_cache": made_cold(run),
        "bad_samples": bad_samples(run),
        "requests": measured.requests,
        "memory_bill": bill,
        **how_near_the_limit(steps, dropped, measured.flops, measured.peak),
        "throttling": throttling,
        "stacks": measured.script.get("stacks"),
        "loader": measured.script.get("loader"),
        "checkpoints": measured.script.get("checkpoints"),
        "steps_inferred": measured.script.get("steps_inferred", False),
        "script_setup": measured.script.get("script_setup"),
        "compilation": measured.script.get("compilation"),
        "wall_time": wall_spans(run, measured.wall_s),
    }
    if ranks := [figures_of_rank(rank) for rank in ranks_of(run)]:
        summary["ranks"], summary["slowest_rank"] = ranks, slowest_by_phase(ranks)
    energy, without_energy = energy_of(run, summary)
    summary["energy"] = energy
    summary["energy_j"] = energy["joules"] if energy else None
    summary["verdict"] = verdict_on(run.with_summary(summary))
    reasons = {
        **_reasons(run, summary, kept),
        **dict.fromkeys(("energy", "energy_j"), without_energy),
        "throttling": not_watched,
        "memory_bill": without_bill,
        **_reasons_of_user_script(run),
        **measured.absent,
    }
    if measured.flops is None:
        reasons |= dict.fromkeys(FIGURES, reasons["flops"])
    elif not measured.flops["forward"] + measured.flops["backward"]:
        reasons |= dict.fromkeys(FIGURES, NOTHING_COUNTED)
    summary["absent"] = {name: reasons[name] for name in reasons if summary.get(name) is None}
    return summary


def _reasons(run: Run, summary: Summary, kept: list[EpochRow]) -> dict[str, str]:
    """Return the reason that each figure would be missing for."""
    spec = run.spec
    no_rate = "no epoch was finished"
    if kept:
        no_rate = _NO_SAMPLES
    elif summary["epochs"]:
        no_rate = "only warm-up epochs were finished, and they are excluded"
    no_phases = "no step was measured in full detail" if summary["steps"] else "no step finished"

    def requested(setting: str, before: str, flag: str) -> str:
        return f"the run ended before {before}" if spec.get(setting) else f"not requested: {flag}"

    device = (run.info.get("environment") or {}).get("device") or "cpu"
    return {
        **dict.fromkeys(("accounted_share", "train_accuracy"), "no epoch was finished"),
        "samples_per_s": no_rate,
        **dict.fromkeys(("test_accuracy", "test_top5"), "no test was finished"),
        "validation_accuracy": requested("validation", "its validation", "--validation N"),
        **dict.fromkeys(("unattributed_share", "phases", *FIGURES), no_phases),
        "wall_s": "the run was not timed as a whole",
        "preparation_s": "the training ended before its first step",
        "peak_memory_bytes": "this system does not record the peak memory of a process",
        "device_peak_memory_bytes": "the device is the CPU, whose memory is the host's"
        if device.startswith("cpu")
        else "the training did not report its device memory",
        "device": "the device is not asynchronous: its times are the host's",
        "communication": "the training is one process",
        "off_blocks": "too few steps: five blocks without detail are needed, the first after 2,000",
        "layers": requested("layers", "its layers were measured", "--layers N"),
        "flops": "the run ended before its operations were counted",
        "counters": requested("counters", "its counters were read", "--counters N"),
        "page_cache": "kept as it was; evict it with --page-cache cold"
        if spec.get("page_cache", "keep") == "keep"
        else "the run ended before its first epoch",
        "requests": "no object store was used",
        **dict.fromkeys(("stacks", "loader", "checkpoints"), "only a user script is sampled"),
        "script_setup": "the settings of a built-in training are in its spec",
        "compilation": "nothing was compiled by torch.compile",
        "samples": _NO_SAMPLES,
    }


def _reasons_of_user_script(run: Run) -> dict[str, str]:
    """Return the reasons that only a traced script has."""
    if run.info.get("kind") != "trace":
        return {}
    reasons = {
        **dict.fromkeys(_ACCURACIES, "a user script does not report its accuracy"),
        "memory_bill": "the memory of a user script is measured, not forecast",
        "preparation_s": "where a user script's preparation ends is unknown",
        "page_cache": "kept as it was; stepscope does not evict a user script's files",
        "flops": "the script did not reach its end",
        "roofline": "the memory traffic of a user script is not estimated",
        "script_setup": "the script took too few steps, or did not reach its end",
        "counters": "counters are only read in built-in trainings",
        "bad_samples": "a user script handles unreadable samples itself",
        "stacks": "the script did not reach its end",
        "checkpoints": "the script did not call torch.save",
        "loader": "the script used no DataLoader, or did not reach its end",
    }
    if "rank" in run.spec:
        reasons["communication"] = (
            "no DistributedDataParallel was used, and other communication is not timed"
        )
    return reasons


def made_cold(run: Run) -> ColdCache | None:
    """Return how cold the page cache was made at the start; None if it was kept."""
    for event in run.events:
        if event["event"] == "page_cache":
            return cast("ColdCache", {k: v for k, v in event.items() if k not in _EVENT_KEYS})
    return None


def bad_samples(run: Run) -> int | None:
    """Return the number of distinct unreadable samples; None for a traced script."""
    if run.info.get("kind") == "trace":
        return None
    return len({event["path"] for event in run.events if event["event"] == "bad_sample"})


def samples_in(steps: Table) -> int | None:
    """Return the samples of all steps, extrapolated over unknown ones; None without any."""
    known: list[int] = [samples for samples in steps["samples"] if samples is not None]
    if len(known) == len(steps):
        return sum(known)
    return round(sum(known) * len(steps) / len(known)) if known else None


def accounted_share(steps: Table, trained: list[EpochRow]) -> float | None:
    """Return the parts of all epochs over their own clock: 1 if no time is lost."""
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


def _rate(epochs: list[EpochRow]) -> float | None:
    """Return samples over time; an epoch without a sample count may still have a rate."""
    total_s, samples = sum(row["total_s"] for row in epochs), 0.0
    for row in epochs:
        if row["samples"] is not None:
            samples += row["samples"]
        elif row["samples_per_s"] is not None:
            samples += row["samples_per_s"] * row["total_s"]
        else:
            return None
    return samples / total_s if total_s else None


# --- What measuring costs: blocks of steps without detail against their neighbours


_NEIGHBOURS = 20
LEAST_BLOCKS = 5


def cost_by_off_blocks(steps: Table) -> OffBlockCost | None:
    """Compare each block with its neighbours of full detail; None with too few blocks."""
    step_s, details = steps["step_s"], steps["detail"]
    differences, shares, at = [], [], 0
    for detail, block in groupby(details):
        begin, at = at, at + len(list(block))
        if detail != schema.OFF:
            continue
        neighbours = [
            *range(max(0, begin - _NEIGHBOURS), begin),
            *range(at, min(at + _NEIGHBOURS, len(steps))),
        ]
        beside = [step_s[near] for near in neighbours if details[near] == schema.FULL]
        if len(beside) >= _NEIGHBOURS:
            without_s = median(step_s[begin:at])
            differences.append(median(beside) - without_s)
            shares.append(differences[-1] / without_s)
    if len(differences) < LEAST_BLOCKS:
        return None
    ordered = sorted(differences)
    return {
        "blocks": len(differences),
        "overhead_per_step_s": quantile(ordered, 0.5),
        "low_s": quantile(ordered, 0.25),
        "high_s": quantile(ordered, 0.75),
        "overhead_share": median(shares),
    }


# --- Figures of a run in progress


NOT_CLOSED = "the run has not ended"
_ONLY_WHEN_CLOSED = (
    *("wall_s", "accounted_share", "peak_memory_bytes", "device_peak_memory_bytes", "memory_bill"),
    *("layers", "device"),
)


def figures_so_far(run: Run) -> Summary:
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


def evaluations(run: Run) -> dict[int, EpochRow]:
    """Return the rows of a run's evaluations, by epoch."""
    return {row["epoch"]: row for row in run.epoch_rows(evaluation_split(run))}


# --- Environment


TEMPERATURES = ("temperature_start_c", "temperature_end_c")
# Conditions that are measured instead of set, and explanations of the others.
_ASIDE = ("temperature_c", "absent", "changed")


def flat_environment(info: RunRecord) -> FlatEnvironment:
    """Return the environment and conditions of a run; a changed condition is `before -> after`."""
    environment = info.get("environment") or {}
    flat = {name: value for name, value in environment.items() if name != "conditions"}
    conditions = environment.get("conditions")
    if isinstance(conditions, Mapping):
        flat |= {name: value for name, value in conditions.items() if name not in _ASIDE}
        for name, moved in (conditions.get("changed") or {}).items():
            flat[name] = f"{moved['start']} -> {moved['end']}"
        warmth = conditions.get("temperature_c")
        ends = (warmth["start"], warmth["end"]) if warmth else (None, None)
        flat |= dict(zip(TEMPERATURES, ends, strict=True))
    return cast("FlatEnvironment", flat)
