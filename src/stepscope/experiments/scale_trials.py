"""What would more processes bring? Short runs with several numbers of processes, in rounds.

The record is a sweep folder of the kind `scale`; `analyze.scaling` draws the conclusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyze.scaling import KIND, Scale, gradient_bytes_of, scale_of
from stepscope.analyze.sweep_summary import start_up_steps
from stepscope.errors import MachineError, OutOfMemoryError, RequestError
from stepscope.experiments import sweep_run
from stepscope.experiments.sweep_run import SweepListener, SweepRequest, TrialBench
from stepscope.experiments.workload import (
    TrainingWorkload,
    short_training,
    training_samples_of,
)
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Sweep, load_sweep, load_sweep_of
from stepscope.records.types import ExchangeTime, ScalePlan, SettingValue
from stepscope.settings import RunSpec
from stepscope.stats.intervals import median
from stepscope.supervisor.ask_process import ALLREDUCE, ask_process

# --- How long does the allreduce take alone? It shows how much of it the trials hid


def time_exchanges(bench: TrialBench) -> None:
    """Time the allreduce of the trials' gradients alone, if a prediction was requested."""
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
    """Return the median time of an allreduce alone, or why it is unknown."""
    if not device.startswith("cpu"):
        reason = f"the allreduce alone is timed between CPUs, and the trials ran on {device}"
        return {"processes": processes, "allreduce_s": None, "reason": reason}
    asked = {"processes": processes, "bytes": size_bytes}
    try:
        answer = ask_process(ALLREDUCE, asked)
    except (MachineError, OutOfMemoryError) as error:
        return {"processes": processes, "allreduce_s": None, "reason": str(error)}
    return {"processes": processes, "allreduce_s": median(answer["allreduce_s"]), "reason": None}


# --- Which requests could only fail, or would compare nothing?


def check_numbers(scale: Scale, predict: Sequence[int]) -> None:
    """Refuse a single number without a prediction, and predictions outside the possible range."""
    if len(scale.processes) < 2 and not predict:
        raise RequestError(
            f"processes: wanted two numbers or more to compare, like 1,2; found {scale.base}. "
            "With --predict one is enough."
        )
    most = scale.processes[-1]
    for count in predict:
        if count <= most:
            raise RequestError(
                f"predict: wanted numbers above {most}, the largest measured; found {count}."
            )
        if count > scale.batch_size:
            raise RequestError(
                f"predict: wanted at most {scale.batch_size} processes, the samples of a batch; "
                f"found {count}."
            )


def check_trial(
    workload: TrainingWorkload, values: Mapping[str, SettingValue], batch_size: int
) -> None:
    """Refuse a trial that could only fail; name its batch if it is not the requested one."""
    try:
        workload.check(values)
        _check_length(workload.spec(values))
    except RequestError as error:
        if values["batch_size"] == batch_size:
            raise
        whole = f"{batch_size} samples for each of {values['processes']} processes"
        raise RequestError(f"{whole}: {error}") from error


def _check_length(spec: RunSpec) -> None:
    """Refuse an epoch that has only start-up steps."""
    samples, left_out = training_samples_of(spec), start_up_steps(spec.model_dump())
    in_a_step = spec.batch_size * spec.accumulate
    steps = min(-(-samples // in_a_step), spec.max_steps or samples)
    if steps <= left_out:
        raise RequestError(
            f"wanted more than {left_out} steps in an epoch, as the first {left_out} are not "
            f"measured; found {steps} of {in_a_step:,} samples each. Use more --samples or "
            "--max-steps, or a smaller --batch-size."
        )


REPEATS = 3


@dataclass(frozen=True)
class ScaleRequest:
    """The numbers of processes to try and how often; `asked` are the user's settings.

    `predict` are larger numbers, each process on a machine of an assumed network.
    """

    asked: Mapping[str, SettingValue]
    processes: tuple[int, ...]
    repeats: int = REPEATS
    predict: tuple[int, ...] = ()
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None


def start(request: ScaleRequest, listener: SweepListener) -> Sweep:
    """Make the folder and every trial in it; refuse trials that could only fail."""
    spec = TrainingWorkload(request.asked).spec({"processes": 1})
    scale = Scale(spec.batch_size, tuple(sorted(request.processes)))
    check_numbers(scale, request.predict)
    # The memory forecast counts the gradients, and takes seconds.
    workload = short_training(request.asked, spec, quick=not request.predict)
    for values in scale.settings():
        check_trial(workload, values, spec.batch_size)
    plan: ScalePlan = {
        "scale": {
            "batch_size": scale.batch_size,
            "processes": list(scale.processes),
            "predict": sorted(request.predict),
            "bandwidth_bytes_per_s": request.bandwidth_bytes_per_s,
            "latency_s": request.latency_s,
            "exchanges": [],
        }
    }
    name = spec.name or f"{KIND}-{spec.run_name}"
    settings = scale.settings()
    sweep = SweepRequest(settings, request.repeats, Path(spec.out), name, kind=KIND)
    folder = sweep_run.create(workload, sweep, plan)
    return sweep_run.run_trials(TrialBench(folder, workload, listener), _measure)


def resume(path: Path, listener: SweepListener) -> Sweep:
    """Make the missing trials of a recorded measurement."""
    return sweep_run.go_on(load_sweep_of(path, KIND), listener, work=_measure)


def _measure(bench: TrialBench) -> None:
    bench.make_missing()
    time_exchanges(bench)
