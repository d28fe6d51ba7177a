"""What a training loses to preparing and to fetching its data, by the same training three ways.

    synthetic   batches that are already in memory: the network alone
    memory      samples in memory, through the pipeline
    source      samples from where they lie, nothing of them in the page cache

What the second waits and the first does not is preprocessing; what the third waits beyond that is
fetching. What the network itself takes longer beside workers is contention for the cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stepscope.analyze.bound_by import compute_s, lags
from stepscope.units import format_share

Way = Literal["synthetic", "memory", "source"]
Figures = Mapping[str, Any]

_LITTLE = 0.1  # of the time, lost to sharing the cores


@dataclass(frozen=True)
class Stalls:
    """Seconds a sample by where they go, and what follows. Rates are None where nothing is done."""

    compute_s: float
    preprocessing_s: float
    fetching_s: float
    contention_s: float
    total_s: float
    compute_rate: float
    preprocessing_rate: float | None
    fetching_rate: float | None
    workers: int

    def share(self, seconds: float) -> float:
        """Return a share of the time that a sample takes from its source."""
        return seconds / self.total_s

    @property
    def bound_by(self) -> str:
        """What binds: the loader where it lags, cores where the network lacks them."""
        if lags(self.share(self.preprocessing_s + self.fetching_s), self.workers):
            return "preprocessing" if self.preprocessing_s >= self.fetching_s else "storage"
        return "contention" if self.share(self.contention_s) >= _LITTLE else "compute"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "bound_by": self.bound_by,
            "rates": {
                "compute": self.compute_rate,
                "preprocessing": self.preprocessing_rate,
                "fetching": self.fetching_rate,
            },
            "lost": {
                "preprocessing": self.share(self.preprocessing_s),
                "fetching": self.share(self.fetching_s),
                "contention": self.share(self.contention_s),
            },
            "at_most": {
                "more_workers": self.total_s / self.compute_s,
                "faster_storage": self.total_s / (self.total_s - self.fetching_s),
            },
            "why": self._why(),
        }

    def _why(self) -> str:
        return (
            f"of the time of a sample from its source, {format_share(self.share(self.compute_s))} "
            f"is the network; {format_share(self.share(self.preprocessing_s))} is lost "
            f"waiting for preprocessing, {format_share(self.share(self.fetching_s))} for fetching, "
            f"{format_share(self.share(self.contention_s))} to sharing the cores"
        )


def data_stalls(ways: Mapping[Way, Figures], samples_a_step: float, workers: int) -> Stalls:
    """Put the three ways together; figures are seconds of a mean step of each.

    All parts are of the step from the source, so that they add up to it; the other two ways say
    how its wait divides, and what the network would take without a loader beside it.
    """
    synthetic, memory, source = ways["synthetic"], ways["memory"], ways["source"]
    alone_s, total_s = float(synthetic["step_s"]), float(source["step_s"])
    wait_s = max(0.0, float(source["data_s"]) - float(synthetic["data_s"]))
    preprocessing_s = min(wait_s, max(0.0, float(memory["data_s"]) - float(synthetic["data_s"])))
    fetching_s = wait_s - preprocessing_s
    contention_s = _contention_s(synthetic, source) if workers else 0.0
    network_s = total_s - wait_s - contention_s
    samples_at_once = samples_a_step * max(1, workers)
    return Stalls(
        compute_s=network_s / samples_a_step,
        preprocessing_s=preprocessing_s / samples_a_step,
        fetching_s=fetching_s / samples_a_step,
        contention_s=contention_s / samples_a_step,
        total_s=total_s / samples_a_step,
        compute_rate=samples_a_step / alone_s,
        preprocessing_rate=_rate(samples_at_once, memory.get("load_s")),
        fetching_rate=_rate(samples_at_once, _fetch_s(memory, source)),
        workers=workers,
    )


def _contention_s(synthetic: Figures, source: Figures) -> float:
    beside_s, alone_s = compute_s(source), compute_s(synthetic)
    return 0.0 if beside_s is None or alone_s is None else max(0.0, beside_s - alone_s)


def _fetch_s(memory: Figures, source: Figures) -> float | None:
    from_memory_s, from_source_s = memory.get("load_s"), source.get("load_s")
    if from_memory_s is None or from_source_s is None:
        return None
    return float(from_source_s - from_memory_s)


def _rate(samples: float, seconds: float | None) -> float | None:
    return samples / seconds if seconds and seconds > 0 else None
