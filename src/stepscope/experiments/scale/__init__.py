"""What would more processes bring? A training in several numbers of them, tried in rounds.

refusals    what could only fail, or would compare nothing
exchange    the exchange of gradients alone, where a prediction is asked for

The record is a sweep folder of the kind `scale`: its trials are short runs, strong and weak. What
they mean is in `analyze.scale_answer`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.analyze.scale_answer import KIND
from stepscope.analyze.scaling import Scale
from stepscope.analyze.trial_metrics import start_up_steps, whole_turns
from stepscope.errors import Interrupted
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.scale.exchange import time_exchanges
from stepscope.experiments.scale.refusals import check_numbers, check_trial
from stepscope.experiments.subjects import OwnTraining, subject_of
from stepscope.experiments.sweep import working_in
from stepscope.experiments.sweep.execute import Bench, Onlooker
from stepscope.experiments.sweep.plan import plan_trials
from stepscope.records import schema
from stepscope.records.sweep import Sweep, SweepFolder, create_sweep, load_sweep, load_sweep_of
from stepscope.spec import RunSpec

REPEATS = 3
_STEPS = 30


class ScaleInterrupted(Interrupted):
    """Somebody asked to stop; what is done is in the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"interrupted; go on with: stepscope scale --resume {folder}")
        self.folder = folder


@dataclass(frozen=True)
class Prediction:
    """What is to be predicted; without a latency, none is assumed."""

    processes: tuple[int, ...]
    bandwidth_bytes_per_s: float
    latency_s: float | None = None


@dataclass(frozen=True)
class Request:
    """Which numbers of processes are tried how often; `asked` are settings that somebody named."""

    asked: Mapping[str, Any]
    processes: tuple[int, ...]
    repeats: int = REPEATS
    prediction: Prediction | None = None


def start(request: Request, onlooker: Onlooker, summarize: Summarize) -> Sweep:
    """Make the folder, and every trial in it.

    Raises:
        RequestError: a trial could only fail, or nothing would be compared; nothing was begun.
        ScaleInterrupted: somebody asked to stop.
    """
    spec = OwnTraining(request.asked).spec({"processes": 1})
    scale = Scale(spec.batch_size, tuple(sorted(request.processes)))
    check_numbers(scale, () if request.prediction is None else request.prediction.processes)
    short = {"epochs": 1, "max_steps": _steps(spec)}
    # Gradients are counted with the memory forecast, which takes seconds.
    quick = request.prediction is None
    subject = OwnTraining({**short, **request.asked, "evaluate": False}, quick=quick)
    for values in scale.settings():
        check_trial(subject, values, spec.batch_size)
    seed = secrets.randbits(32)
    trials = plan_trials(scale.settings(), request.repeats, seed)
    info = {
        "kind": KIND,
        "directory": str(Path.cwd()),
        **subject.to_json(),
        "settings": scale.settings(),
        "over": None,
        "repeats": request.repeats,
        "seed": seed,
        "time_limit_s": None,
        "on": None,
        KIND: {**vars(scale), **_prediction_info(request.prediction), "exchanges": []},
    }
    name = spec.name or f"{KIND}-{spec.run_name}"
    return _carry_out(create_sweep(Path(spec.out), name, info, trials), onlooker, summarize)


def resume(path: Path, onlooker: Onlooker, summarize: Summarize) -> Sweep:
    """Make the trials that are missing; where none is, the folder is left as it is."""
    recorded = load_sweep_of(path, KIND)
    if recorded.info.get("status") == schema.COMPLETED:
        return recorded
    with working_in(recorded.info.get("directory")):
        return _carry_out(SweepFolder(recorded.path), onlooker, summarize)


def _carry_out(folder: SweepFolder, onlooker: Onlooker, summarize: Summarize) -> Sweep:
    bench = Bench(folder, subject_of(folder.read_info()), onlooker, summarize)
    try:
        with bench.open():
            bench.make_missing()
            time_exchanges(folder)
    except Interrupted:
        raise ScaleInterrupted(folder.path) from None
    return load_sweep(folder.path)


def _steps(spec: RunSpec) -> int:
    return start_up_steps(spec.model_dump()) + whole_turns(_STEPS, spec.workers)


def _prediction_info(prediction: Prediction | None) -> dict[str, Any]:
    return {
        "predict": [] if prediction is None else sorted(prediction.processes),
        "bandwidth_bytes_per_s": None if prediction is None else prediction.bandwidth_bytes_per_s,
        "latency_s": None if prediction is None else prediction.latency_s,
    }
