"""Compare two things on a noisy machine: alternate them often, in one process, and take medians."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from stepscope.hardware.host import cpu_model
from stepscope.stats.intervals import median, quantile


@dataclass(frozen=True)
class Comparison:
    """Medians of two things and of the ratio of each pair that was measured side by side."""

    first_s: float
    second_s: float
    ratio: float
    ratio_low: float
    ratio_high: float


def alternate(
    first: Callable[[], object],
    second: Callable[[], object],
    rounds: int,
    warm_up: int = 3,
    before_first: Callable[[], object] = lambda: None,
    before_second: Callable[[], object] = lambda: None,
) -> Comparison:
    """Time both in turn, the order changing every round; the ratio is first over second.

    What has to be set up for one of them is called before it, and not timed.
    """
    firsts, seconds = [], []
    set_up = {first: before_first, second: before_second}
    for number in range(rounds + warm_up):
        took = {}
        for work in (first, second) if number % 2 else (second, first):
            set_up[work]()
            took[work] = _time(work)
        if number >= warm_up:
            firsts.append(took[first])
            seconds.append(took[second])
    ratios = sorted(a / b for a, b in zip(firsts, seconds, strict=True))
    return Comparison(
        median(firsts),
        median(seconds),
        quantile(ratios, 0.5),
        quantile(ratios, 0.25),
        quantile(ratios, 0.75),
    )


def _time(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def report(what: str, compared: Comparison, wanted: str, met: bool) -> int:
    """Print the result with the machine it holds for; return an exit code."""
    print(
        f"{what}: {compared.ratio:.3f} (quartiles {compared.ratio_low:.3f} to "
        f"{compared.ratio_high:.3f}), wanted {wanted}: {'met' if met else 'MISSED'}"
    )
    print(f"  medians {compared.first_s * 1e3:.3f} ms and {compared.second_s * 1e3:.3f} ms")
    print(f"  on {machine()}")
    return 0 if met else 1


def machine() -> str:
    """Name the machine that figures hold for."""
    return f"{cpu_model()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
