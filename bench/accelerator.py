"""How long it takes to map a whole network on an accelerator, on one core, from nothing known.

Printed with it: how much of the space of mappings was ruled out without being looked at.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter

import torch

from stepscope.accelerator import mapper
from stepscope.accelerator.design import load_design
from stepscope.accelerator.mapper import Widths, map_layer
from stepscope.accelerator.network_shapes import shapes_of
from stepscope.hardware.host import cpu_model
from stepscope.models import registry
from stepscope.stats.intervals import median

ROUNDS = 7
NETWORKS = [
    ("resnet18_imagenet", (3, 224, 224), Widths(8, 16), 3.0),
    ("resnet18", (3, 32, 32), Widths(), 1.0),
    ("vgg11", (3, 32, 32), Widths(), 1.0),
    ("lenet", (3, 32, 32), Widths(), 1.0),
]


def main() -> int:
    design = load_design()
    met = True
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name, shape, widths, most_s in NETWORKS:
        net = registry.build(name, classes=registry.ZOO[name].classes, norm="batch")
        layers = [each.layer for each in shapes_of(net, shape, name).layers]
        took_s = []
        for _ in range(ROUNDS):
            mapper._map.cache_clear()
            start = perf_counter()
            mapped = [map_layer(layer, design, widths) for layer in layers]
            took_s.append(perf_counter() - start)
        unlike = list({m.layer: m for m in mapped}.values())
        evaluated, space = (sum(getattr(m, n) for m in unlike) for n in ("evaluated", "space"))
        print(
            f"{name}, {len(layers)} layers, {len(unlike)} of them unlike: median "
            f"{median(took_s):.2f} s, {min(took_s):.2f} to {max(took_s):.2f}, wanted {most_s:g} "
            f"at most; {100 * (1 - evaluated / space):.4f} % of {space:.2e} mappings ruled out"
        )
        met = met and median(took_s) <= most_s
    print(f"on {cpu_model()}, one CPU, torch {torch.__version__}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
