"""Overrides for the settings of the loaders that a user's script creates.

    num_workers, prefetch_factor, persistent_workers, pin_memory
                  in every loader
    batch_size    in every loader that shuffles; in one that does not shuffle, unless a shuffling
                  loader was created before it: that one is used for training

The purpose of a loader is unknown when it is created. An evaluation with a larger batch does not
change the training, but a training that kept its batch size would make the trial worthless. The
settings found, set and refused are recorded for every loader.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from stepscope.records.types import LoaderArguments, LoaderRecord
from stepscope.trace.patches import Patches

LOADER, BATCH_SAMPLER, DATA_SET = "loader", "batch_sampler", "data set"

# What a script passes to `DataLoader`, by name.
Arguments = Mapping[str, Any]

# Arguments that torch refuses in a loader without workers, and their defaults.
_NEEDS_WORKERS: Arguments = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}
_PREFETCH = 2  # torch's default for a loader with workers

_NO_WORKERS = "this loader has no workers"
_FOR_A_TEST = "taken for an evaluation loader: one that shuffles was created before it"
_FIXED = {
    BATCH_SAMPLER: "its batch_sampler forms the batches",
    DATA_SET: "it has batch_size=None: its data set forms the batches",
}
_UNDIVIDED = "every worker reads all samples of an IterableDataset that does not divide them itself"


@dataclass(frozen=True)
class Decision:
    """The changes to the arguments of one loader, and the refused settings."""

    changes: Arguments
    refused: dict[str, str]


def decide(given: Arguments, asked: Arguments, *, may_train: bool = True) -> Decision:
    """Return the changes that apply the requested settings to a loader, as far as torch allows.

    `given` has the script's arguments by name; `may_train` is False for an evaluation.
    """
    wanted, refused = dict(asked), {}
    fixed = _FIXED.get(batches_by(given)) or (None if may_train else _FOR_A_TEST)
    if "batch_size" in wanted and fixed:
        refused["batch_size"] = fixed
        del wanted["batch_size"]
    if wanted.get("num_workers", given.get("num_workers", 0)) == 0:
        for name in _NEEDS_WORKERS:
            if wanted.pop(name, None):
                refused[name] = _NO_WORKERS
    if wanted.get("num_workers") == 0:
        wanted.update((name, none) for name, none in _NEEDS_WORKERS.items() if name in given)
    return Decision(wanted, refused)


def batches_by(given: Arguments) -> str:
    """Return what forms batches: the loader, a batch sampler, or the data set."""
    if given.get("batch_sampler") is not None:
        return BATCH_SAMPLER
    return DATA_SET if given.get("batch_size", 1) is None else LOADER


def shuffles(given: Arguments) -> bool:
    """Return whether samples come in another order than the data set's, if that is known."""
    sampler = given.get("sampler")
    if sampler is None:
        sampler = getattr(given.get("batch_sampler"), "sampler", None)
    if sampler is None:
        return bool(given.get("shuffle"))
    in_order = isinstance(sampler, SequentialSampler)
    return not in_order and getattr(sampler, "shuffle", True) is not False


def settings_of(given: Arguments) -> LoaderArguments:
    """Return the settings of a loader with these arguments."""
    workers = given.get("num_workers", 0)
    batch_size = given.get("batch_size", 1)
    if batches_by(given) == BATCH_SAMPLER:
        batch_size = getattr(given["batch_sampler"], "batch_size", None)
    prefetch = given.get("prefetch_factor")
    return {
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "num_workers": workers,
        "prefetch_factor": _PREFETCH if workers and prefetch is None else prefetch,
        "pin_memory": bool(given.get("pin_memory", False)),
        "persistent_workers": bool(given.get("persistent_workers", False)),
    }


@dataclass
class LoaderOverrides:
    """Apply settings to every loader that is created from now on.

    `on_loader` receives a record of each loader, but only one of equal records: some scripts create
    a loader for each epoch. An internal error is kept in `trouble`, and the loader stays as the
    script wanted it.
    """

    asked: Arguments
    on_loader: Callable[[LoaderRecord], None]
    trouble: Exception | None = None
    patches: Patches = field(default_factory=Patches)
    _one_shuffles: bool = False
    _recorded: set[str] = field(default_factory=set)

    def install(self) -> None:
        """Hook the creation of loaders. Undo `patches` to remove the hook."""
        self.patches.replace(DataLoader, "__init__", self._watch)

    def _watch(self, original: Callable[..., None]) -> Any:
        signature = inspect.signature(original)

        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(loader, *args, **kwargs)
            except TypeError:
                return original(loader, *args, **kwargs)  # torch raises the better error
            given = dict(bound.arguments)
            decision = self._decide(given)
            if decision is None:
                return original(loader, *args, **kwargs)
            bound.arguments.update(decision.changes)
            original(*bound.args, **bound.kwargs)
            self._report(loader, given, decision)

        # Libraries that recreate loaders read the argument names from the signature.
        return functools.wraps(original)(init)

    def _decide(self, given: Arguments) -> Decision | None:
        try:
            shuffled = shuffles(given)
            decision = decide(given, self.asked, may_train=shuffled or not self._one_shuffles)
        except Exception as error:
            self.trouble = error
            return None
        self._one_shuffles = self._one_shuffles or shuffled
        return decision

    def _report(self, loader: Any, given: Arguments, decision: Decision) -> None:
        try:
            record = _record(loader, given, decision, self.asked)
            text = json.dumps(record)
            if text not in self._recorded:
                self._recorded.add(text)
                self.on_loader(record)
        except Exception as error:  # a full disk
            self.trouble = error


def _record(loader: Any, given: Arguments, decision: Decision, asked: Arguments) -> LoaderRecord:
    found = settings_of(given)
    now = settings_of({**given, **decision.changes})
    changed = {name: value for name, value in now.items() if value != found.get(name)}
    iterable = isinstance(loader.dataset, IterableDataset)
    undivided = iterable and asked.get("num_workers", 0) > 1
    return {
        "data_set": type(loader.dataset).__name__,
        "samples": None if iterable else _count(loader.sampler),
        "shuffles": shuffles(given),
        "batches_by": batches_by(given),
        "found": found,
        "set": cast(LoaderArguments, changed),
        "refused": decision.refused,
        "warning": _UNDIVIDED if undivided else None,
    }


def _count(sampler: Any) -> int | None:
    """Return the samples of an epoch; None if the script's sampler has no length."""
    try:
        return len(sampler)
    except Exception:
        return None
