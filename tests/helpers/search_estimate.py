"""What the tests of a search share: all that it could choose, and a quick estimate."""

from __future__ import annotations

from stepscope.models.efficient_design import read_design

ALL_NAMED = {"model": "efficient:w64"} | dict.fromkeys(
    ("batch_size", "lr", "momentum", "weight_decay", "schedule"), 1
)


def cost(model: str) -> dict[str, float]:
    """Take the widths of a design for its cycles: an estimate that takes no time."""
    cycles = float(sum(read_design(model).widths))
    return {"cycles": cycles, "energy_mj": cycles / 1000, "peak_activation_bytes": 1.0}
