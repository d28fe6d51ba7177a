"""The figures of an estimate, as `stepscope accel estimate` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from stepscope.accelerator.design import AcceleratorDesign
from stepscope.accelerator.layer import Layer
from stepscope.accelerator.mapper import Mapped, Widths, map_layer
from stepscope.records.types import LayerEstimate, LayerFigures, NetworkEstimate, NetworkLayer

if TYPE_CHECKING:
    from torch import nn


def estimate_layer(layer: Layer, design: AcceleratorDesign, widths: Widths) -> LayerEstimate:
    """Estimate one layer."""
    figures = _figures(map_layer(layer, design, widths), design)
    return {**figures, "design": design.name, "energy_mj": figures["energy_uj"] / 1e3}


def estimate_network(
    model: nn.Module,
    sample_shape: Sequence[int],
    name: str,
    design: AcceleratorDesign,
    widths: Widths,
) -> NetworkEstimate:
    """Estimate a network, layer by layer.

    As in the course, energies are rounded to a hundredth of a microjoule before the sum.
    """
    from stepscope.accelerator.network_shapes import shapes_of

    found = shapes_of(model, sample_shape, name)
    layers: list[NetworkLayer] = [
        {"name": each.name, "kind": each.kind, **_figures(mapped, design)}
        for each in found.layers
        for mapped in [map_layer(each.layer, design, widths)]
    ]
    not_validated = [layer["name"] for layer in layers if not layer["validated"]]
    return {
        "model": name,
        "input": list(sample_shape),
        "design": design.name,
        "energy_mj": sum(round(layer["energy_uj"], 2) for layer in layers) / 1e3,
        "cycles": sum(layer["cycles"] for layer in layers),
        "peak_activation_bytes": found.peak_activation_bytes,
        "peak_activation_at": found.peak_at,
        "layers": layers,
        "costs_nothing": dict(found.free),
        "not_estimated": found.not_estimated,
        "not_validated": not_validated,
    }


def _figures(mapped: Mapped, design: AcceleratorDesign) -> LayerFigures:
    return {
        "layer": {name: bound for name, bound in asdict(mapped.layer).items() if bound is not None},
        "energy_uj": mapped.energy_uj,
        "cycles": mapped.cycles,
        "utilization": mapped.utilization(design),
        "energy_uj_by_level": {name: pj / 1e6 for name, pj in mapped.energy_pj.items()},
        "spatial": {"M": mapped.m_wide, "C": mapped.c_wide},
        "kept_in_buffer": list(mapped.kept),
        "mapping": nest(mapped),
        "validated": mapped.validated,
        "evaluated": mapped.evaluated,
        "space": mapped.space,
    }


def nest(mapped: Mapped) -> list[str]:
    """Write a mapping as a loop nest, the outermost loop first."""
    lines, depth = [], 0
    titles = {
        "dram": "DRAM",
        "buffer": f"buffer, keeps {', '.join(mapped.kept) or 'nothing'}",
        "scratchpad": "scratchpad of a PE, keeps weights",
    }
    for (level, loops), order in zip(mapped.loops.items(), mapped.orders, strict=True):
        lines.append(f"{'  ' * depth}# {titles[level]}")
        for dimension in reversed(order):
            if loops[dimension] > 1:
                lines.append(f"{'  ' * depth}for {dimension.lower()} in 0..{loops[dimension]}:")
                depth += 1
        if level == "buffer":
            for dimension, wide in (("C", mapped.c_wide), ("M", mapped.m_wide)):
                if wide > 1:
                    each = f"parallel for {dimension.lower()} in 0..{wide}:  # PEs"
                    lines.append("  " * depth + each)
                    depth += 1
    lines.append("  " * depth + "outputs += weights * inputs")
    return lines
