"""What the folder of a watched script tells of its loaders: its own settings, and what was set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.records.reader import Run

NO_LOADER = (
    "the script makes no DataLoader of torch's in its main process: there is nothing whose "
    "settings could be changed"
)


def loaders_of(run: Run) -> list[dict[str, Any]]:
    """Return the loaders that the script made, those that are all alike once."""
    return [event for event in run.events if event["event"] == "loader"]


def training_loader(run: Run) -> dict[str, Any] | None:
    """Return the loader that the script most likely trains from.

    That is the first one that shuffles; else the first with a batch sampler; else the one with the
    most samples. `found` has its own settings.
    """
    made = loaders_of(run)
    shuffling = [each for each in made if each["shuffles"]]
    sampled = [each for each in made if each["batches_by"] == "batch_sampler"]
    largest = sorted(made, key=lambda each: each["samples"] or 0, reverse=True)
    return next(iter(shuffling + sampled + largest), None)


def why_not_set(run: Run, asked: Mapping[str, Any]) -> str | None:
    """Say why settings did not reach the training, or None where they did.

    Only of the batch size this can be: the others are set in every loader, or mean nothing there.
    """
    if not asked:
        return None
    loader = training_loader(run)
    if loader is None:
        return NO_LOADER
    if "batch_size" not in asked:
        return None
    reason = loader["refused"].get("batch_size")
    if reason is not None:
        return f"the batch size cannot be set in the script's DataLoader: {reason}"
    return _trains_from_another(run, asked["batch_size"])


def _trains_from_another(run: Run, asked: int) -> str | None:
    """See a script whose steps have the batch of a loader that kept its own."""
    seen = {samples for samples in run.steps.columns.get("samples", ()) if samples is not None}
    kept = {
        each["found"]["batch_size"] for each in loaders_of(run) if "batch_size" in each["refused"]
    }
    if seen and seen <= kept - {asked}:
        return (
            f"the batch size was set to {asked}, but the script trains from a DataLoader that was "
            f"taken for a test's: its steps have {', '.join(map(str, sorted(seen)))} samples"
        )
    return None
