"""Which measurements of scaling could only fail, or would compare nothing?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.analyze.scaling import Scale
from stepscope.analyze.trial_metrics import start_up_steps
from stepscope.errors import RequestError
from stepscope.experiments.subjects import OwnTraining
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of


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


def check_trial(subject: OwnTraining, values: dict[str, Any], batch_size: int) -> None:
    """Refuse a trial that could only fail; where its batch is not the one asked for, say so.

    Raises:
        RequestError: it could, or it is too short to give a figure.
    """
    try:
        subject.check(values)
        _check_length(subject.spec(values))
    except RequestError as error:
        if values["batch_size"] == batch_size:
            raise
        whole = f"{batch_size} samples for each of {values['processes']} processes"
        raise RequestError(f"{whole}: {error}") from error


def _check_length(spec: RunSpec) -> None:
    """Refuse an epoch of which nothing is left without its start."""
    samples, left_out = _training_samples(spec), start_up_steps(spec.model_dump())
    in_a_step = spec.batch_size * spec.accumulate
    steps = min(-(-samples // in_a_step), spec.max_steps or samples)
    if steps <= left_out:
        raise RequestError(
            f"wanted more than {left_out} steps an epoch, as its first {left_out} are left out; "
            f"found {steps}, of {in_a_step:,} samples each. Give more --samples or --max-steps, "
            "or a smaller --batch-size."
        )


def _training_samples(spec: RunSpec) -> int:
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    dataset = catalogue.find(spec.data, reading_of(spec))
    return dataset.count("train", spec.samples) - spec.validation
