"""The chart of an estimate: the energy of each layer, by the level of the hierarchy it goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.report.charts import Chart, Mark

LEVELS = ("dram", "buffer", "scratchpad", "registers", "mac")


def energy_chart(found: Mapping[str, Any]) -> Chart:
    """Describe the estimate of a network or of one layer, as `estimate --json` prints it."""
    layers: Sequence[Mapping[str, Any]] = found.get("layers") or [{**found, "name": "the layer"}]
    marks = [
        Mark(layer["name"], layer["energy_uj_by_level"][level], level)
        for layer in layers
        for level in LEVELS
    ]
    about = f"{found['energy_mj']:.4g} mJ and {found['cycles']:,} cycles on {found['design']}"
    title = f"Energy of {found['model']}" if "model" in found else "Energy of a layer"
    return Chart(title, "rows", "", "energy, uJ", marks, about)
