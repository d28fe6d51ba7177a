"""The types of everything that crosses a boundary: files, messages, answers.

All are plain JSON values. A key that may be missing is `NotRequired`; a figure that may be unknown
is `| None`. JSON Schemas are generated from these types (`tools/json_schemas.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, final

from typing_extensions import NotRequired, Required, TypedDict

# --- run.json: the record of a run ----------------------------------------------------------------

# The resolved settings of a run. Any version may have written them, so readers go by name.
RecordedSpec: TypeAlias = Mapping[str, Any]


class FolderRecord(TypedDict):
    """What the record of every folder has: a run's, a sweep's, a lab's."""

    schema: int
    id: str
    kind: str
    status: str
    reason: str | None
    started_unix_s: float | None


class ReadSettings(TypedDict, total=False):
    """The settings that reports read; the others of a run are shown as they are."""

    name: str | None
    model: str | None
    data: str | None
    device: str | None
    energy: str
    page_cache: str
    script: str | None
    module: str | None
    arguments: list[str]
    loader: LoaderArguments | None
    batch_size: int | None
    workers: int | None
    prefetch: int | None
    accumulate: int
    processes: int
    drop_epochs: int
    layers: int


class RunRecord(FolderRecord):
    """`run.json`. `summary` is empty until the run is closed.

    `exit_code` is a rank's, `choice` says how an experiment chose the settings of a trial.
    """

    name: str
    process: int | None
    spec: Annotated[RecordedSpec, ReadSettings]
    environment: Environment
    instrument: Instrument
    summary: Summary
    exit_code: NotRequired[int | None]
    choice: NotRequired[RecordedSpec]


class Instrument(TypedDict, total=False):
    """The clock, and what measuring cost."""

    clock: str
    clock_resolution_s: float
    lap_cost_s: float  # of our own loop
    event_cost_s: float  # of a traced script
    events_per_step: float | None
    overhead_per_step_s: float | None
    overhead_share: float | None
    beside_cpu_share: float | None  # of the sampling parent
    forked: bool
    origin_unix_s: float
    off_blocks: OffBlockCost | None


# --- run.json: environment and conditions of the machine ------------------------------------------


class Environment(TypedDict, total=False):
    """The machine, its conditions, and torch as the training found it."""

    hostname: str
    system: str
    machine: str
    python: str
    cpu: str | None
    cpus: int | None
    cpus_usable: int | None
    memory_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None
    swap_bytes: int
    swap_used_bytes: int
    conditions: MachineConditions
    torch: str
    threads: int
    device: str
    device_name: str | None
    cuda: str | None
    mkldnn: bool
    distributed: RankEnvironment


# The environment with the conditions on the same level; see `flat_environment`.
FlatEnvironment: TypeAlias = Mapping[str, "str | float | RankEnvironment | None"]


class RankEnvironment(TypedDict):
    rank: int
    processes: int
    host: str
    backend: str
    share: int
    differs_from_one_process: list[str]


class StartAndEnd(TypedDict):
    start: Any
    end: Any


class MachineConditions(TypedDict):
    """The state of the machine that comparable runs share; `absent` has reasons.

    `changed` is added at the end of the run.
    """

    board: str | None
    power_mode: str | None
    governor: str | None
    clocks: str | None
    memory_clock: str | None
    fan: str | None
    turbo: str | None
    swap: str | None
    clock_source: str | None
    temperature_c: StartAndEnd
    absent: dict[str, str]
    changed: NotRequired[dict[str, StartAndEnd]]


# --- run.json: summary ----------------------------------------------------------------------------


class StackTime(TypedDict):
    """The time of a line of a user script, from samples of its stack.

    `where` is a phase of its steps, or `preparation`, `evaluation`, `between epochs`, `shutdown`.
    `call` is the line in the function with the training loop that led to it, if it is another one,
    and `called` its text.
    """

    where: str
    activity: str | None
    line: str | None
    code: str | None
    call: NotRequired[str | None]
    called: NotRequired[str | None]
    total_s: float
    samples: int


class LoaderPart(TypedDict):
    """A part of the loader's work, from samples of its stack; `share` is that of all its work."""

    kind: str
    name: str
    line: str | None
    share: float
    samples: int


class SlowSample(TypedDict):
    index: int | str
    took_s: float


class LoaderFigures(TypedDict):
    """What the loader does, in all of its processes; times are those of one sample.

    `slow_share` is the share of the time of samples that take over eight times the median.
    """

    samples: int
    sample_s: float | None
    median_sample_s: float | None
    slow_share: float
    slow_samples: list[SlowSample]
    parts: list[LoaderPart]


class CheckpointFigures(TypedDict):
    """The calls of `torch.save`; `in_steps_s` is the time of those inside training epochs."""

    count: int
    total_s: float
    in_steps_s: float


class OptimizerSetup(TypedDict):
    """An optimiser of a user script; `tensors` is the number of tensors that it updates."""

    name: str
    tensors: int
    fused: bool | None
    foreach: bool | None


class StepOperations(TypedDict):
    """The operations of one step, forward and backward: those of torch that were called.

    `convolution_share` is that of the floating-point operations, `contiguous_share` the share of
    those in convolutions whose input and kernels are not in the channels_last format.
    """

    count: int
    convolution_share: float | None
    contiguous_share: float | None


class ScriptSetup(TypedDict):
    """How a user script computes: its model, optimisers and torch's settings.

    `dtype` is that of most parameters. `evaluation_with_gradients_s` is the time of evaluations
    that recorded gradients. `unused_gradients` counts the parameter tensors with gradients that no
    optimiser uses, `unused_gradients_share` is their share of all parameters, and
    `unused_gradients_first` says whether they come before all others.
    """

    threads: int
    parameters: int
    parameter_tensors: int
    unused_gradients: NotRequired[int]
    unused_gradients_share: NotRequired[float]
    unused_gradients_first: NotRequired[bool]
    dtype: str | None
    optimizers: list[OptimizerSetup]
    operations: StepOperations | None
    compiled: bool
    anomaly_detection: bool
    deterministic: bool
    cudnn_benchmark: bool
    evaluation_with_gradients_s: float


class Compilation(TypedDict):
    """One compilation by torch.compile; `reason` says why code was compiled again."""

    start_s: float
    took_s: float
    function: str
    line: str | None
    reason: str | None


class GraphBreak(TypedDict):
    """A place where torch.compile splits a graph."""

    reason: str
    line: str | None
    count: int


class CompileFigures(TypedDict):
    """What torch.compile did. `compilations` lists the first ones, the totals count all.

    `limit_reached`: some code was compiled so often that torch stopped compiling it.
    """

    count: int
    recompilations: int
    total_s: float
    recompilations_s: float
    limit_reached: bool
    compilations: list[Compilation]
    graph_breaks: list[GraphBreak]


class ScriptFigures(TypedDict, total=False):
    """What the tracer of a user script found besides its steps.

    `steps_inferred`: it has no optimiser of torch, so its updates were inferred.
    """

    stacks: list[StackTime] | None
    loader: LoaderFigures | None
    checkpoints: CheckpointFigures | None
    steps_inferred: bool
    script_setup: ScriptSetup | None
    compilation: CompileFigures | None


WallPart: TypeAlias = Literal[
    "imports",
    "preparation",
    "first batch",
    "training",
    "evaluation",
    "checkpoints",
    "gaps",
    "shutdown",
]


class WallSpan(TypedDict):
    part: Annotated[str, WallPart]
    start_s: float
    total_s: float


class Verdict(TypedDict):
    """The change to make and what it is expected to bring to the run's wall time.

    `cause` is a finding's name, or `none`.
    """

    text: str
    cause: str
    expected_speedup: float | None
    interval: Annotated[list[float], tuple[float, float]] | None
    command: str | None


class Summary(ScriptFigures, total=False):
    """The figures of a run; of one in progress some are missing. `absent` explains each None."""

    verdict: Verdict
    wall_time: list[WallSpan]

    epochs: int
    steps: int
    samples: int | None
    dropped_epochs: list[int]
    wall_s: float | None
    preparation_s: float | None
    samples_per_s: float | None
    accounted_share: float | None
    unattributed_share: float | None
    phases: Annotated[dict[str, PhaseTime], RecordedPhases] | None
    device: DeviceTime | None
    communication: PhaseTime | None
    off_blocks: OffBlockCost | None
    train_accuracy: float | None
    test_accuracy: float | None
    test_top5: float | None
    validation_accuracy: float | None
    peak_memory_bytes: int | None
    device_peak_memory_bytes: int | None
    layers: list[LayerTime] | None
    flops: StepFlops | None
    counters: PhaseCounters | None
    page_cache: ColdCache | None
    bad_samples: int | None
    requests: RequestLatency | None
    ranks: list[RankFigures]
    slowest_rank: dict[str, SlowestRank] | None
    flop_per_s: float | None
    share_of_peak: float | None
    roofline: Roofline | None
    memory_bill: MemoryBill | None
    energy: EnergyFigures | None
    energy_j: float | None
    throttling: ThrottlingFigures | None
    absent: dict[str, str]


class PhaseTime(TypedDict):
    """The time of a phase or another part of a step; only share and mean of a run in progress."""

    share: float
    mean_s: float
    total_s: NotRequired[float]
    median_s: NotRequired[float]
    p95_s: NotRequired[float]
    p99_s: NotRequired[float]


class HiddenTime(TypedDict):
    """The phase in which the host spends most time while the device is busy, and its line.

    `drained`: the device has mostly nothing left to do at its end, so the host waits for it there.
    """

    phase: str
    share: float
    drained: bool
    line: str | None
    code: str | None


class RecordedPhaseTime(PhaseTime):
    """The time of a phase in a record: all of its figures."""

    total_s: Required[float]  # type: ignore[misc]
    median_s: Required[float]  # type: ignore[misc]
    p95_s: Required[float]  # type: ignore[misc]
    p99_s: Required[float]  # type: ignore[misc]


class RecordedPhases(TypedDict):
    """The phases of a step in a record: all of them."""

    data: RecordedPhaseTime
    transfer: RecordedPhaseTime
    forward: RecordedPhaseTime
    backward: RecordedPhaseTime
    optimizer: RecordedPhaseTime
    other: RecordedPhaseTime


class RecordedDevicePhases(TypedDict):
    """The time of a device in a record: all phases that every version has."""

    idle: RecordedPhaseTime
    transfer: RecordedPhaseTime
    forward: RecordedPhaseTime
    backward: RecordedPhaseTime
    optimizer: RecordedPhaseTime
    other: NotRequired[RecordedPhaseTime]


class DeviceTime(TypedDict):
    """The time of an asynchronous device, by phase and `idle`.

    `bound_by` is `device`, `data`, `host` or `launch`. `waits` has the shares of the device's time
    in which it was idle, by what the host did: waiting for `data`, other work, launching.
    """

    phases: Annotated[dict[str, PhaseTime], RecordedDevicePhases]
    issue_s: float
    bound_by: str | None
    waits: dict[str, float] | None
    hidden: HiddenTime | None


class OffBlockCost(TypedDict):
    """The cost of measuring, by blocks of steps without it."""

    blocks: int
    overhead_per_step_s: float
    low_s: float
    high_s: float
    overhead_share: float


class LayerTime(TypedDict):
    """Time and work of a layer, as means over the steps in which layers were timed."""

    name: str
    kind: str
    calls: float
    forward_s: float
    backward_s: float
    multiply_adds: float | None
    bytes: float


class WorkByPhase(TypedDict):
    """Operations or bytes of the computing phases of a step."""

    forward: int
    backward: int


class StepFlops(WorkByPhase):
    """The floating-point operations of a step of full batches, or of one that was counted.

    In a user script `per_sample` is None if the samples of a step are unknown, and the bytes are
    not estimated. `precision` is that of most of the operations.
    """

    per_sample: float | None
    counted: str
    estimated_bytes: WorkByPhase | None
    precision: NotRequired[str]


class PhaseCounters(TypedDict):
    """Counts of the processor per step, by phase and counter."""

    steps: int
    phases: dict[str, dict[str, float | None]]
    absent: dict[str, str]


class EvictedFiles(TypedDict):
    """How files were dropped from the page cache, and the share of them that was gone then.

    `how` is None if this system offers no way, `cold_share` if it is unknown. `reason` explains
    this, and why files were only advised out.
    """

    how: str | None
    files: int
    bytes: int
    cold_share: float | None
    reason: str | None


class ColdCache(EvictedFiles):
    """How files were dropped before an epoch."""

    epoch: int


class RequestLatency(TypedDict):
    """Requests to an object store, and how long they took."""

    count: int
    retries: int
    bytes: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


class RankFigures(TypedDict):
    """The figures of a rank; `own_s` has its phases without communication."""

    rank: int
    host: str | None
    status: str
    share: int | None
    steps: int | None
    samples: int | None
    accounted_share: float | None
    phases: dict[str, PhaseTime] | None
    communication: PhaseTime | None
    peak_memory_bytes: int | None
    own_s: dict[str, float] | None


class SlowestRank(TypedDict):
    rank: int
    host: str | None
    mean_s: float
    others_mean_s: float


class PeakConditions(TypedDict):
    """The conditions that measurements of one peak share; `threads` only for a CPU."""

    cpu: str | None
    cpus_usable: int | None
    highest_mhz: float | None
    torch: str
    device: str
    device_name: str | None
    precision: str
    threads: int | None


class PeakRecord(TypedDict):
    """The peak rates of a machine: the best of several blocks.

    `pressure_cpu` is the percentage of the 10 s before in which a task waited for a CPU, and
    `cpu_mhz` the clock right after, where known.
    """

    conditions: PeakConditions
    flop_per_s: float
    bytes_per_s: float
    matrix_size: int
    array_bytes: int
    pressure_cpu: float | None
    cpu_mhz: float | None
    measured_unix_s: float


class RooflinePhase(TypedDict):
    flop: int
    estimated_bytes: int
    flop_per_byte: float
    flop_per_s: float | None
    roof_flop_per_s: float | None
    share_of_roof: float | None


class Roofline(TypedDict):
    """The computing phases beside the peak of the machine."""

    peak: PeakRecord | None
    phases: dict[str, RooflinePhase]


# --- summary: memory forecast and bill ------------------------------------------------------------


class BillItem(TypedDict):
    """An item of the memory bill, and how its size was determined."""

    bytes: int
    how: str
    note: str
    pool: str
    measured_bytes: NotRequired[int | None]  # of a run that has ended


class PoolLimit(TypedDict):
    """The limit of a pool, its origin, and the bytes that the run needs of it."""

    of: str
    bytes: int
    needed_bytes: int


class PhaseBytes(TypedDict):
    peak_bytes: int
    end_bytes: int


class RemedyRecord(TypedDict):
    """Settings with which the run would take less memory."""

    settings: RecordedSpec
    total_bytes: int
    pool: str
    pool_bytes: int
    fits: bool


class MemoryForecast(TypedDict, total=False):
    """The memory of a run before it starts; only the `reason` if there is no forecast."""

    reason: str | None
    items: dict[str, BillItem]
    total_bytes: int
    limit_bytes: int
    limit_of: str
    limit_pool: str
    limits: dict[str, PoolLimit]
    fits: bool
    peak_phase: str
    at_peak: dict[str, int]
    phases: dict[str, PhaseBytes]
    remedies: list[RemedyRecord]
    remedies_reason: str | None
    workers: int
    workers_that_fit: int | None


class PoolUse(TypedDict):
    """The forecast of a pool beside its measured peak."""

    total_bytes: int
    peak_bytes: int | None
    error_share: NotRequired[float]
    unexplained_bytes: NotRequired[int]
    unexplained_share: NotRequired[float]


class MemoryBill(MemoryForecast, total=False):
    """The forecast of a run beside its measured peaks."""

    pools: dict[str, PoolUse]
    peak_memory_bytes: int | None
    error_share: float
    unexplained_bytes: int
    unexplained_share: float


# --- summary: energy, throttling ------------------------------------------------------------------


class EnergySensorFigures(TypedDict):
    name: str
    domain: str
    kind: str
    period_s: float | None
    refresh_s: float | None
    readings: int
    from_s: float
    to_s: float


class EnergySensorFailure(TypedDict):
    time_s: float
    sensor: str
    domain: str
    reason: str


class PhaseEnergy(TypedDict):
    """The joules of a phase, with the method, or the reason for none."""

    joules: float | None
    how: str | None
    interval: Annotated[list[float], tuple[float, float]] | None
    reason: str | None


class EpochEnergy(TypedDict):
    epoch: int
    split: str
    joules: float | None


class EnergyUse(TypedDict):
    """The energy of a domain, or of several together."""

    joules: float
    covered_s: float
    bridged_s: float
    mean_w: float
    period_s: float | None
    epochs: list[EpochEnergy]


class DomainEnergy(EnergyUse):
    sensor: str
    idle_w: float | None


class EnergyFigures(TypedDict):
    """The energy of a run. `joules` is None where the domains cannot be added up."""

    joules: float | None
    sensors: list[EnergySensorFigures]
    refused: dict[str, str]
    failed: list[EnergySensorFailure]
    covers: list[str]
    leaves_out: list[str]
    idle_w: float | None
    domains: dict[str, DomainEnergy]
    covered_s: NotRequired[float]
    bridged_s: NotRequired[float]
    mean_w: NotRequired[float]
    period_s: NotRequired[float | None]
    epochs: NotRequired[list[EpochEnergy]]
    phases: NotRequired[dict[str, PhaseEnergy] | None]
    above_idle_j: NotRequired[float | None]
    samples_per_j: NotRequired[float | None]
    accuracy_per_j: NotRequired[float | None]
    accuracy_per_s: NotRequired[float | None]


class ThrottledRange(TypedDict):
    epoch: int
    first_step: int
    last_step: int


class SlowdownFigures(TypedDict):
    """Medians of throttled steps and of the others, and their ratio with its interval."""

    median_s: float
    others_median_s: float
    ratio: float
    low: float | None
    high: float | None


class ThrottlingFigures(TypedDict):
    """How much of a run was throttled, and what that cost."""

    watched: list[str]
    steps: int
    share_of_steps: float
    share_of_time: float | None
    ranges: list[ThrottledRange]
    more_ranges: int
    slowdown: SlowdownFigures | None


# --- epochs.csv -----------------------------------------------------------------------------------


class EpochRow(TypedDict):
    """A row of `epochs.csv`: an epoch of a split. Its columns, to which more may be appended."""

    epoch: int
    split: str
    start_s: float
    loader_start_s: float
    loader_stop_s: float
    loading_s: float
    training_s: float
    total_s: float
    loss: float | None
    accuracy: float | None
    top5: float | None
    samples: int | None
    samples_per_s: float | None


# --- events.jsonl ---------------------------------------------------------------------------------


class _Timed(TypedDict):
    time_s: float


_Fallback = TypedDict(
    "_Fallback",
    {"from": int, "to": int, "split": str, "epoch": int, "batch": int, "reason": str},
)
_MaybeFromTo = TypedDict("_MaybeFromTo", {"from": float | None, "to": float | None}, total=False)


class OtherEvent(_Timed):
    """An event of any kind: another version may write more."""

    event: str


class ResumeEvent(_Timed):
    """The run was resumed; `after` is how it had ended."""

    event: Literal["resume"]
    after: str


class FaultEvent(_Timed):
    event: Literal["fault"]
    traceback: str


class PeerLostEvent(_Timed):
    """A rank ended because another one had."""

    event: Literal["peer_lost"]
    reason: NotRequired[str]


class ProcessesEvent(_Timed):
    """The run was resumed in another number of processes."""

    event: Literal["processes"]
    before: int
    now: int


class CheckpointEvent(_Timed):
    event: Literal["checkpoint"]
    stage: int
    step: int
    took_s: float


class WentBackEvent(_Timed):
    """A checkpoint was left out on resume: it is damaged, or rows from before it are missing."""

    event: Literal["went_back"]
    reason: str


class PageCacheEvent(_Timed, ColdCache):
    """Files were dropped from the page cache before an epoch."""

    event: Literal["page_cache"]


class WorkersFallbackEvent(_Timed, _Fallback):
    event: Literal["workers_fallback"]


class BadSampleEvent(_Timed):
    event: Literal["bad_sample"]
    path: str
    reason: str


class LoadedTensors(TypedDict):
    """Pretrained weights that were loaded; `fresh` names the tensors that were not."""

    tensors: int
    fresh: list[str]
    has_vocabulary: bool


class WeightsEvent(_Timed, LoadedTensors):
    event: Literal["weights"]


class RequestsRetriedEvent(_Timed):
    event: Literal["requests_retried"]
    split: str
    retries: int
    waited_s: float
    reasons: dict[str, int]


class MemoryLimitEvent(_Timed):
    event: Literal["memory_limit"]
    limit_bytes: int
    held_by: str
    reason: str | None


class MemoryGuardEvent(_Timed):
    event: Literal["memory_guard"]
    action: str
    used_bytes: int
    limit_bytes: int | None
    available_bytes: int | None
    workers: int


class LoaderArguments(TypedDict, total=False):
    """The arguments of a `DataLoader` that stepscope reads or sets."""

    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool


class LoaderRecord(TypedDict):
    """A `DataLoader` of a user script, as found and as set by stepscope."""

    data_set: str
    samples: int | None
    shuffles: bool | None
    batches_by: str
    found: LoaderArguments
    set: LoaderArguments
    refused: dict[str, str]
    warning: str | None


class LoaderEvent(_Timed, LoaderRecord):
    event: Literal["loader"]


class BatchEvent(_Timed):
    """The size of a batch of a user script."""

    event: Literal["batch"]
    bytes: int


class TorchReadyEvent(_Timed):
    event: Literal["torch_ready"]


class LeftBehindEvent(_Timed):
    """Files of a run stayed on the machine that ran it."""

    event: Literal["left_behind"]
    node: str
    files: list[str]


EVERYTHING = "*"  # a domain within that of a sensor: all others of the machine


class EnergySensor(TypedDict):
    """An energy sensor; `contains` has the domains within its own."""

    name: str
    domain: str
    kind: str
    contains: list[str]
    range_j: float | None
    addable: bool


class EnergySensorsEvent(_Timed):
    """The energy sensors of the machine were looked for."""

    event: Literal["energy_sensors"]
    sensors: list[EnergySensor]
    refused: dict[str, str]
    reason: str | None


class EnergyIdleEvent(_Timed):
    """The sensors were read while the machine was idle: pairs of time and value, by sensor."""

    event: Literal["energy_idle"]
    readings: dict[str, list[tuple[float, float]]]
    refresh_s: NotRequired[dict[str, float | None]]


class EnergySensorFailedEvent(EnergySensorFailure):
    event: Literal["energy_sensor_failed"]


class ThrottlingWatchedEvent(_Timed):
    """The sources that are watched for throttling."""

    event: Literal["throttling_watched"]
    what: list[str]


class ThrottlingEvent(_Timed, _MaybeFromTo):
    """Throttling began."""

    event: Literal["throttling"]
    what: str
    unit: NotRequired[str]
    limit: NotRequired[float]
    zone: NotRequired[str]
    reasons: NotRequired[str]


class ThrottlingEndedEvent(_Timed):
    event: Literal["throttling_ended"]
    what: str
    lasted_s: float


class StackFrame(TypedDict):
    """A line that a thread is in; `code` is its text, None if the file cannot be read."""

    file: str
    line: int
    function: str
    code: str | None


class ThreadStack(TypedDict):
    """The Python stack of a thread, the innermost frame first, and what it waits for."""

    name: str | None
    waits_for: str | None
    frames: list[StackFrame]


class KernelWait(TypedDict):
    """Threads of a process that wait in the same place, as Linux tells.

    `state` is that of `ps`, `call` the system call, `target` its file, `function` the kernel's, and
    `stack` those of the main thread; None if this machine does not tell.
    """

    thread: str
    threads: int
    state: str
    waits_for: str | None
    call: str | None
    target: str | None
    function: str | None
    stack: list[str] | None


class HangingProcess(TypedDict):
    """A process of a run that hangs; `no_stacks` is the reason if it has no `threads`."""

    pid: int
    role: str
    command: str
    state: str | None
    waits_for: str | None
    threads: list[ThreadStack]
    no_stacks: str | None
    kernel: list[KernelWait]


class HangEvent(_Timed):
    """No step was completed for long; `is_busy`: the processes used CPU time meanwhile."""

    event: Literal["hang"]
    silent_s: float
    median_step_s: float | None
    is_busy: bool
    waits_for: str | None
    text: str
    advice: str
    action: Literal["warn", "stop"]
    processes: list[HangingProcess]


class HangEndedEvent(_Timed):
    """The run continued after a hang."""

    event: Literal["hang_ended"]
    lasted_s: float


_TrainingEvent: TypeAlias = (
    ResumeEvent | FaultEvent | PeerLostEvent | ProcessesEvent | CheckpointEvent | WeightsEvent
)
_DataEvent: TypeAlias = (
    PageCacheEvent
    | WentBackEvent
    | WorkersFallbackEvent
    | BadSampleEvent
    | RequestsRetriedEvent
    | LeftBehindEvent
)
_ScriptEvent: TypeAlias = LoaderEvent | BatchEvent | TorchReadyEvent
_MemoryEvent: TypeAlias = MemoryLimitEvent | MemoryGuardEvent
_HangEvent: TypeAlias = HangEvent | HangEndedEvent
_EnergyEvent: TypeAlias = EnergySensorsEvent | EnergyIdleEvent | EnergySensorFailedEvent
_ThrottlingEvent: TypeAlias = ThrottlingWatchedEvent | ThrottlingEvent | ThrottlingEndedEvent
RunEvent: TypeAlias = (
    _TrainingEvent
    | _DataEvent
    | _ScriptEvent
    | _MemoryEvent
    | _HangEvent
    | _EnergyEvent
    | _ThrottlingEvent
)


# --- messages between processes -------------------------------------------------------------------


class ScriptTraceRequest(TypedDict):
    """What the parent asks of the tracer in a script's process, in `STEPSCOPE_TRACE`.

    `loader` holds settings for the loaders that the script creates. With `is_trial` the process
    exits after its steps, whatever the script would do next: its result is not worth saving. With
    `through_prefetch` it makes at least one step more than the workers have batches ready. With
    `dumps_stacks` the process writes its stacks on a signal, for when it hangs.
    """

    folder: str
    messages: int
    parent: int
    origin_ns: int
    max_steps: int | None
    layers: int
    loader: LoaderArguments
    is_trial: bool
    through_prefetch: bool
    dumps_stacks: bool


class ForecastMessage(TypedDict):
    type: Literal["forecast"]
    forecast: MemoryForecast


class WeightsMessage(LoadedTensors):
    type: Literal["weights"]


class DownloadMessage(TypedDict):
    type: Literal["download"]
    split: str
    done_bytes: int
    total_bytes: int
    left_s: float | None


class ReadyMessage(TypedDict):
    """The training starts. A traced script sends its environment alone."""

    type: Literal["ready"]
    environment: Environment
    spec: NotRequired[RecordedSpec]
    preparation_s: NotRequired[float]


class ProgressMessage(TypedDict):
    """How far a training is; `done` is the share of all its steps."""

    type: Literal["progress"]
    split: str
    epoch: int
    epochs: int
    step: int
    steps: int
    done: float
    steps_left: int
    step_s: float | None
    loss: float | None
    accuracy: float | None
    samples_per_s: float | None
    data_share: float | None


class SamplerResult(TypedDict):
    """What the process that samples a watched program says at its end."""

    peak_memory_bytes: int | None
    beside_cpu_share: float


class DeviceMemoryMessage(TypedDict):
    """The memory in use on the device; `unified` memory is the host's too."""

    type: Literal["device_memory"]
    bytes: int
    unified: bool


class EvaluationMessage(TypedDict):
    type: Literal["testing"]
    epoch: int


class EpochMessage(TypedDict):
    """The row of an epoch, as written to `epochs.csv`; the parent shows these figures of it."""

    type: Literal["epoch"]
    epoch: str
    split: str
    total_s: str
    loss: str
    accuracy: str
    top5: str


class WorkersMessage(_Fallback):
    type: Literal["workers"]


class DeviceMemoryPeak(TypedDict):
    """The peak of a device's memory, and the part of it that driver and libraries hold."""

    peak_bytes: int
    context_bytes: NotRequired[int]


class TrainingResult(TypedDict, total=False):
    """The figures that a training reports at its end; `absent` has reasons for missing ones."""

    instrument: Instrument
    layers: list[LayerTime] | None
    flops: StepFlops | None
    counters: PhaseCounters | None
    absent: dict[str, str]
    measured_bytes: dict[str, int]
    device_memory: DeviceMemoryPeak | None
    requests: RequestLatency | None
    script: ScriptFigures


class OutcomeMessage(TypedDict):
    """How a training ended, and its result. The last message."""

    type: Literal["outcome"]
    status: str
    reason: str | None
    exit_code: int
    traceback: str | None
    result: TrainingResult
    main_peak_bytes: int | None


class TraceOutcome(TrainingResult, total=False):
    """What a tracer knows when the script ends; nothing if the script never imported torch.

    `failure`, `exit_code` and `traceback` say why the script could not be traced to its end.
    """

    failure: str
    exit_code: int
    traceback: str
    steps: int
    environment: Environment


class ScriptFinalState(TraceOutcome, total=False):
    """The last message of a script's process; `raised` is the exception that ended the script."""

    type: Required[Literal["final_state"]]
    raised: str | None


RunMessage: TypeAlias = (
    ForecastMessage
    | WeightsMessage
    | DownloadMessage
    | ReadyMessage
    | ProgressMessage
    | DeviceMemoryMessage
    | EvaluationMessage
    | EpochMessage
    | WorkersMessage
    | OutcomeMessage
    | ScriptFinalState
)


class ForkRequest(TypedDict):
    """A module that the fork server is to run, as with `python -m`."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    descriptors: list[int]
    cgroup: str | None


class ForkAnswer(TypedDict, total=False):
    """The fork server is ready, has forked a process, or cannot work."""

    private_bytes: int
    pid: int
    error: str


class PeakRequest(TypedDict):
    matrix_sizes: list[int]
    array_bytes: int


class BenchmarkedPeak(TypedDict):
    """The peak of one precision and number of threads."""

    environment: Environment
    precision: str
    flop_per_s: float
    matrix_size: int
    bytes_per_s: float


class PeakAnswer(TypedDict):
    """The measured peaks, and the reasons for missing ones."""

    peaks: list[BenchmarkedPeak]
    left_out: dict[str, str]


class MemoryTrialOptions(TypedDict, total=False):
    """The length of a memory trial, and its differences from the training loop."""

    steps: int
    epochs: int
    phases: bool
    step_in_backward: bool
    drop_early: bool
    trim: bool


class MemoryTrialRequest(TypedDict):
    spec: RecordedSpec
    options: MemoryTrialOptions


# --- answers: trace and run, compare, report ------------------------------------------------------


class RunAnswer(RunRecord):
    """`run.json` and its folder: the answer of `run`, `resume` and `trace`."""

    path: str


class ExportAnswer(TypedDict):
    """The answer of `stepscope export`: the file or folder, and how much is in it."""

    path: str
    events: NotRequired[int]
    rows: NotRequired[int]


class ServeAnswer(TypedDict):
    """The answer of `stepscope serve`, before it serves."""

    url: str
    folder: str


class ErrorAnswer(TypedDict):
    error: str
    exit_code: int


class Difference(TypedDict):
    """A setting or a condition in which two sides of a comparison differ; a list if it varies."""

    baseline: Any
    other: Any


class WhatIfAnswer(TypedDict):
    """What a change is expected to bring, in `report --what-if`; ratios of the whole run."""

    change: str
    speedup: float
    interval: list[float]
    step_s: float
    wall_s: float


class FindingRecord(TypedDict):
    """A finding on a run; `weight` ranks findings."""

    name: str
    text: str
    evidence: list[str]
    command: str | None
    weight: float
    saves_s: float | None
    change: str | None


class ComparedFigures(TypedDict):
    """One side of a comparison: medians over its runs."""

    name: str
    runs: int
    samples_per_s: RateInterval | None
    step_s: float | None
    phases: dict[str, float] | None
    peak_memory_bytes: float | None
    test_accuracy: float | None
    warnings: list[str]


class RatioRecord(TypedDict):
    """A multiple of the baseline's throughput, with its interval."""

    ratio: float
    low: float | None
    high: float | None
    rounds: int | None
    noise: float | None


class ComparedSide(ComparedFigures):
    """A side against the baseline; differences are by setting or condition."""

    ratio: RatioRecord | None
    verdict: str
    changed: Mapping[str, Difference]
    environment_differs: Mapping[str, Difference]
    rounds_needed_for_5_percent: tuple[int, int | None] | None


class SlowdownCheck(TypedDict):
    """The sides by whether they are slower than `--fail-if-slower` permits, and why."""

    most_slowdown: float
    slower: list[str]
    not_slower: list[str]
    cannot_tell: list[str]
    messages: list[str]


class CompareAnswer(TypedDict):
    verdict: Verdict
    baseline: ComparedFigures
    others: list[ComparedSide]
    confidence: float
    confidence_of_each: float
    rounds: int | None
    offer: str | None
    fail_if_slower: SlowdownCheck | None


class GroupFigures(TypedDict):
    """The figures of several runs, or of the settings of a sweep."""

    groups: list[GroupRow]


class SearchFigures(TypedDict):
    designs: list[SearchedDesign]
    rejected: list[RejectedDesign]
    budget: dict[str, float]


class ReportAnswer(TypedDict):
    """The answer of `stepscope report`; `page` and `charts` are the files that were written."""

    title: str
    verdict: list[str]
    findings: list[FindingRecord]
    figures: Summary | GroupFigures | SearchFigures
    page: str | None
    charts: list[str]


# --- sweep.json, trials and answers of sweep ------------------------------------------------------

# The value of a setting, as JSON has it.
SettingValue: TypeAlias = bool | int | float | str | list[int] | None
# The settings in which a trial differs from the others, by name.
Setting: TypeAlias = dict[str, SettingValue]


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


class TrialMetrics(TypedDict, total=False):
    """The figures of one trial that settings are compared by; empty if nothing was recorded.

    A trial is `disturbed` if other programs took CPU time that it could have used.
    """

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
    page_cache: ColdCache | None
    swap_used_bytes: int | None
    workers_lost: int
    read_bytes_per_s: float | None
    pressure_cpu: float | None
    pressure_io: float | None
    others_cpu_share: float | None
    disturbed: bool | None
    worker_bytes: int | None


class TrialRecord(TypedDict):
    index: int
    values: Setting
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
    loader: Setting | None
    energy: str
    hang_after_s: float
    on_hang: str


class WorkloadRecord(TypedDict):
    """What a sweep runs again and again: our training, or a user's script."""

    spec: Setting | None
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
    allreduce_s: float | None
    reason: str | None


class ScaleRecord(TypedDict):
    batch_size: int
    processes: list[int]
    predict: list[int]
    bandwidth_bytes_per_s: float | None
    latency_s: float | None
    exchanges: list[ExchangeTime]


class DesignProposal(TypedDict):
    """A network that a search proposed: as drawn, as settings of a run, and by its estimate."""

    drawn: Setting
    values: Setting
    figures: dict[str, float]
    fits: bool


class SearchPlan(TypedDict, total=False):
    """What `stepscope accel search` adds to the plan of a sweep."""

    named: list[str]
    budget: dict[str, float]
    spatial: str
    accelerator: str
    input: list[int]
    classes: int
    training_samples: int
    design_count: int
    finals: int
    rungs: list[int]
    proposals: list[DesignProposal]
    at_once: int


class ScalePlan(TypedDict, total=False):
    """What `stepscope scale` adds to the plan of a sweep."""

    scale: ScaleRecord


class SweepPlan(WorkloadRecord, SearchPlan, ScalePlan):
    """What a sweep was asked for; a search for workers has no settings planned beforehand."""

    over: Mapping[str, Sequence[SettingValue]] | None
    directory: NotRequired[str]
    settings: NotRequired[list[Setting]]
    repeats: NotRequired[int]
    seed: NotRequired[int]
    time_limit_s: NotRequired[float | None]
    on: NotRequired[RunnerPlace | None]


class SweepRecord(FolderRecord, SweepPlan):
    """`sweep.json`: the plan of a sweep and its trials."""

    name: str
    process: int | None
    trials: list[TrialRecord]


class RoundFigures(TypedDict):
    """The figures of a setting over its rounds, or of several runs alike."""

    runs: int
    completed: int
    samples_per_s: RateInterval
    step_s: float | None
    data_share: float | None
    peak_memory_bytes: float | None
    test_accuracy: float | None


class SweepRow(RoundFigures):
    values: Setting
    validation_accuracy: float | None


class GroupRow(RoundFigures):
    """A group of runs in a report; of a sweep, one of its settings."""

    name: str
    values: NotRequired[Setting]
    validation_accuracy: NotRequired[float | None]


class SweepAnswer(SweepRecord):
    """The record of a sweep with its rows; `verdict` is None with one setting."""

    verdict: Verdict | None
    rows: list[SweepRow]
    path: str


# --- answers: workers, max-batch, bottleneck, scale -----------------------------------------------


class WorkerCandidate(TypedDict):
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
    """The number of workers that was picked against the current one, in fresh rounds."""

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
    by_steps: int | None


class WorkersAnswer(TypedDict):
    """How many loader workers; `change` is what to write where in a script."""

    recommended: int
    recommended_threads: int | None
    current: int
    decided: bool
    why: str
    text: str
    change: str | None
    bound_by: str
    bound_by_why: str
    bound_by_with_recommended: str
    candidates: list[WorkerCandidate]
    verified_speedup: float | None
    verified: VerifiedSpeedup
    disturbed_rounds: int
    bounds: WorkerBounds
    of_script: bool
    warnings: list[str]
    steps_an_epoch: int | None
    measured_steps: int
    cost_s: float
    path: str


class BatchTrialRecord(TypedDict):
    batch_size: int
    accumulate: int
    checkpoint_activations: bool
    forecast_bytes: int | None
    peak_memory_bytes: int | None
    status: str
    reason: str | None
    fits: bool


class BatchSettings(TypedDict):
    """The batch and other settings of a trial; a batch of None is the script's own."""

    batch_size: int | None
    accumulate: NotRequired[int]
    checkpoint_activations: NotRequired[bool]


class BatchRecommendation(TypedDict):
    settings: BatchSettings
    peak_memory_bytes: int | None
    tested: bool


class AskedBatch(TypedDict):
    """The batch that was asked for, and whether it fits; None where that is unknown."""

    batch_size: int
    fits: bool | None


class MaxBatchAnswer(TypedDict):
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
    preprocessing: float
    fetching: float
    contention: float


class PossibleSpeedups(TypedDict):
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

    settings: Setting
    samples_per_s: RateInterval
    runs: int


class BottleneckAnswer(StallsSummary):
    lost_by_round: list[LostShares]
    workers: int
    ways: dict[Literal["synthetic", "memory", "source"], WayFigures]
    page_cache: ColdCache | None
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
    mode: Literal["strong", "weak"]
    processes: int
    batch_size: int
    samples_per_s: float
    speedup: float
    efficiency: float
    step_s: float
    allreduce_s: float
    blocking_s: float


class ScalingAssumptions(TypedDict):
    bandwidth_bytes_per_s: float
    latency_s: float
    gradient_bytes: int | None
    overlap_share: float
    how: str


class ScalingAnswer(TypedDict):
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


class LabPlot(TypedDict):
    """A plot of a sheet: what is drawn of its rows, or of its curves by epoch."""

    name: str
    graph_of: NotRequired[str]
    title: NotRequired[str]
    kind: NotRequired[Literal["lines", "bars", "stacked", "points", "scatter"]]
    rows: NotRequired[Literal["rows", "curves"]]
    x: NotRequired[str]
    x_title: NotRequired[str]
    y: NotRequired[str]
    y_title: NotRequired[str]
    y_times: NotRequired[float]
    y_over: NotRequired[str]
    parts: NotRequired[list[str]]
    series: NotRequired[str]
    panel: NotRequired[str]


class LabRequestRecord(TypedDict):
    flags: Setting
    scale: float
    repeats: int | None


class LabPlanRecord(TypedDict):
    """How much of a sheet is run, and with which changes."""

    subject: str
    scale: float
    samples: int | None
    epochs: int
    repeats: int | None
    changed: Setting
    picked: Setting
    note: str | None


class LabExtras(TypedDict, total=False):
    """What single labs add to the record, or replace in it."""

    subject: str
    note: str | None
    store: dict[str, str]
    workers: WorkersAnswer
    scaling: ScalingAnswer


class LabFigures(LabPlanRecord):
    """The figures of a lab that has a sheet; the last three are each of one lab alone."""

    missing: list[MissingPart]
    rows: list[dict[str, LabValue]]
    curves: list[dict[str, LabValue]]
    store: NotRequired[dict[str, str]]
    workers: NotRequired[WorkersAnswer]
    scaling: NotRequired[ScalingAnswer]


class LabRecord(FolderRecord, LabPlanRecord):
    """`lab.json` of a lab that has begun; `LabFigures` and the rest come when it is completed."""

    lab: str
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


class LabDescription(TypedDict):
    name: str
    about: str


class LabsAnswer(TypedDict):
    """The answer of `stepscope lab` without a name."""

    labs: list[LabDescription]


class PhaseReading(TypedDict):
    """What the process took at the end of a phase, and the most meanwhile."""

    epoch: int
    step: int
    phase: str
    peak_bytes: int | None
    end_bytes: int | None
    in_use_bytes: int | None
    kept_bytes: int | None


class MemoryTrialFigures(TypedDict):
    """The measurements of a few training steps: readings by phase, or the peak and the times."""

    phases: list[PhaseReading]
    peak_bytes: int | None
    workers_bytes: int
    step_s: list[float]
    losses: list[float]


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
    saved_interval_bytes: NotRequired[list[int] | None]
    differs: NotRequired[bool]
    step_time_ratio: NotRequired[float]
    step_time_interval: NotRequired[list[float] | None]
    step_time_differs: NotRequired[bool]
    same_losses: NotRequired[bool]
    without_bytes: NotRequired[list[int]]
    with_bytes: NotRequired[list[int]]


class MemoryLabAnswer(TypedDict):
    lab: Literal["memory"]
    answer: str
    holds: bool
    spec: RecordedSpec
    bill: MemoryBill
    phases: list[MemoryByPhase]
    peak_phase: str | None
    readings: list[PhaseReading]
    freed: list[FreedMemory]
    remedies: list[MemoryRemedy]
    orders: list[list[str]]


class SecondEpochForecast(TypedDict):
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


class SecondEpochRun(TypedDict):
    """One of the two runs of the lab: without a limit, or under it."""

    status: str
    reason: str | None
    peak_memory_bytes: int | None
    wall_s: float | None
    steps: int
    samples_by_epoch: dict[int, int]
    test_accuracy: float | None
    fallbacks: list[dict[str, int | str]]


class SecondEpochAnswer(TypedDict):
    lab: Literal["second-epoch"]
    answer: str
    holds: bool
    spec: RecordedSpec
    training_samples: int
    limit_bytes: int
    limit_from: str
    forecast: SecondEpochForecast
    forewarned: ForecastUnderLimit
    without_limit: SecondEpochRun
    with_limit: SecondEpochRun
    events: list[RunEvent]
    workers_ended_by_guard: int
    workers_ended_by_hand: int
    same_steps: bool
    same_losses: bool


# --- answers: memory, summary, accel --------------------------------------------------------------


class MemoryAnswer(MemoryForecast, total=False):
    """The answer of `stepscope memory`; `spec` has the settings as they were resolved."""

    model: str
    batch_size: int
    spec: RecordedSpec


class LayerCounts(TypedDict):
    """One module of a network; multiply-adds that are unknown are None."""

    name: str
    kind: str
    calls: int
    output_shape: list[int] | None
    parameters: int
    macs: int | None
    kept_bytes: int


class OptimizerCounts(TypedDict):
    """The state of an optimiser: values per parameter, and the total size."""

    values_per_parameter: float
    bytes: int


class NetworkCounts(TypedDict):
    """The counts of a network, for one sample; `not_counted` describes what they exclude."""

    parameters: int
    trainable_parameters: int
    gradients: int
    convolutions: int
    last_layer: str | None
    last_layer_input: list[int] | None
    macs: int
    kept_bytes: int
    input_mb: float
    forward_backward_mb: float
    parameters_mb: float
    total_mb: float
    layers: list[LayerCounts]
    not_counted: list[str]


class NetworkAnswer(NetworkCounts):
    """`stepscope summary`."""

    model: str
    input: list[int]
    norm: str
    classes: int
    optimizer_state: dict[str, OptimizerCounts]


class ArrayWidths(TypedDict):
    """How many PEs the channels of a layer spread over."""

    M: int
    C: int


class LayerFigures(TypedDict):
    """The best mapping of a layer on an accelerator."""

    layer: dict[str, int]
    energy_uj: float
    cycles: int
    utilization: float
    energy_uj_by_level: dict[str, float]
    spatial: ArrayWidths
    kept_in_buffer: list[str]
    mapping: list[str]
    validated: bool
    evaluated: int
    space: int


@final
class LayerEstimate(LayerFigures):
    """`stepscope accel estimate --layer`."""

    design: str
    energy_mj: float


class NetworkLayer(LayerFigures):
    name: str
    kind: str


@final
class NetworkEstimate(TypedDict):
    """`stepscope accel estimate MODEL`."""

    model: str
    input: list[int]
    design: str
    energy_mj: float
    cycles: int
    peak_activation_bytes: int
    peak_activation_at: str
    layers: list[NetworkLayer]
    costs_nothing: dict[str, int]
    not_estimated: list[str]
    not_validated: list[str]


class DesignCosts(TypedDict):
    """What one inference of a design takes on the accelerator."""

    energy_mj: float
    cycles: float
    peak_activation_bytes: float


class ScoreFigures(DesignCosts):
    """The figures that points are given for."""

    accuracy: float


class ScoreAnswer(ScoreFigures):
    points: int
    by_part: dict[str, int]
    limits_exceeded: list[str]
    rules_broken: list[str]
    unknown: list[str]


class SearchedDesign(DesignCosts):
    """A design that was trained: its cost, its settings and its accuracy."""

    model: str
    settings: Setting
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


class RejectedDesign(DesignCosts):
    model: str


class SearchAnswer(SweepRecord):
    designs: list[SearchedDesign]
    rejected: list[RejectedDesign]
    path: str


# --- answers: doctor, data ------------------------------------------------------------------------


class TorchDevice(TypedDict):
    """A GPU that torch can use; `shared` says that it shares the memory of the host."""

    name: str
    memory_bytes: int
    shared: bool


class TorchBuild(TypedDict):
    """The installed torch, as `processes.torch_info` answers."""

    version: str
    threads: int
    interop_threads: int
    math_library: str | None
    mkldnn: bool
    openmp: bool
    cpu_instructions: str
    cuda: str | None
    accelerators: list[TorchDevice]


class MachineCheck(TypedDict):
    """One check of `stepscope doctor`; for an absent reading, `found` is the reason."""

    name: str
    status: Literal["ok", "warning", "absent"]
    found: str
    why: str
    advice: str | None


class DoctorAnswer(TypedDict):
    checks: list[MachineCheck]
    conditions: MachineConditions


class MachineChange(TypedDict):
    """One condition that is set for a measurement."""

    name: str
    before: str
    after: str


class PreparedAnswer(TypedDict):
    """`stepscope doctor --apply`; `kept` is the file of the previous state."""

    set: list[MachineChange]
    kept: str | None


class PeaksAnswer(TypedDict):
    """`stepscope doctor --peaks`; `left_out` says why a peak could not be measured."""

    peaks: list[PeakRecord]
    left_out: dict[str, str]


class RestoredAnswer(TypedDict):
    """`stepscope doctor --restore`."""

    restored: list[str]


class VerifiedFile(TypedDict):
    file: str
    status: str
    detail: str


class VerifiedFolder(TypedDict):
    folder: str
    size_bytes: int
    files: list[VerifiedFile]


class DataCheckAnswer(TypedDict):
    """`stepscope data get` and `stepscope data verify`."""

    data: str
    data_dir: str
    files: list[VerifiedFile]
    cache: VerifiedFolder | None


class DataPutAnswer(TypedDict):
    """`stepscope data put`: the objects that were sent, and those that were there."""

    data: str
    url: str
    layout: str
    sent: int
    kept: int
    sent_bytes: int
    retries: int
