"""`stepscope search`: efficient networks within a budget of an accelerator's energy and cycles."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.search_result import designs_of, rejected_of
from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.estimate import check_spatial, estimate_model
from stepscope.cli.flags import SpecFlags
from stepscope.cli.report_at_end import leave_report
from stepscope.cli.runners import place_to_go_on, read_place, runner_at
from stepscope.cli.subjects import count, named_settings
from stepscope.cli.without_launcher import refuse_launcher
from stepscope.errors import MissingExtraError, RequestError
from stepscope.experiments import search as searches
from stepscope.experiments.search.budget import read_budget
from stepscope.records.sweep import Sweep, load_sweep
from stepscope.report.search import SearchDisplay, print_search

_DESIGNS, _FINALS = 16, 1


def search(
    spec: str | None = None,
    /,
    *,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    budget: str | None = None,
    trials: str | None = None,
    finals: str | None = None,
    spatial: str | None = None,
    design: str | None = None,
    on: str | None = None,
    address: str | None = None,
    resume: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Search networks that are accurate within a budget of energy and cycles.

    Designs are proposed, estimated, trained briefly and judged on held-out samples; the better
    half is trained for longer, up to --epochs. What is chosen is trained on all samples and tested
    once. A setting that is named, such as --lr, is not searched.

    Parameters
    ----------
    spec
        A TOML file of settings. Flags win over it.
    budget
        The most that a network may take: energy_mj=0.5,cycles=1e5,peak_activation_bytes=1e6, or
        some of these.
    trials
        How many designs within the budget are trained. [default: 16]
    finals
        How many of the best are tested in the end. [default: 1]
    spatial
        How wide M and C spread over the array: free, or MxC such as 8x16. [default: free]
    design
        The accelerator. [default: simple_weight_stationary]
    on
        Who trains: here, one design at a time, or ray, one at a time on each node of a cluster.
        [default: here]
    address
        The Ray cluster, HOST:PORT. [default: auto, the one that this machine is in]
    resume
        Go on with a search that was stopped: its folder, and no flag but --on and --address.
    json
        Print sweep.json with designs and front, and nothing else, on standard output.
    """
    refuse_launcher("search")
    _need("optuna", "search")
    _need("torch", "train")
    asked: dict[str, Any] = dict(settings or {})
    try:
        with SearchDisplay(Console(file=sys.stderr)) as display:
            if resume is not None:
                if asked or any((spec, budget, trials, finals, spatial, design)):
                    raise RequestError(
                        "resume: takes no other flag: the search's folder knows them."
                    )
                place = _on_any_node(place_to_go_on(resume, on, address, mix_nodes=False))
                with runner_at(place) as runner:
                    done = searches.resume(resume, estimate_model, display, summarize, runner)
            else:
                place = _on_any_node(read_place(on, address, mix_nodes=False))
                request = _request(spec, asked, budget, trials, finals, spatial, design)
                request = replace(request, on=place)
                with runner_at(place) as runner:
                    done = searches.start(request, estimate_model, display, summarize, runner)
    except searches.SearchInterrupted as stopped:
        leave_report(stopped.folder, Console(file=sys.stderr))
        raise
    except searches.NothingFound as ended:
        _show(load_sweep(ended.folder), as_json=json)
        raise
    _show(done, as_json=json)
    return 0


def _show(done: Sweep, *, as_json: bool) -> None:
    if as_json:
        found = {"designs": designs_of(done), "rejected": rejected_of(done)}
        print(dumps({**done.info, **found, "path": str(done.path)}))
    else:
        print_search(Console(), done)
    leave_report(done.path, Console(file=sys.stderr) if as_json else Console())


def _request(
    spec: str | None,
    asked: dict[str, Any],
    budget: str | None,
    trials: str | None,
    finals: str | None,
    spatial: str | None,
    design: str | None,
) -> searches.Request:
    if budget is None:
        raise RequestError("budget: wanted limits, like --budget energy_mj=0.5,cycles=1e5.")
    accelerator = design or "simple_weight_stationary"
    check_spatial(spatial or "free", accelerator)
    wanted = _DESIGNS if trials is None else count("trials", trials)
    if wanted < 1:
        raise RequestError(f"trials: wanted 1 or more, found {trials}.")
    return searches.Request(
        named_settings([] if spec is None else [spec], asked),
        read_budget(budget),
        wanted,
        _FINALS if finals is None else count("finals", finals),
        spatial or "free",
        accelerator,
    )


def _on_any_node(place: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Let all kinds of nodes train: how accurate a design is does not depend on their speed."""
    return None if place is None else {**place, "mix_nodes": True}


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError("a search", package, extra)
