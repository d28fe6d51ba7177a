"""The DataLoaders of a traced script: their own settings, and which could be changed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.records.run_reader import Run
from stepscope.records.types import LoaderEvent

NO_LOADER = "the script makes no DataLoader in its main process, so there are no settings to change"

# Settings that a loader without workers refuses.
_OF_WORKERS = ("prefetch_factor", "persistent_workers")


def loaders_of(run: Run) -> list[LoaderEvent]:
    """Return the loaders that the script made, identical ones once."""
    return [event for event in run.events if event["event"] == "loader"]


def training_loader(run: Run) -> LoaderEvent | None:
    """Return the loader that the script most likely trains from.

    That is the first that shuffles, else the first with a batch sampler, else the one with the
    most samples. `found` has its own settings.
    """
    made = loaders_of(run)
    shuffling = [each for each in made if each["shuffles"]]
    sampled = [each for each in made if each["batches_by"] == "batch_sampler"]
    largest = sorted(made, key=lambda each: each["samples"] or 0, reverse=True)
    return next(iter(shuffling + sampled + largest), None)


def batch_bytes(run: Run) -> int | None:
    """Return the size of the script's batches, or None if none was fetched."""
    sizes = (int(event["bytes"]) for event in run.events if event["event"] == "batch")
    return next(sizes, None)


def why_not_set(run: Run, asked: Mapping[str, Any]) -> str | None:
    """Return why settings did not reach the training, or None if they did.

    Settings of workers are not missed if no workers were requested.
    """
    if not asked:
        return None
    loader = training_loader(run)
    if loader is None:
        return NO_LOADER
    meaningless = _OF_WORKERS if asked.get("num_workers") == 0 else ()
    for name, reason in loader["refused"].items():
        if name in asked and name not in meaningless:
            said = f"{name} cannot be set in the script's DataLoader: {reason}"
            return f"{said}; give it some too, --over workers=2" if name in _OF_WORKERS else said
    return _trains_from_another(run, asked["batch_size"]) if "batch_size" in asked else None


def warnings_of(run: Run) -> list[str]:
    """Return the warnings about changed settings of a script's loaders, each once."""
    found = (each.get("warning") for each in loaders_of(run))
    return list(dict.fromkeys(warning for warning in found if warning))


def line_with_workers(script: str | None, workers: int) -> str | None:
    """Return `Change train.py:23: DataLoader(..., num_workers=2)`, or None if it is not clear.

    It is clear in a script with one DataLoader, or with one that shuffles.
    """
    path = Path(script or "")
    if path.suffix != ".py" or not path.is_file():
        return None
    tree = ast.parse(path.read_bytes())
    loaders = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "DataLoader"
    ]
    shuffling = [
        node
        for node in loaders
        if any(ast.unparse(each) == "shuffle=True" for each in node.keywords)
    ]
    clear = next((each for each in (loaders, shuffling) if len(each) == 1), None)
    if clear is None:
        return None
    [call] = clear
    kept = [each for each in call.keywords if each.arg != "num_workers"]
    call.keywords = [*kept, ast.keyword("num_workers", ast.Constant(workers))]
    return f"Change {path.name}:{call.lineno}:  {ast.unparse(call)}"


def _trains_from_another(run: Run, asked: int) -> str | None:
    """Return a reason if the steps have the batch size of a loader that kept its own."""
    seen = {samples for samples in run.steps.columns.get("samples", ()) if samples is not None}
    kept = {
        each["found"]["batch_size"] for each in loaders_of(run) if "batch_size" in each["refused"]
    }
    if seen and seen <= kept - {asked}:
        return (
            f"the batch size was set to {asked}, but the script trains from a DataLoader that "
            f"looked like a test's: its steps have {', '.join(map(str, sorted(seen)))} samples"
        )
    return None
