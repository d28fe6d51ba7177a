"""A chart of an answer, in a file that somebody named."""

from __future__ import annotations

import sys
from pathlib import Path

from stepscope.report.charts import Chart, save


def leave_chart(chart: Chart, file: Path, *, as_json: bool) -> None:
    """Write a chart and print its path; beside JSON, not on standard output."""
    print(f"chart: {save(chart, file)}", file=sys.stderr if as_json else sys.stdout)
