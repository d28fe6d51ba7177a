"""`stepscope score`: points for an efficient network, from a run or from figures."""

from __future__ import annotations

import json as json_module
import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from stepscope.analyze.score import Score, rules_of, score
from stepscope.cli.estimate import estimate_model
from stepscope.errors import RequestError
from stepscope.records.reader import load_run

_FIGURES = ("accuracy", "energy_mj", "cycles", "peak_activation_bytes")


def score_command(
    run: Path | None = None,
    /,
    *,
    accuracy: str | None = None,
    energy_mj: str | None = None,
    cycles: str | None = None,
    peak_activation_bytes: str | None = None,
    spatial: str = "free",
    design: str = "simple_weight_stationary",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Give points for accuracy, energy and cycles, and say which limit or rule was broken.

    `stepscope score RUN` takes the run's test accuracy and the estimate of its model;
    `stepscope score --accuracy 0.79 --energy-mj 0.3 --cycles 46e3 --peak-activation-bytes 98304`
    takes figures.

    Parameters
    ----------
    run
        A run folder.
    accuracy
        Test accuracy, 0 to 1.
    energy_mj
        Energy of one inference, in mJ.
    cycles
        Cycles of one inference.
    peak_activation_bytes
        The most bytes that activations take at once.
    spatial
        How wide M and C spread over the array, for a run: free, or MxC such as 8x16.
    design
        The accelerator, for a run.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    given = dict(zip(_FIGURES, (accuracy, energy_mj, cycles, peak_activation_bytes), strict=True))
    if run is not None:
        named = [name for name, text in given.items() if text is not None]
        if named:
            raise RequestError(
                f"{named[0]}: comes from the run; leave it out, or leave out the run."
            )
        figures, rules = _of_run(run, spatial, design)
    else:
        missing = [f"--{name.replace('_', '-')}" for name, text in given.items() if text is None]
        if missing:
            raise RequestError(
                f"score: wanted a run, or four figures; missing {', '.join(missing)}."
            )
        figures, rules = {name: _number(name, text) for name, text in given.items()}, ([], [])
    result = score(**figures, rules=rules)
    if json:
        print(json_module.dumps({**figures, **result.to_json()}))
    else:
        _print(Console(), figures, result)
    return 1 if result.limits_exceeded or result.rules_broken else 0


def _of_run(
    path: Path, spatial: str, design: str
) -> tuple[dict[str, float], tuple[list[str], list[str]]]:
    run = load_run(path)
    accuracy = run.summary.get("test_accuracy")
    model = run.spec.get("model")
    if accuracy is None or model is None:
        reason = run.summary.get("absent", {}).get("test_accuracy", "it is no training of ours")
        raise RequestError(f"{path}: wanted a run with a test accuracy, found none: {reason}.")
    estimate = estimate_model(str(model), None, None, spatial, design)
    figures = {name: float(estimate[name]) for name in _FIGURES[1:]}
    return {"accuracy": float(accuracy), **figures}, rules_of(run.info, str(estimate["design"]))


def _number(name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (0 <= value < math.inf) or (name == "accuracy" and value > 1):
        wanted = "a share from 0 to 1" if name == "accuracy" else "a number of 0 or more"
        raise RequestError(f"{name}: wanted {wanted}, found {text!r}.")
    return value


def _print(console: Console, figures: dict[str, float], result: Score) -> None:
    console.print(Text(f"{result.points} points", style="bold"))
    said: dict[str, Any] = {
        "accuracy": f"{figures['accuracy']:.2%} test accuracy",
        "energy": f"{figures['energy_mj']:.5g} mJ",
        "latency": f"{figures['cycles']:,.0f} cycles",
    }
    for part, points in result.by_part.items():
        console.print(Text(f"  {points:3} for {said[part]}"))
    for title, lines in (
        ("limit exceeded", result.limits_exceeded),
        ("rule broken", result.rules_broken),
        ("not known", result.unknown),
    ):
        for line in lines:
            console.print(Text(f"{title}: {line}"), soft_wrap=True)
