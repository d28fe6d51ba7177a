"""`stepscope doctor --peaks`: what this machine computes and moves at most, measured and kept."""

from __future__ import annotations

import sys
from dataclasses import asdict
from json import dumps

from rich.console import Console

from stepscope.experiments.peaks import measure_peaks
from stepscope.report.peaks import print_peaks


def show_peaks(*, as_json: bool) -> int:
    """Measure the peaks, keep them for later runs, and print them."""
    measured = measure_peaks()
    if as_json:
        print(dumps(asdict(measured)))
        return 0
    print_peaks(Console(), [asdict(peak) for peak in measured.peaks])
    for what, reason in measured.left_out.items():
        print(f"{what} could not be measured: {reason}", file=sys.stderr)
    return 0
