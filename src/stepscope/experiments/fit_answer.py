"""What a search for the largest batch has found, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from stepscope.errors import Interrupted
from stepscope.estimate.limits import host_limit
from stepscope.estimate.memory_bill import Limit
from stepscope.experiments.fit_search import Trial, largest
from stepscope.hardware import host


class Onlooker(Protocol):
    """Somebody who shows how a search goes; a trial is what `Trial.to_json` gives."""

    def forecasting(self) -> None:
        """Learn that a forecast is being made."""

    def trying(self, settings: dict[str, Any]) -> None:
        """Learn what is tried now: a trial's `batch_size` and the other settings that it has."""

    def tried(self, trial: dict[str, Any]) -> None:
        """Learn how it ended."""


@dataclass
class Answer:
    """What was asked, what was tried, and what follows from it.

    `model` names what is trained, `script` says how somebody's own script is called. `asked` is
    the batch that somebody wants, None for the largest; `most` the largest that can be made of the
    data, None where nobody knows. `limit` and every peak are of the `pool`. `trials` with other
    settings than those asked for, batch apart, are in `instead`.
    """

    model: str
    limit: Limit
    asked: int | None
    most: int | None = None
    script: str | None = None
    pool: str = "host"
    accumulate: int = 1
    checkpoint_activations: bool = False
    trials: list[Trial] = field(default_factory=list)
    instead: list[Trial] = field(default_factory=list)
    too_small: str | None = None
    interrupted: bool = False

    @property
    def largest(self) -> Trial | None:
        """The largest batch that was tried and fits."""
        return largest(self.trials)

    @property
    def asked_fits(self) -> bool | None:
        """Whether the batch that was asked for fits; None where none was, or nobody knows."""
        if self.asked is None:
            return None
        if self.too_small is not None:
            return False
        tried = [each for each in self.trials if each.batch_size == self.asked]
        return tried[0].fits if tried and not tried[0].failed else None

    @property
    def recommended(self) -> list[Trial]:
        """What fits and answers the question best: never anything that was not tried."""
        if self.asked_fits:
            return [each for each in self.trials if each.batch_size == self.asked]
        fitting = [each for each in self.instead if each.fits]
        divided = [each for each in fitting if each.accumulate != self.accumulate]
        whole = [each for each in fitting if each.accumulate == self.accumulate]
        instead = divided[-1:] + whole  # the last parts tried leave the most room
        return instead or ([self.largest] if self.largest else [])

    @property
    def reason(self) -> str | None:
        """Why the answer is no, or none at all."""
        if self.interrupted:
            return "interrupted"
        if self.trials and self.trials[-1].failed:
            return self.trials[-1].reason
        return self.too_small

    @property
    def exit_code(self) -> int:
        """0: it fits; 1: it does not; or what a trial failed with."""
        if self.interrupted:
            return Interrupted.exit_code
        wanted = self.asked_fits if self.asked is not None else self.largest is not None
        if wanted:
            return 0
        failed = bool(self.trials) and self.trials[-1].failed and self.asked_fits is None
        return self.trials[-1].exit_code if failed else 1

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        best = self.largest
        return {
            "model": self.model,
            "script": self.script,
            "limit_bytes": self.limit.bytes,
            "limit_of": self.limit.of,
            "limit_pool": self.pool,
            "largest_batch": best.batch_size if best else None,
            "peak_memory_bytes": best.peak_memory_bytes if best else None,
            "is_all_the_data": best is not None and best.batch_size == self.most,
            "trials": [each.to_json() for each in (*self.trials, *self.instead)],
            "recommended": [
                {
                    "settings": self._changed(each),
                    "peak_memory_bytes": each.peak_memory_bytes,
                    "tested": True,
                }
                for each in self.recommended
            ],
            "asked": None
            if self.asked is None
            else {"batch_size": self.asked, "fits": self.asked_fits},
            "reason": self.reason,
        }

    def _changed(self, trial: Trial) -> dict[str, Any]:
        """Name the settings with which a trial differs from what was asked; the batch always."""
        settings: dict[str, Any] = {"batch_size": trial.batch_size}
        if trial.accumulate != self.accumulate:
            settings["accumulate"] = trial.accumulate
        if trial.checkpoint_activations != self.checkpoint_activations:
            settings["checkpoint_activations"] = trial.checkpoint_activations
        return settings


def limit_now(asked_bytes: int | None) -> Limit:
    """Return the limit that was asked for or, without one, what there is and others leave."""
    limit, available_bytes = host_limit(asked_bytes), host.available_bytes()
    if asked_bytes is None and available_bytes < limit.bytes:
        return Limit("memory available now", available_bytes)
    return limit
