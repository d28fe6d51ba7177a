"""The types of everything that crosses a boundary: files, messages, answers.

`run.json`, its summary, the lines of `events.jsonl`, the messages between processes and the JSON
answers of commands are plain JSON values. Each shape has one type here, under the heading of the
file or command that it belongs to. A key that may be missing is `NotRequired`; a figure that may
be unknown is `| None`. JSON Schemas are generated from these types (`tools/json_schemas.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

# --- run.json: the record of a run ----------------------------------------------------------------


# --- run.json: environment and conditions of the machine ------------------------------------------


# --- run.json: summary ----------------------------------------------------------------------------


# --- summary: memory forecast and bill ------------------------------------------------------------


# --- summary: energy, throttling ------------------------------------------------------------------


# --- events.jsonl ---------------------------------------------------------------------------------


# --- messages between processes -------------------------------------------------------------------


# --- answers: trace and run, compare, report ------------------------------------------------------


# --- sweep.json, trials and answers of sweep ------------------------------------------------------

# The value of a setting, as JSON has it.
SettingValue: TypeAlias = bool | int | float | str | list[int] | None


class RateInterval(TypedDict):
    """A median over rounds and its interval; the ends are None with one round."""

    median: float | None
    low: float | None
    high: float | None


class StepFigures(TypedDict):
    """The mean step of a trial after its start, in seconds."""

    step_s: float | None
    load_s: float | None
    load_cpu_s: float | None
    data_s: float | None
    transfer_s: float | None
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    other_s: float | None


class PageCacheFigures(TypedDict):
    """How cold the page cache was made before a run."""

    epoch: int
    cold_share: float | None
    how: str
    reason: str | None


class TrialMetrics(TypedDict, total=False):
    """The figures of one trial that settings are compared by; empty if nothing was recorded."""

    samples_per_s: float | None
    dropped_epochs: list[int]
    steady_samples_per_s: float | None
    steady_steps: int
    steady: StepFigures
    wall_s: float | None
    epoch_s: float | None
    step_s: float | None
    phases: dict[str, float]
    load_s: float | None
    load_cpu_s: float | None
    loader_start_s: float | None
    loss: float | None
    train_accuracy: float | None
    test_accuracy: float | None
    validation_accuracy: float | None
    peak_memory_bytes: int | None
    page_cache: PageCacheFigures | None
    swap_used_bytes: int | None
    workers_lost: int
    read_bytes_per_s: float | None
    pressure_cpu: float | None
    pressure_io: float | None
    worker_bytes: int | None


class TrialRecord(TypedDict):
    """One trial in `sweep.json`."""

    index: int
    values: dict[str, SettingValue]
    repeat: int
    status: NotRequired[str]
    reason: NotRequired[str | None]
    exit_code: NotRequired[int | None]
    run: NotRequired[str | None]
    metrics: NotRequired[TrialMetrics]
    node: NotRequired[str | None]
    node_kind: NotRequired[str | None]


class ScriptCall(TypedDict):
    """How a user's script is called in the trials of a sweep."""

    script: str | None
    module: str | None
    arguments: list[str]
    out: str
    name: str | None
    max_steps: int | None
    layers: int
    loader: dict[str, SettingValue] | None
    energy: str


class WorkloadRecord(TypedDict):
    """What a sweep runs again and again: our training, or a user's script."""

    spec: dict[str, SettingValue] | None
    mode: Literal["train", "load"]
    quick: NotRequired[bool]
    script: ScriptCall | None


class RunnerPlace(TypedDict):
    """Where the trials of a sweep are run: `here`, or on the nodes of a Ray cluster."""

    runner: str
    address: NotRequired[str]
    mix_nodes: NotRequired[bool]


class ExchangeTime(TypedDict):
    """How long a number of processes takes to exchange gradients alone, or why that is unknown."""

    processes: int
    exchange_s: float | None
    reason: str | None


class ScaleRecord(TypedDict):
    """What `stepscope scale` measures and predicts."""

    batch_size: int
    processes: list[int]
    predict: list[int]
    bandwidth_bytes_per_s: float | None
    latency_s: float | None
    exchanges: list[ExchangeTime]


class SweepPlan(WorkloadRecord):
    """What a sweep was asked for; a search for workers has no settings planned beforehand."""

    kind: str
    over: Mapping[str, Sequence[SettingValue]] | None
    directory: NotRequired[str]
    settings: NotRequired[list[dict[str, SettingValue]]]
    repeats: NotRequired[int]
    seed: NotRequired[int]
    time_limit_s: NotRequired[float | None]
    on: NotRequired[RunnerPlace | None]
    scale: NotRequired[ScaleRecord]


class SweepRecord(SweepPlan):
    """`sweep.json`: the plan of a sweep and its trials."""

    schema: int
    id: str
    name: str
    status: str
    reason: str | None
    started_unix_s: float
    process: int | None
    trials: list[TrialRecord]


class SweepRow(TypedDict):
    """A setting of a sweep, over its rounds."""

    values: dict[str, SettingValue]
    runs: int
    completed: int
    samples_per_s: RateInterval
    step_s: float | None
    data_share: float | None
    peak_memory_bytes: int | None
    test_accuracy: float | None
    validation_accuracy: float | None


class SweepAnswer(SweepRecord):
    """The answer of `stepscope sweep`."""

    rows: list[SweepRow]
    path: str


# --- answers: workers, max-batch, bottleneck, scale -----------------------------------------------


class WorkerCandidate(TypedDict):
    """A number of loader workers that was tried."""

    workers: int
    threads: int | None
    samples_per_s: RateInterval
    tied_with_best: bool
    to_best: float | None
    rounds: int
    wait_share: float | None
    load_s: float | None
    load_cpu_s: float | None
    loader_start_s: float | None
    pressure_cpu: float | None
    pressure_io: float | None
    memory_bytes: int | None
    reason: str | None


class VerifiedSpeedup(TypedDict):
    """The recommended number of workers against the current one."""

    ratio: float | None
    low: float | None
    high: float | None
    rounds: int | None
    verdict: str
    reason: str | None


class WorkerBounds(TypedDict):
    """The largest number of workers by each resource; None where unknown."""

    cpus: int
    by_memory: int | None
    by_shared_memory: int | None
    by_epoch: int | None


class WorkersAnswer(TypedDict):
    """The answer of `stepscope workers`."""

    recommended: int
    recommended_threads: int | None
    current: int
    decided: bool
    why: str
    bound_by: str
    bound_by_why: str
    bound_by_with_recommended: str
    candidates: list[WorkerCandidate]
    verified_speedup: float | None
    verified: VerifiedSpeedup
    bounds: WorkerBounds
    of_script: bool
    warnings: list[str]
    steps_an_epoch: int | None
    measured_steps: int
    cost_s: float
    path: str


class BatchTrialRecord(TypedDict):
    """A batch that was tried."""

    batch_size: int
    accumulate: int
    checkpoint_activations: bool
    forecast_bytes: int | None
    peak_memory_bytes: int | None
    status: str
    reason: str | None
    fits: bool


class BatchSettings(TypedDict):
    """The settings of a recommendation that differ from those asked for; the batch always."""

    batch_size: int
    accumulate: NotRequired[int]
    checkpoint_activations: NotRequired[bool]


class BatchRecommendation(TypedDict):
    """Settings that were tried and fit."""

    settings: BatchSettings
    peak_memory_bytes: int | None
    tested: bool


class AskedBatch(TypedDict):
    """The batch that was asked for, and whether it fits; None where that is unknown."""

    batch_size: int
    fits: bool | None


class MaxBatchAnswer(TypedDict):
    """The answer of `stepscope fit`."""

    model: str
    script: str | None
    limit_bytes: int
    limit_of: str
    limit_pool: str
    largest_batch: int | None
    peak_memory_bytes: int | None
    is_all_the_data: bool
    trials: list[BatchTrialRecord]
    recommended: list[BatchRecommendation]
    asked: AskedBatch | None
    reason: str | None


class StallRates(TypedDict):
    """Samples per second that each part could do alone; None where it has nothing to do."""

    compute: float
    preprocessing: float | None
    fetching: float | None


class LostShares(TypedDict):
    """The shares of the time that are lost to each cause."""

    preprocessing: float
    fetching: float
    contention: float


class PossibleSpeedups(TypedDict):
    """The most that a change could bring, as a factor."""

    more_workers: float
    faster_storage: float


class StallsSummary(TypedDict):
    """Where the time of a sample goes, from three ways of running the same training."""

    bound_by: str
    rates: StallRates
    lost: LostShares
    at_most: PossibleSpeedups
    why: str


class WayFigures(StepFigures):
    """One of the three ways: synthetic batches, data in memory, data from its source."""

    settings: dict[str, SettingValue]
    samples_per_s: RateInterval
    runs: int


class BottleneckAnswer(StallsSummary):
    """The answer of `stepscope stalls`."""

    lost_by_round: list[LostShares]
    workers: int
    ways: dict[Literal["synthetic", "memory", "source"], WayFigures]
    page_cache: PageCacheFigures | None
    caches_not_emptied: list[str]
    cost_s: float
    path: str


class MeasuredScaling(TypedDict):
    """One number of processes as measured; without a figure, `reason` says why."""

    mode: Literal["strong", "weak"]
    processes: int
    batch_size: int
    samples_per_s: float | None
    speedup: float | None
    low: float | None
    high: float | None
    efficiency: float | None
    communication_s: float | None
    rounds: int
    reason: str | None


class PredictedScaling(TypedDict):
    """One number of processes as predicted."""

    mode: Literal["strong", "weak"]
    processes: int
    batch_size: int
    samples_per_s: float
    speedup: float
    efficiency: float
    step_s: float
    exchange_s: float
    exposed_s: float


class ScalingAssumptions(TypedDict):
    """What a prediction is based on."""

    bandwidth_bytes_per_s: float
    latency_s: float
    gradient_bytes: int | None
    overlap_share: float
    how: str


class ScalingAnswer(TypedDict):
    """The answer of `stepscope scale`."""

    measured: list[MeasuredScaling]
    predicted: list[PredictedScaling]
    assumed: ScalingAssumptions | None
    notes: list[str]
    answer: str
    path: str


# --- lab.json and answers of lab ------------------------------------------------------------------

# A cell of a lab's table: a setting, a figure, or a figure of every epoch.
LabValue: TypeAlias = SettingValue | list[float] | list[float | None]


class MissingPart(TypedDict):
    """Something that a lab asks for and could not have, and why."""

    name: str
    reason: str


class LabRequestRecord(TypedDict):
    """What was asked of a lab: settings as given, and how much of the sheet to run."""

    flags: dict[str, SettingValue]
    scale: float
    repeats: int | None


class LabPlanRecord(TypedDict):
    """How much of a sheet is run, and with which changes."""

    subject: str
    scale: float
    samples: int | None
    epochs: int
    repeats: int | None
    changed: dict[str, SettingValue]
    picked: dict[str, SettingValue]
    note: str | None


class LabFigures(LabPlanRecord):
    """The figures of a lab that has a sheet; the last three are each of one lab alone."""

    missing: list[MissingPart]
    rows: list[dict[str, LabValue]]
    curves: list[dict[str, LabValue]]
    store: NotRequired[dict[str, str]]
    workers: NotRequired[WorkersAnswer]
    scaling: NotRequired[ScalingAnswer]


class LabRecord(LabFigures):
    """`lab.json`; the figures are there once the lab is completed."""

    schema: int
    id: str
    kind: str
    lab: str
    started_unix_s: float
    status: str
    reason: str | None
    ask: LabRequestRecord
    directory: str
    answer: NotRequired[str]
    holds: NotRequired[bool]
    plots: NotRequired[list[str]]


class LabAnswer(LabFigures):
    """The answer of `stepscope lab NAME` for a lab that has a sheet."""

    lab: str
    question: str
    answer: str
    holds: bool
    published: str
    path: str
    plots: list[str]


class PhaseReading(TypedDict):
    """What the process took at the end of a phase, and the most meanwhile."""

    epoch: int
    step: int
    phase: str
    peak_bytes: int | None
    end_bytes: int | None
    in_use_bytes: int | None
    kept_bytes: int | None


class MemoryByPhase(TypedDict):
    """The readings of a phase: the most of the first step and of later ones, medians at its end."""

    phase: str
    times: int
    first_step_peak_bytes: int | None
    peak_bytes: int | None
    end_bytes: int | None
    in_use_bytes: int | None
    kept_bytes: int | None
    change_bytes: int | None


class FreedMemory(TypedDict):
    """A kind of memory, its bytes at the peak, and what frees it."""

    kind: str
    bytes: int
    when: str
    by: str


class MemoryRemedy(TypedDict):
    """A change that may lower the peak, and what it did; without figures where it was not tried."""

    name: str
    how: str
    applies: bool
    reason: str | None
    saved_bytes: int | None
    spread_bytes: NotRequired[int]
    differs: NotRequired[bool]
    step_time_ratio: NotRequired[float]
    step_time_spread: NotRequired[float]
    step_time_differs: NotRequired[bool]
    same_losses: NotRequired[bool]
    without_bytes: NotRequired[list[int]]
    with_bytes: NotRequired[list[int]]


class SecondEpochForecast(TypedDict):
    """What was forecast for a run before it began."""

    total_bytes: int | None
    without_workers_bytes: int | None
    workers: int | None
    workers_that_fit: int | None


class ForecastUnderLimit(TypedDict):
    """A forecast under a limit that holds the training, but not all its workers."""

    limit_bytes: int
    total_bytes: int
    workers: int
    workers_that_fit: int | None


# A key of it is the keyword `from`.
WorkersFallback = TypedDict(
    "WorkersFallback",
    {"epoch": int, "split": str, "batch": int, "from": int, "to": int, "reason": str},
)


class SecondEpochRun(TypedDict):
    """One of the two runs of the lab: without a limit, or under it."""

    status: str
    reason: str | None
    peak_memory_bytes: int | None
    wall_s: float | None
    steps: int
    samples_by_epoch: dict[int, int]
    test_accuracy: float | None
    fallbacks: list[WorkersFallback]


# --- answers: summary, accel ----------------------------------------------------------------------


class DesignProposal(TypedDict):
    """A network that a search proposed: as drawn, as settings of a run, and by its estimate."""

    drawn: dict[str, SettingValue]
    values: dict[str, SettingValue]
    figures: dict[str, float]
    fits: bool


class SearchPlan(SweepPlan):
    """What `stepscope search` was asked for."""

    named: list[str]
    budget: dict[str, float]
    spatial: str
    accelerator: str
    input: list[int]
    classes: int
    training_samples: int
    designs: int
    finals: int
    rungs: list[int]
    proposals: list[DesignProposal]
    at_once: NotRequired[int]


class SearchRecord(SearchPlan, SweepRecord):
    """`sweep.json` of a search."""


class SearchedDesign(TypedDict):
    """A design that was trained: its cost, its settings and its accuracy."""

    model: str
    energy_mj: float
    cycles: float
    peak_activation_bytes: float
    settings: dict[str, SettingValue]
    rung: int
    epochs: int
    status: str
    reason: str | None
    validation_accuracy: float | None
    test_accuracy: float | None
    run: str | None
    final_run: str | None
    final_status: str | None
    final_reason: str | None
    on_front: bool


class RejectedDesign(TypedDict):
    """A design above the budget; it was not trained."""

    model: str
    energy_mj: float
    cycles: float
    peak_activation_bytes: float


# --- answers: doctor, data ------------------------------------------------------------------------
