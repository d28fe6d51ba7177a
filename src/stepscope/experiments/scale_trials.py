"""What would more processes bring? A training in several numbers of them, tried in rounds.

The record is a sweep folder of the kind `scale`: its trials are short runs, strong and weak. What
they mean is in `analyze.scaling_answer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyze.scaling import Scale
from stepscope.analyze.scaling_answer import KIND, gradient_bytes_of, scale_of
from stepscope.analyze.sweep_summary import start_up_steps, whole_turns
from stepscope.errors import MachineError, OutOfMemoryError, RequestError
from stepscope.experiments import sweep_run
from stepscope.experiments.sweep_run import SweepListener, SweepRequest, TrialBench
from stepscope.experiments.workload import TrainingWorkload, training_samples_of
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Sweep, load_sweep, load_sweep_of
from stepscope.records.types import AllreduceRequest, ExchangeTime, ScalePlan, SettingValue
from stepscope.settings import RunSpec
from stepscope.stats import median
from stepscope.supervisor.ask_process import ALLREDUCE, ask_process

# --- How long does the exchange of gradients take alone? It tells how much of it trials hid


def time_exchanges(bench: TrialBench) -> None:
    """Time the exchange of the trials' gradients alone, where a prediction is asked for."""
    sweep = load_sweep(bench.folder.path)
    asked = sweep.info["scale"]
    size_bytes = gradient_bytes_of(sweep)[0] if asked["predict"] else None
    if size_bytes is None:
        return
    done = next(trial for trial in sweep.trials if trial.status == schema.COMPLETED)
    device = str(load_run(sweep.folder_of(done)).info["environment"]["device"])
    exchanges = [
        _exchange(count, size_bytes, device) for count in scale_of(sweep).processes if count > 1
    ]
    bench.folder.update_info(scale={**asked, "exchanges": exchanges})


def _exchange(processes: int, size_bytes: int, device: str) -> ExchangeTime:
    """Return the median of how long an exchange takes alone, or why that is unknown."""
    if not device.startswith("cpu"):
        reason = f"an exchange alone is timed between CPUs, and the trials were on {device}"
        return {"processes": processes, "exchange_s": None, "reason": reason}
    asked: AllreduceRequest = {"processes": processes, "bytes": size_bytes}
    try:
        answer = ask_process(ALLREDUCE, asked)
    except (MachineError, OutOfMemoryError) as error:
        return {"processes": processes, "exchange_s": None, "reason": str(error)}
    return {"processes": processes, "exchange_s": median(answer["exchange_s"]), "reason": None}


# --- Which measurements of scaling could only fail, or would compare nothing?


def check_numbers(scale: Scale, predict: Sequence[int]) -> None:
    """Refuse numbers of processes of which nothing could be said.

    Raises:
        RequestError: there is one to measure and none to predict, or one that is predicted is too
            small or too large.
    """
    if len(scale.processes) < 2 and not predict:
        raise RequestError(
            f"processes: wanted two numbers or more to compare, like 1,2; found {scale.base}. "
            "With --predict one is enough."
        )
    most = scale.processes[-1]
    for count in predict:
        if count <= most:
            raise RequestError(
                f"predict: wanted numbers above {most}, the most that is measured; found {count}."
            )
        if count > scale.batch_size:
            raise RequestError(
                "predict: wants at most as many processes as there are samples in a batch, "
                f"{scale.batch_size}, found {count}."
            )


def check_trial(
    workload: TrainingWorkload, values: Mapping[str, SettingValue], batch_size: int
) -> None:
    """Refuse a trial that could only fail; where its batch is not the one asked for, say so.

    Raises:
        RequestError: it could, or it is too short to give a figure.
    """
    try:
        workload.check(values)
        _check_length(workload.spec(values))
    except RequestError as error:
        if values["batch_size"] == batch_size:
            raise
        whole = f"{batch_size} samples for each of {values['processes']} processes"
        raise RequestError(f"{whole}: {error}") from error


def _check_length(spec: RunSpec) -> None:
    """Refuse an epoch of which nothing is left without its start."""
    samples, left_out = training_samples_of(spec), start_up_steps(spec.model_dump())
    in_a_step = spec.batch_size * spec.accumulate
    steps = min(-(-samples // in_a_step), spec.max_steps or samples)
    if steps <= left_out:
        raise RequestError(
            f"wanted more than {left_out} steps an epoch, as its first {left_out} are left out; "
            f"found {steps}, of {in_a_step:,} samples each. Give more --samples or --max-steps, "
            "or a smaller --batch-size."
        )


REPEATS = 3
_STEPS = 30


@dataclass(frozen=True)
class Prediction:
    """What is to be predicted; without a latency, none is assumed."""

    processes: tuple[int, ...]
    bandwidth_bytes_per_s: float
    latency_s: float | None = None


@dataclass(frozen=True)
class ScaleRequest:
    """The numbers of processes to try and how often; `asked` are the settings given by the user."""

    asked: Mapping[str, SettingValue]
    processes: tuple[int, ...]
    repeats: int = REPEATS
    prediction: Prediction | None = None


def start(request: ScaleRequest, listener: SweepListener) -> Sweep:
    """Make the folder, and every trial in it.

    Raises:
        RequestError: a trial could only fail, or nothing would be compared; nothing was begun.
        SweepInterrupted: a stop was requested.
    """
    spec = TrainingWorkload(request.asked).spec({"processes": 1})
    scale = Scale(spec.batch_size, tuple(sorted(request.processes)))
    check_numbers(scale, () if request.prediction is None else request.prediction.processes)
    steps = start_up_steps(spec.model_dump()) + whole_turns(_STEPS, spec.workers)
    short: dict[str, SettingValue] = {"epochs": 1, "max_steps": steps}
    # Gradients are counted with the memory forecast, which takes seconds.
    quick = request.prediction is None
    workload = TrainingWorkload({**short, **request.asked, "evaluate": False}, quick=quick)
    for values in scale.settings():
        check_trial(workload, values, spec.batch_size)
    asked = request.prediction
    plan: ScalePlan = {
        "scale": {
            "batch_size": scale.batch_size,
            "processes": list(scale.processes),
            "predict": [] if asked is None else sorted(asked.processes),
            "bandwidth_bytes_per_s": None if asked is None else asked.bandwidth_bytes_per_s,
            "latency_s": None if asked is None else asked.latency_s,
            "exchanges": [],
        }
    }
    name = spec.name or f"{KIND}-{spec.run_name}"
    settings = scale.settings()
    sweep = SweepRequest(settings, request.repeats, Path(spec.out), name, kind=KIND)
    folder = sweep_run.create(workload, sweep, plan)
    return sweep_run.run_trials(TrialBench(folder, workload, listener), _measure)


def resume(path: Path, listener: SweepListener) -> Sweep:
    """Make the trials that are missing; where none is, the folder is left as it is."""
    return sweep_run.go_on(load_sweep_of(path, KIND), listener, work=_measure)


def _measure(bench: TrialBench) -> None:
    bench.make_missing()
    time_exchanges(bench)
