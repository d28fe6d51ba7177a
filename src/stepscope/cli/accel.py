"""`stepscope accel estimate|score|search`: energy and cycles on an accelerator."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import App, Parameter

from stepscope.accelerator.rubric import RuleCheck, check_rules, score
from stepscope.analyze.search_result import designs_of, rejected_of
from stepscope.cli.end_of_run import close_trials, display_of_trials, leave_chart, refuse_flags
from stepscope.cli.script_arguments import refuse_launcher
from stepscope.cli.settings_flags import SettingsToo, count, layout_of, named_settings
from stepscope.cli.streams import AsJson, print_answer
from stepscope.cli.sweep import place_to_go_on, read_place, runner_at
from stepscope.errors import RequestError, require_packages
from stepscope.experiments.search import search_run
from stepscope.experiments.search.proposals import read_budget
from stepscope.models import registry
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Sweep, load_sweep
from stepscope.records.types import (
    LayerEstimate,
    NetworkEstimate,
    RunnerPlace,
    ScoreAnswer,
    ScoreFigures,
    SearchAnswer,
)
from stepscope.report.charts.chart import check_form
from stepscope.report.terminal.accelerator_table import energy_chart, print_estimate, print_score
from stepscope.report.terminal.search_table import SearchDisplay, print_search

if TYPE_CHECKING:
    from stepscope.accelerator.design import AcceleratorDesign
    from stepscope.accelerator.mapper import Widths

_SPATIAL = re.compile(r"\s*([1-9][0-9]{0,3})\s*[xX]\s*([1-9][0-9]{0,3})\s*")

app = App(name="accel", help="Estimate, score and search networks for an accelerator.")


@app.command
def estimate(
    model: str | None = None,
    /,
    *,
    layer: str | None = None,
    shape: Annotated[str | None, Parameter(name="--input")] = None,
    classes: str | None = None,
    spatial: str = "free",
    design: str = "simple_weight_stationary",
    chart: Path | None = None,
    json: AsJson = False,
) -> int:
    """Estimate energy, cycles and peak activation on a weight-stationary accelerator.

    `stepscope accel estimate MODEL` for a network;
    `stepscope accel estimate --layer C=64,M=64,P=32,Q=32,R=3,S=3` for one layer.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory for your own.
    layer
        One layer instead: channels in (C) and out (M), output rows and columns (P, Q), kernel
        (R, S), and stride, groups, batch where they are not 1.
    shape
        Shape of one sample, like 3,32,32 [default: what the zoo's network is laid out for].
    classes
        How many classes the model is built for [default: the zoo's number, 10 for your own].
    spatial
        How wide M and C spread over the array: free, or MxC such as 8x16.
    design
        The accelerator: simple_weight_stationary, or a TOML file of the same form.
    chart
        A file for the energy of each layer by level: .png, .svg or .pdf.
    """
    if (model is None) == (layer is None):
        raise RequestError("estimate: wanted a model or --layer, one of the two.")
    require_packages("an estimate", "train", "numpy", *([] if layer else ["torch"]))
    if chart is not None:
        check_form(chart)
    found: LayerEstimate | NetworkEstimate
    if model is not None:
        found = estimate_model(model, shape, classes, spatial, design)
    else:
        from stepscope.accelerator.estimate import estimate_layer
        from stepscope.accelerator.layer import read_layer

        found = estimate_layer(read_layer(layer or ""), *_accelerator(design, spatial))
    print_answer(found, print_estimate, as_json=json)
    if chart is not None:
        leave_chart(energy_chart(found), chart, as_json=json)
    return 0


def estimate_model(
    model: str, shape: str | None, classes: str | None, spatial: str, design: str
) -> NetworkEstimate:
    """Estimate a model by name; shape and classes are the zoo's by default."""
    sample_shape, count = layout_of(model, shape, classes)
    entry = registry.ZOO.get(model)
    if entry is not None and entry.tokens is not None:
        raise RequestError(f"model {model} takes texts; only image models can be estimated.")
    from stepscope.accelerator.estimate import estimate_network

    accelerator = _accelerator(design, spatial)  # before the network is built: that takes seconds
    # Output of a user's model must not reach standard output.
    with contextlib.redirect_stdout(sys.stderr):
        built = registry.build(model, classes=count, norm="batch")
        return estimate_network(built, sample_shape, model, *accelerator)


def _accelerator(design: str, spatial: str) -> tuple[AcceleratorDesign, Widths]:
    """Return an accelerator and the widths of its mappings.

    Raises:
        RequestError: there is no such accelerator, or the widths do not fit its array.
    """
    from stepscope.accelerator.design import load_design
    from stepscope.accelerator.mapper import Widths, check_widths

    widths = Widths()
    if spatial.strip().lower() != "free":
        pair = _SPATIAL.fullmatch(spatial)
        if pair is None:
            raise RequestError(f"spatial: wanted free, or MxC such as 8x16, found {spatial!r}.")
        widths = Widths(m=int(pair[1]), c=int(pair[2]))
    accelerator = load_design(design)
    check_widths(accelerator, widths)
    return accelerator, widths


# --- `stepscope accel score`


@app.command(name="score")
def score_command(
    run: Path | None = None,
    /,
    *,
    accuracy: float | None = None,
    energy_mj: float | None = None,
    cycles: float | None = None,
    peak_activation_bytes: float | None = None,
    spatial: str = "free",
    design: str = "simple_weight_stationary",
    json: AsJson = False,
) -> int:
    """Score accuracy, energy and cycles, and list the limits and rules that are broken.

    `stepscope accel score RUN` takes the run's test accuracy and the estimate of its model;
    `stepscope accel score --accuracy 0.79 --energy-mj 0.3 --cycles 46e3
    --peak-activation-bytes 98304` takes figures.

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
        Peak size of the activations, in bytes.
    spatial
        How wide M and C spread over the array, for a run: free, or MxC such as 8x16.
    design
        The accelerator, for a run.
    """
    given = {
        "accuracy": accuracy,
        "energy_mj": energy_mj,
        "cycles": cycles,
        "peak_activation_bytes": peak_activation_bytes,
    }
    missing = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]
    if run is not None:
        if len(missing) < len(given):
            raise RequestError("score: wanted a run or figures, found both. Leave one of them out.")
        figures, rules = _of_run(run, spatial, design)
    elif missing:
        raise RequestError(f"score: wanted a run, or four figures; missing {', '.join(missing)}.")
    else:
        for name, value in given.items():
            _check_figure(name, value or 0.0)
        figures, rules = cast("ScoreFigures", given), RuleCheck([], [])
    result = score(**figures)
    answer: ScoreAnswer = {
        **figures,
        "points": result.points,
        "by_part": result.by_part,
        "limits_exceeded": result.limits_exceeded,
        "rules_broken": rules.broken,
        "unknown": rules.unknown,
    }
    print_answer(answer, print_score, as_json=json)
    return 1 if result.limits_exceeded or rules.broken else 0


def _of_run(path: Path, spatial: str, design: str) -> tuple[ScoreFigures, RuleCheck]:
    run = load_run(path)
    accuracy = run.summary.get("test_accuracy")
    model = run.spec.get("model")
    if accuracy is None or model is None:
        reason = run.summary.get("absent", {}).get(
            "test_accuracy", "it is not a run of stepscope run"
        )
        raise RequestError(f"{path}: wanted a run with a test accuracy, found none: {reason}.")
    estimate = estimate_model(str(model), None, None, spatial, design)
    figures: ScoreFigures = {
        "accuracy": float(accuracy),
        "energy_mj": estimate["energy_mj"],
        "cycles": float(estimate["cycles"]),
        "peak_activation_bytes": float(estimate["peak_activation_bytes"]),
    }
    chosen_by = (run.info.get("choice") or {}).get("judged_on")
    return figures, check_rules(run.spec, chosen_by, estimate["design"])


def _check_figure(name: str, value: float) -> None:
    if not (0 <= value < math.inf) or (name == "accuracy" and value > 1):
        wanted = "a share from 0 to 1" if name == "accuracy" else "a number of 0 or more"
        raise RequestError(f"{name}: wanted {wanted}, found {value:g}.")


# --- `stepscope accel search`


_DESIGNS, _FINALS = 16, 1


@app.command
def search(
    spec: str | None = None,
    /,
    *,
    settings: SettingsToo = None,
    budget: str | None = None,
    trials: str | None = None,
    finals: str | None = None,
    spatial: str | None = None,
    design: str | None = None,
    on: str | None = None,
    address: str | None = None,
    resume: Path | None = None,
    json: AsJson = False,
) -> int:
    """Search networks that are accurate within a budget of energy and cycles.

    Designs are proposed, estimated, trained briefly and ranked on held-out samples; the better
    half is trained for longer, up to --epochs. The best are trained on all samples and tested
    once. A setting that you give, such as --lr, is not searched. Settings of `stepscope run` are
    accepted too: --help-settings lists them.

    Parameters
    ----------
    spec
        A TOML file of settings. Flags override it.
    budget
        Limits of a network: energy_mj=0.5,cycles=1e5,peak_activation_bytes=1e6, or some of these.
    trials
        Number of designs to train. [default: 16]
    finals
        Number of the best designs to test at the end. [default: 1]
    spatial
        How wide M and C spread over the array: free, or MxC such as 8x16. [default: free]
    design
        The accelerator. [default: simple_weight_stationary]
    on
        Where to train: here, one design at a time, or ray, one at a time on each node of a
        cluster. [default: here]
    address
        The Ray cluster, HOST:PORT. [default: auto, the cluster of this machine]
    resume
        Continue the stopped search in this folder; takes only --on and --address besides.
    """
    refuse_launcher("accel search")
    require_packages("a search", "search", "optuna")
    require_packages("a search", "train", "torch")
    try:
        with display_of_trials(SearchDisplay) as display:
            if resume is not None:
                refuse_flags(settings, spec, budget, trials, finals, spatial, design)
                place = _on_any_node(place_to_go_on(resume, on, address, mix_nodes=False))
                with runner_at(place) as runner:
                    done = search_run.resume(resume, estimate_model, display, runner)
            else:
                place = _on_any_node(read_place(on, address, mix_nodes=False))
                if budget is None:
                    raise RequestError(
                        "budget: wanted limits, like --budget energy_mj=0.5,cycles=1e5."
                    )
                spatial, design = spatial or "free", design or "simple_weight_stationary"
                _accelerator(design, spatial)  # raises before the search starts
                request = search_run.SearchRequest(
                    named_settings([] if spec is None else [spec], settings or {}),
                    read_budget(budget),
                    count("trials", trials, _DESIGNS),
                    count("finals", finals, _FINALS),
                    spatial,
                    design,
                    on=place,
                )
                if request.designs < 1:
                    raise RequestError(f"trials: wanted 1 or more, found {trials}.")
                with runner_at(place) as runner:
                    done = search_run.start(request, estimate_model, display, runner)
    except search_run.NothingFound as ended:
        _show(load_sweep(ended.folder), as_json=json)
        raise
    _show(done, as_json=json)
    return 0


def _show(done: Sweep, *, as_json: bool) -> None:
    found: SearchAnswer = {
        **done.info,
        "designs": designs_of(done),
        "rejected": rejected_of(done),
        "path": str(done.path),
    }
    close_trials(found, done, print_search, as_json=as_json)


def _on_any_node(place: RunnerPlace | None) -> RunnerPlace | None:
    """Permit all kinds of nodes: the accuracy of a design does not depend on their speed."""
    return None if place is None else {**place, "mix_nodes": True}
